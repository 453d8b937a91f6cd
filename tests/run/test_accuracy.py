"""The promise itself: what a stage says is what was served within its window, or it says that the client was the limit.

Not one number here is compared with a clock of the test: the simulator shares two cores with everything else, so its
own steps may be late. Both ends of the same tokens are compared.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

from loadgen.metrics.histogram import Summary
from loadgen.metrics.journal import Ticked, read_journal
from loadgen.metrics.result import StageResult
from loadgen.run import Run
from tests.engines import Simulator, attach, simulator
from tests.run.driving import finish

STEP_MS = 5.0


def step_ms(streams: float) -> float:
    """Of the simulator that bends."""
    return STEP_MS * (1 + streams / 16)


class Measured(NamedTuple):
    """A stage, and what was truly served in its window."""

    stage: StageResult
    truth: dict[str, Any]

    @property
    def latency(self) -> dict[str, Any]:
        return self.truth["latency_ms"]  # type: ignore[no-any-return]


async def measured(engine: Simulator, **parts: Any) -> list[Measured]:
    """Every stage of a run, over its window as the workers had it."""
    run = Run(attach(engine, **parts), where="test")
    result = await finish(run)
    assert result.state == "complete", run.error
    windows: dict[int, tuple[int, int]] = {}
    for line in read_journal(run.folder / "journal.jsonl"):
        for index, delta in line.stages.items() if isinstance(line, Ticked) else ():
            if delta.window_start_ns is not None and delta.window_end_ns is not None:
                began, _ = windows.get(index, (delta.window_start_ns, 0))
                windows[index] = (began, delta.window_end_ns)
    offset_ns = time.time_ns() - time.monotonic_ns()
    return [
        Measured(
            stage, engine.truth(since=windows[stage.index][0] + offset_ns, until=windows[stage.index][1] + offset_ns)
        )
        for stage in result.stages
    ]


def is_near(ours: float | None, theirs: float | None, *, rel: float, abs_ms: float = 0.0) -> bool:
    return ours is not None and theirs is not None and abs(ours - theirs) <= max(rel * theirs, abs_ms)


def wrong(one: Measured) -> list[str]:
    """What a stage says that is not so, and does not say that it may not be so."""
    stage, latency = one.stage, one.latency
    assert one.truth["whole"]
    if stage.limited:
        assert stage.why
        return []
    found = {f"ttft {name}": _pair(stage.latency_ms["ttft"], latency["ttft"], name) for name in ("p50", "p99")}
    far = [name for name, pair in found.items() if not is_near(*pair, rel=0.02, abs_ms=1.0)]
    found["tpot mean"] = _pair(stage.latency_ms["tpot"], latency["tpot"], "mean")
    far += ["tpot mean"] if not is_near(*found["tpot mean"], rel=0.005) else []
    return [f"{name}: says {found[name][0]}, was {found[name][1]}" for name in far]


def _pair(ours: Summary, theirs: dict[str, float | None], name: str) -> tuple[float | None, float | None]:
    return getattr(ours, name), theirs[name]


# With so many requests that a p99 is not the one that met with the scheduler.
LOADS = {
    "closed": ("bends", {"concurrency": 16, "osl": 16, "duration": "5s"}),
    "many": ("bends", {"concurrency": 64, "osl": 24, "duration": "5s"}),
    "open": ("bends", {"rate": 100.0, "osl": 16, "duration": "5s"}),
    "chat": ("bends", {"concurrency": 16, "osl": 16, "duration": "5s", "endpoint": "chat", "isl": 64}),
    "heavy": ("bench", {"concurrency": 256, "osl": 64, "duration": "4s"}),
}


@pytest.mark.parametrize("name", LOADS)
async def test_what_a_stage_says_was_so_or_it_says_that_it_was_limited(name: str) -> None:
    preset, load = LOADS[name]
    with simulator("--preset", preset) as engine:
        [one] = await measured(engine, load={"requests": None, **load})
    assert wrong(one) == []
    assert one.stage.limited or one.stage.latency_ms["ttft"].count > 200


async def test_each_stage_of_a_ladder_has_the_latencies_of_its_own_load() -> None:
    load = {"concurrency": [8, 64, 8], "osl": 100, "requests": None, "duration": "4s"}
    with simulator("--preset", "bends") as engine:
        stages = await measured(engine, load=load)
    assert [one.stage.target.concurrency for one in stages] == [8, 64, 8]
    for one in stages:
        assert wrong(one) == []
        streams, stage = str(one.stage.target.concurrency), one.stage
        own, all_tokens = one.truth["by_streams"][streams], one.truth["tokens"]["output"]
        assert own["tokens"] > 0.95 * all_tokens, "what else was open meanwhile"
        if stage.limited:
            continue
        itl, ttft, tpot = (stage.latency_ms[name] for name in ("itl", "ttft", "tpot"))
        assert is_near(itl.mean, own["itl"]["mean"], rel=0.01)
        assert is_near(itl.p99, own["itl"]["p99"], rel=0.02, abs_ms=1.0)
        assert is_near(tpot.mean, own["itl"]["mean"], rel=0.01)
        assert is_near(ttft.mean, own["ttft"]["mean"], rel=0.02, abs_ms=1.0)
        # Without a load of its own a first token takes one to two steps.
        assert own["itl"]["mean"] >= step_ms(int(streams)) * 0.99
        assert stage.throughput.output_tokens_per_s == pytest.approx(all_tokens / stage.measured_s, rel=0.02)


async def test_each_step_of_a_ramp_has_the_gaps_of_its_own_load() -> None:
    plan = {"ramp": {"start": 1, "end": 12, "over": "12s", "steps": 12}}
    with simulator("--preset", "bends") as engine:
        [one] = await measured(engine, load={"osl": 40, "requests": None}, plan=plan)
    assert [point.load for point in one.stage.curve] == list(range(1, 13))
    for point in one.stage.curve:
        own = one.truth["by_streams"][f"{point.load:g}"]
        # By the median: a step that begins under one load and ends under the next is in one bin here, in another there.
        assert one.stage.limited or is_near(point.itl_ms.p50, own["itl"]["p50"], rel=0.03)
