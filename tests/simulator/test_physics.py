from collections import deque
from dataclasses import fields, replace
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.simulator.engine import Engine
from loadgen.simulator.physics import PRESETS, Physics


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"base_ms": -1}, "base_ms"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"kv_blocks": 10}, "max_model_len"),
    ],
)
def test_impossible_physics_name_what_is_wrong(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ProfileError, match=named):
        Physics(**changes)


NUMBERS = [field.name for field in fields(Physics) if not isinstance(field.default, bool)]


@given(st.sampled_from(NUMBERS), st.one_of(st.floats(), st.integers()))
def test_any_physics_that_is_taken_has_steps_of_a_sensible_length(name: str, value: float) -> None:
    changes: dict[str, Any] = {name: value}
    try:
        physics = Physics(**changes)
    except ProfileError as error:
        assert name in str(error) or "max_" in str(error)
        return
    assert 100_000 <= physics.step_ns(running=1, prefill_tokens=1) <= 2 * 3600 * 10**9


def test_the_default_saturates_between_64_and_128_streams() -> None:
    physics = PRESETS["default"]
    best_per_ns = 1 / (physics.per_seq_ms * 1e6)
    rate = {batch: batch / physics.step_ns(batch, 0) / best_per_ns for batch in (8, 64, 128, 256)}
    assert rate[8] < 0.15
    assert 0.4 < rate[64] < 0.55
    assert 0.6 < rate[128] < 0.7
    assert rate[256] < 0.8


def test_a_step_is_never_so_short_that_the_engine_spins() -> None:
    nothing = replace(PRESETS["fast"], base_ms=0.0)
    assert nothing.step_ns(1, 0) == 100_000


@pytest.mark.parametrize("running", [1, 8, 16, 64, 1024])
def test_bends_has_a_step_of_its_own_for_each_load(running: int) -> None:
    assert PRESETS["bends"].step_ns(running, prefill_tokens=4096) == 5e6 * (1 + running / 16)


def test_the_published_preset_has_the_means_of_its_publication() -> None:
    engine = Engine(PRESETS["published"])
    unsent, served = deque(engine.sequence(number, [1] * 4096, 1024) for number in range(80)), []
    for _ in range(8):
        engine.add(unsent.popleft(), 0)
    now_ns: int | None = engine.begin(0)
    while now_ns is not None:
        emission = engine.finish(now_ns)
        following = engine.begin(now_ns)
        for sequence in emission.ending:
            served.append(sequence)
            if unsent:  # it comes when the next step has begun
                engine.add(unsent.popleft(), now_ns)
        now_ns = following if following is not None else engine.begin(now_ns)
    ttft_ms = mean(sequence.first_ns - sequence.arrived_ns for sequence in served) / 1e6
    tpot_ms = mean((sequence.last_ns - sequence.first_ns) / 1023 for sequence in served) / 1e6
    assert len(served) == 80
    assert ttft_ms == pytest.approx(864.75, rel=0.05)
    assert tpot_ms == pytest.approx(15.87, rel=0.05)
    assert 80 * 1024 / (served[-1].last_ns / 1e9) == pytest.approx(479.07, rel=0.05)
