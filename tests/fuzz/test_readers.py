"""Every reader with inputs that nobody has kept: `make explore` finds new ones, `make fuzz` many more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutator import Mutator
from tests.fuzz.readers import READERS, Reader, corpus_of, outcome_of

_AT_ONCE = 5
_SETTINGS = settings(max_examples=max(1, settings().max_examples // 12))  # of the profile's; fifty readers add up


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@_SETTINGS
@given(seed=st.integers(0, 1 << 32), noise=st.binary(max_size=100))
def test_a_reader_raises_only_what_it_may(reader: Reader, seed: int, noise: bytes) -> None:
    """On what is nearly right, and on noise."""
    damaged = Mutator(corpus_of(reader.name), reader.words).inputs(seed)
    for data in (noise, *(next(damaged) for _ in range(_AT_ONCE))):
        assert outcome_of(reader, data)


def test_the_same_seed_gives_the_same_inputs() -> None:
    one, other, another = (Mutator([b'{"a": 1}'], [b"b"]).inputs(seed) for seed in (1, 1, 2))
    first = [next(one) for _ in range(50)]
    assert first == [next(other) for _ in range(50)]
    assert first != [next(another) for _ in range(50)]


def test_each_value_is_replaced_by_each_extreme_in_turn() -> None:
    one, other = (list(Mutator([data]).extremes()) for data in (b"[1]", b'[1,"a"]'))
    assert len(other) == 2 * len(one)
    assert {b"[1,-1]", b'[-1,"a"]'} < set(other)
