"""The knee of servers whose knee is known from their parameters."""

import math
from collections.abc import Callable
from random import Random

import pytest

from loadgen.plan import Measured, Stage
from loadgen.plan.knee_search import knee_of
from loadgen.simulator.physics import PRESETS, Physics
from tests.plan.probing import search

KNEE = {"plan": {"search": "knee"}}
ISL, OSL = 512, 128


def true_knee(physics: Physics, isl: int, osl: int) -> float:
    """Where power is greatest: a stream costs a/N of the base and b of its own, in each of its steps."""
    return physics.base_ms / (physics.per_seq_ms + physics.per_prefill_token_ms * isl / osl)


def served(physics: Physics, stage: Stage, noise: float, random: Random) -> Measured:
    """A closed loop on the simulator, by its physics: what runs is bounded, and the rest waits."""
    held = stage.concurrency or 0
    running = min(held, physics.max_num_seqs)
    step_ms = physics.base_ms + physics.per_seq_ms * running
    stream_ms = stage.osl * step_ms + running * stage.isl * physics.per_prefill_token_ms
    rate = stage.osl * running / stream_ms * 1000 * random.lognormvariate(0, noise)
    return Measured(stage=stage, held=held, output_tokens_per_s=rate, completed=100)


def engine(physics: Physics, noise: float = 0.0, seed: int = 0) -> Callable[[Stage], Measured]:
    random = Random(seed)
    return lambda stage: served(physics, stage, noise, random)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("isl", [1, ISL])
def test_the_knee_is_within_a_tenth_of_the_truth(seed: int, isl: int) -> None:
    found, _ = search(engine(PRESETS["default"], 0.01, seed), load={"isl": isl, "osl": OSL}, **KNEE)
    assert found.found == pytest.approx(true_knee(PRESETS["default"], isl, OSL), rel=0.1)


def test_without_noise_the_knee_is_exact_and_sure() -> None:
    found, loads = search(engine(PRESETS["default"]), load={"isl": ISL, "osl": OSL}, **KNEE)
    truth = true_knee(PRESETS["default"], ISL, OSL)
    assert found.found == pytest.approx(truth, rel=1e-6)
    assert found.resolved
    assert found.low is not None and found.high is not None
    assert found.low <= truth <= found.high
    # Doublings until power has clearly fallen, then the knee and both sides of it.
    rungs = [load for load in loads if math.log2(load).is_integer()]
    assert rungs == [float(2**power) for power in range(len(rungs))]
    assert len(loads) == len(rungs) + 3


def test_the_interval_holds_the_truth_more_often_than_not() -> None:
    truth = true_knee(PRESETS["default"], ISL, OSL)
    held = 0
    for seed in range(40):
        found, _ = search(engine(PRESETS["default"], 0.01, seed), load={"isl": ISL, "osl": OSL}, **KNEE)
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
    assert held >= 32


def test_a_server_that_only_gets_better_has_no_knee_within_the_search() -> None:
    flat = Physics(base_ms=100, per_seq_ms=0.01, per_prefill_token_ms=0, max_num_seqs=4096)
    found, loads = search(engine(flat), load={"isl": 1, "osl": OSL}, plan={"search": "knee", "most": 64})
    assert max(loads) == 64
    assert not found.resolved
    assert found.found is None
    assert "raise plan.most (64)" in found.why


def test_a_server_without_any_cost_of_a_stream_has_none() -> None:
    flat = Physics(base_ms=1, per_seq_ms=0, per_prefill_token_ms=0, max_num_seqs=4096)
    found, _ = search(engine(flat), load={"isl": 1, "osl": OSL}, plan={"search": "knee", "most": 256})
    assert (found.found, found.resolved) == (None, False)


def test_a_limit_of_running_streams_is_where_power_falls() -> None:
    bounded = Physics(base_ms=6, per_seq_ms=0.02, per_prefill_token_ms=0, max_num_seqs=32)
    found, _ = search(engine(bounded), load={"isl": 1, "osl": OSL}, **KNEE)
    assert found.found == pytest.approx(32, rel=0.25) or not found.resolved


def test_wild_measurements_are_not_resolved() -> None:
    found, _ = search(engine(PRESETS["default"], 0.5, 3), load={"isl": ISL, "osl": OSL}, **KNEE)
    assert not found.resolved


def test_a_server_that_answers_nothing_ends_the_search() -> None:
    found, loads = search(lambda stage: Measured(stage=stage), **KNEE)
    assert (found.found, found.resolved, loads) == (None, False, [1.0])


def test_a_curve_that_bends_up() -> None:
    points = [(n, n / (10 + 0.1 * n + 0.01 * n * n)) for n in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)]
    knee = knee_of(points)
    best = max((n / (10 + 0.1 * n + 0.01 * n * n) ** 2, n) for n in (k / 10 for k in range(1, 1000)))[1]
    assert knee == pytest.approx(best, rel=0.02)
