"""A stage next to the baseline: matched by load, in words, and never evidence where something speaks against it."""

import msgspec
import pytest

from loadgen.record.curve import distribution_of
from loadgen.record.figures import baseline_of, with_baseline
from loadgen.record.record import Record
from loadgen.record.stage import StageRecord
from loadgen.run.view import BaselineWatch
from loadgen.schema.comparison import BaselineView
from loadgen.schema.deltas import ClientDelta
from loadgen.schema.journal import ServerChanged, Ticked
from loadgen.schema.result import Result
from loadgen.schema.snapshot import CURVE_PERCENTS
from tests.metrics.served import run_of, served

A = run_of(served(1), served(2, index=1, concurrency=32))


def tick_at(t_s: float) -> Ticked:
    return Ticked(t_s=t_s, span_s=0.25, stages={}, client=ClientDelta(), held=16)


def compared(*stages: StageRecord, **changes: object) -> list[BaselineView | None]:
    return [stage.baseline for stage in with_baseline(run_of(*stages, **changes), baseline_of("good", A)).stages]


def test_a_slower_server_is_worse_than_the_baseline() -> None:
    (view,) = compared(served(3, scale=1.2))
    assert view is not None and view.bad and view.load == "conc 16, ISL 512, OSL 128"
    assert view.verdict.startswith("worse: ") and view.verdict.endswith(" more")
    tpot = next(one for one in view.figures if one.figure == "tpot_mean")
    assert tpot.difference is not None and 15 < (tpot.difference.percent or 0) < 25


def test_a_faster_server_is_better_and_the_same_is_neither() -> None:
    faster, same = compared(served(3, scale=0.8), served(4, index=1, concurrency=32))
    assert faster is not None and faster.verdict.startswith("better: ") and not faster.bad
    assert same is not None and same.verdict == "no evidence of a difference" and not same.bad


def test_a_load_that_is_missing_in_the_baseline() -> None:
    (view,) = compared(served(3, concurrency=64))
    assert view is not None and view.figures == () and view.load is None
    assert view.verdict.startswith("it has no stage with conc 64, ISL 512, OSL 128, but conc 16, ISL 512")


def test_a_stage_in_which_nothing_completed_is_compared_with_nothing() -> None:
    assert compared(served(3, seconds=0.0)) == [None]


def test_another_model_is_said_first() -> None:
    (view,) = compared(served(3), environment={"model": "another/model"})
    assert view is not None and view.verdict == "of another model, some/model: no evidence of a difference"


def test_doubt_on_either_side_takes_the_words() -> None:
    limited = msgspec.structs.replace(A.stages[0], limited=True, why="its CPU was full")
    doubtful: Result = msgspec.structs.replace(A, stages=[limited])
    slow = run_of(served(3, scale=1.2))
    (stage,) = with_baseline(slow, baseline_of("good", doubtful)).stages
    assert stage.baseline is not None
    assert (stage.baseline.verdict, stage.baseline.bad) == (
        "no evidence: the baseline is client-limited: its CPU was full",
        False,
    )
    unsure = msgspec.structs.replace(A.stages[0], inconclusive="too few streams")
    (stage,) = with_baseline(slow, baseline_of("good", msgspec.structs.replace(A, stages=[unsure]))).stages
    assert stage.baseline is not None
    assert stage.baseline.verdict == "no evidence: the baseline is inconclusive: too few streams"


def test_the_watch_looks_at_the_last_stage_once_a_second() -> None:
    watch, record = BaselineWatch(baseline_of("good", A)), Record()
    assert watch.view(record) is None
    record.server = ServerChanged(t_s=0.0, state="ready", engine="vllm", url="http://box:8000", model="some/model")
    record.stages[0] = served(3, scale=1.2)
    record.last_tick = tick_at(10.0)
    first = watch.view(record)
    assert first is not None and first.bad
    record.stages[0] = served(4)
    record.last_tick = tick_at(10.5)
    assert watch.view(record) is first
    record.last_tick = tick_at(11.0)
    later = watch.view(record)
    assert later is not None and not later.bad
    record.stages[1] = served(5, index=1, concurrency=64)
    other = watch.view(record)
    assert other is not None and other.load is None


def test_the_watch_has_the_distribution_of_the_same_load() -> None:
    watch, record = BaselineWatch(baseline_of("good", A)), Record()
    assert watch.distribution(record) is None
    record.stages[0] = served(3, scale=2.0)
    known, slower = watch.distribution(record), distribution_of(1, "conc 16", record.stages[0].metrics.latency)
    assert known is not None and (known.stage, known.label) == (0, "good")
    assert known.counts["ttft"] == A.stages[0].latency_ms["ttft"].count
    middle = CURVE_PERCENTS.index(50.0)
    assert known.curves_ms["e2e"][middle] == pytest.approx(A.stages[0].latency_ms["e2e"].p50, rel=0.002)
    assert slower.curves_ms["e2e"][middle] == pytest.approx(2 * known.curves_ms["e2e"][middle], rel=0.02)
    record.stages[1] = served(5, index=1, concurrency=64)
    assert watch.distribution(record) is None
