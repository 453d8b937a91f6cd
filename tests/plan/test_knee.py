"""The knee of servers whose knee is known from their parameters."""

import math
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from loadgen.plan.knee_search import Point, _Fit, knee_of
from loadgen.plan.stage import Measured, Stage
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
    return Measured(stage=stage, held=held, output_tokens_per_s=rate)


def engine(
    physics: Physics, noise: float = 0.0, seed: int = 0, blocks: int | None = None
) -> Callable[[Stage], Measured]:
    """With `blocks` each probe says how much it varies, as well as so many blocks can tell."""
    random = Random(seed)

    def measure(stage: Stage) -> Measured:
        measured = served(physics, stage, noise, random)
        if blocks is None:
            return measured
        seen = math.sqrt(random.gammavariate((blocks - 1) / 2, 2) / (blocks - 1))
        return msgspec.structs.replace(measured, error_percent=100 * noise * seen)

    return measure


def point(held: float, response: float, error_percent: float | None = None) -> Point:
    return Point(held, held / response, error_percent)


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


@pytest.mark.parametrize("blocks", [6, 20, None])
@pytest.mark.parametrize("noise", [0.003, 0.02])
def test_the_interval_holds_the_truth_as_often_as_it_says(noise: float, blocks: int | None) -> None:
    truth = true_knee(PRESETS["default"], ISL, OSL)
    held = 0
    for seed in range(150):
        found, _ = search(engine(PRESETS["default"], noise, seed, blocks), load={"isl": ISL, "osl": OSL}, **KNEE)
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
    # Of 150, 95 % are 142.5, with a standard deviation of 2.7.
    assert held >= 134
    # An interval of everything would hold it always.
    assert held < 150


def test_what_the_blocks_say_makes_the_interval() -> None:
    def interval(error_percent: float) -> float:
        points = [point(n, 10 + 0.5 * n, error_percent) for n in (1, 2, 4, 8, 16, 32, 64)]
        knee = knee_of(points)
        assert knee is not None and knee.at == pytest.approx(20, rel=1e-6)
        return knee.high - knee.low

    assert interval(0.1) < 0.5 * interval(1.0) < 0.5 * interval(5.0)


def test_a_probe_that_varies_much_counts_for_little() -> None:
    points = [point(n, 10 + 0.5 * n, 0.2) for n in (1, 2, 4, 8, 16, 64)]
    wild = point(32, 80.0, 20.0)
    knee = knee_of([*points, wild])
    assert knee is not None and knee.at == pytest.approx(20, rel=0.02)


def test_few_points_are_no_proof_of_a_bend() -> None:
    # Scattered by a percent, five points on a line: F with 1 and 2 degrees of freedom is above 10 by chance often.
    curved = 0
    for seed in range(200):
        random = Random(seed)
        points = [point(n, (10 + 0.5 * n) * random.lognormvariate(0, 0.01)) for n in (1, 4, 16, 32, 64)]
        curved += _Fit(points, 2).betters(_Fit(points, 1))
    assert curved <= 8


def test_a_server_that_only_gets_better_has_no_knee_within_the_search() -> None:
    flat = Physics(base_ms=100, per_seq_ms=0.01, per_prefill_token_ms=0, max_num_seqs=4096)
    found, loads = search(engine(flat), load={"isl": 1, "osl": OSL}, plan={"search": "knee", "most": 64})
    assert max(loads) == 64
    assert not found.resolved
    assert found.found is None
    assert "does not bend within 1 to 64 streams" in found.why and "raise plan.most (64)" in found.why
    # The curve is there all the same.
    assert [one.held for one in found.points] == [1, 2, 4, 8, 16, 32, 64]
    assert found.points[-1].output_tokens_per_s == pytest.approx(64 / 0.10064)


@pytest.mark.parametrize(("least", "advice"), [(8, "; lower plan.least (8)"), (1, "")])
def test_a_knee_below_the_lowest_probe_is_not_resolved(least: int, advice: str) -> None:
    # The knee is where all streams together take as long as the rest of a step: at half a stream, and at 4.
    costly = Physics(base_ms=10, per_seq_ms=20 if least == 1 else 2.5, per_prefill_token_ms=0, max_num_seqs=4096)
    found, loads = search(engine(costly), load={"isl": 1, "osl": OSL}, plan={"search": "knee", "least": least})
    assert min(loads) == least
    assert (found.found, found.resolved) == (None, False)
    assert found.why.endswith(f"below the lowest probe, {least:.1f}{advice}")


def test_a_server_without_any_cost_of_a_stream_has_none() -> None:
    flat = Physics(base_ms=1, per_seq_ms=0, per_prefill_token_ms=0, max_num_seqs=4096)
    found, _ = search(engine(flat), load={"isl": 1, "osl": OSL}, plan={"search": "knee", "most": 256})
    assert (found.found, found.resolved) == (None, False)
    assert found.why.startswith("the curve does not bend within 1 to 256 streams")


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
    points = [point(n, 10 + 0.1 * n + 0.01 * n * n, 0.5) for n in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)]
    knee = knee_of(points)
    best = max((n / (10 + 0.1 * n + 0.01 * n * n) ** 2, n) for n in (k / 10 for k in range(1, 1000)))[1]
    assert knee is not None and knee.at == pytest.approx(best, rel=0.02)
    assert knee.low < best < knee.high
