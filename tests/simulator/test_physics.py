from dataclasses import replace
from typing import Any

import pytest

from loadgen.errors import ProfileError
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
