"""The fold of a journal: its memory does not grow with the length of a run."""

from __future__ import annotations

import pytest

from loadgen.record.record import Record
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import (
    GpusSampled,
    Happened,
    ServerChanged,
    StageEnded,
    StageStarted,
    TelemetryChanged,
    Ticked,
)
from loadgen.schema.samples import GpuSample, GpuStatic
from tests.journal import STARTED


@pytest.fixture
def record() -> Record:
    record = Record()
    record.apply(STARTED)
    return record


def begin(record: Record, t_s: float, index: int) -> None:
    record.apply(StageStarted(t_s=t_s, index=index, concurrency=8, rate=None, isl=16, osl=16, duration_s=20.0))


def tick(record: Record, t_s: float, held: int = 0, stages: dict[int, StageDelta] | None = None) -> None:
    record.apply(Ticked(t_s=t_s, span_s=0.25, stages=stages or {}, client=ClientDelta(), held=held))


def test_points_are_bounded_and_the_result_keeps_the_extremes(record: Record) -> None:
    for number in range(10_000):
        tick(record, number * 0.25, held={77: 5000}.get(number, 10 + number % 2))
    assert len(record.timeline.points) <= 40
    assert record.timeline.points[-1].t_s == 2499.75
    series = record.result().series
    assert len(series["t_s"]) <= 6_000
    assert max(held or 0 for held in series["held"]) == 5000
    assert min(held or 0 for held in series["held_min"]) == 10


def test_the_gauges_of_a_server_end_with_its_next_start(record: Record) -> None:
    for start_s in (1.0, 5.0):
        record.apply(ServerChanged(start_s, "starting", "vllm", "http://127.0.0.1:8000"))
        assert record.engine is None
        now = EngineView(running=7)
        record.apply(Ticked(t_s=start_s + 1, span_s=0.25, stages={}, client=ClientDelta(), held=0, engine=now))
        assert record.engine == now


def test_what_happens_without_end_is_cut_short_with_a_word(record: Record) -> None:
    for number in range(1_500):
        record.apply(Happened(t_s=float(number), kind="error", text=f"number {number}"))
    record.apply(Happened(t_s=1_500.0, kind="note", text="of another kind"))
    events = record.result().events
    assert len(events) == 1_001
    assert (events[998].text, events[999].text[:28]) == ("number 998", "1,000 events of this kind: t")
    assert events[-1].text == "of another kind"


def test_a_stage_long_over_keeps_what_its_looks_said(record: Record) -> None:
    record.apply(TelemetryChanged(0.0, (GpuStatic(index=0, vendor="sim", name="GPU"),), {}))
    for index in range(3):
        start_s = index * 1000.0
        begin(record, start_s, index)
        for second in range(10):
            sample = GpuSample(index=0, t_s=start_s + second, power_w=100.0 * (index + 1))
            record.apply(GpusSampled(start_s + second, (sample,)))
        window_ns = int(start_s * 1e9)
        tick(
            record, start_s + 9, stages={index: StageDelta(window_start_ns=window_ns, window_end_ns=window_ns + 10**10)}
        )
        record.apply(StageEnded(start_s + 10, index, "done"))
    assert [bool(stage.hardware_samples.by_gpu) for stage in record.stages.values()] == [False, True, True]
    powers = [stage.gpu[0].power_w for stage in record.result().stages]
    assert [power.mean for power in powers if power is not None] == [100.0, 200.0, 300.0]


def test_a_stage_whose_streams_go_on_is_kept_as_it_is_until_they_end(record: Record) -> None:
    record.apply(TelemetryChanged(0.0, (GpuStatic(index=0, vendor="sim", name="GPU"),), {}))
    for index, open_sent in enumerate(({0: 1}, {0: 1}, {0: 1}, {0: 1}, {})):
        start_s = index * 100.0
        begin(record, start_s, index)
        record.apply(GpusSampled(start_s, (GpuSample(index=0, t_s=start_s, power_w=100.0),)))
        for t_s in (start_s + 1, start_s + 98):
            record.apply(Ticked(t_s=t_s, span_s=0.25, stages={}, client=ClientDelta(), held=1, open_sent=open_sent))
        record.apply(StageEnded(start_s + 99, index, "done"))
        kept = [bool(stage.hardware_samples.by_gpu) for stage in record.stages.values()]
        # The last two are shown, and kept.
        after = {2: [True, True, True], 3: [True, False, True, True], 4: [False, False, False, True, True]}
        assert kept == after.get(index, [True] * (index + 1))
