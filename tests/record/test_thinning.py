"""Thinned lines: fewer and smaller, and every figure, event and failure of a stage is the same."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.record.thinning import SPAN_S, thinned
from loadgen.schema.deltas import ClientDelta, EncodedHistogram, StageDelta
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import (
    Happened,
    HostsJoined,
    HostTick,
    Line,
    RunFinished,
    StageEnded,
    StageStarted,
    Ticked,
    encode_line,
    time_of,
)
from tests.journal import STARTED, record_of
from tests.record.test_record_hosts import FACTS

_COARSER = {"ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "read_lag_p99_ms"}


def latency(values_us: Sequence[int]) -> EncodedHistogram:
    known = Histogram()
    known.record_us(np.array(values_us, dtype=np.int64))
    return known.encode()


def result(lines: Sequence[Line]) -> dict[str, Any]:
    """The result, without what says when within a span a latency occurred."""
    reported: dict[str, Any] = msgspec.to_builtins(record_of(lines).result())
    series = reported["series"].items()
    reported["series"] = {name: values for name, values in series if name.removesuffix("_min") not in _COARSER}
    for stage in reported["stages"]:
        stage.pop("precision", None)
    return reported


values = st.lists(st.integers(1, 60_000_000), min_size=1, max_size=2)
latencies = st.dictionaries(st.sampled_from(["ttft", "itl", "chunk_gap", "e2e", "warmup_ttft"]), values, max_size=2)


@st.composite
def stage_deltas(draw: st.DrawFn, at_ns: int) -> StageDelta:
    return StageDelta(
        sent=draw(st.integers(0, 5)),
        completed=draw(st.integers(0, 5)),
        failed=draw(st.integers(0, 1)),
        errors=draw(st.dictionaries(st.sampled_from(["http_5xx", "reset"]), st.integers(1, 3), max_size=2)),
        messages=draw(st.dictionaries(st.just("reset"), st.lists(st.text(max_size=3), max_size=2), max_size=1)),
        window_output_tokens=draw(st.integers(0, 100)),
        window_start_ns=1,
        window_end_ns=at_ns,
        latency={name: latency(us) for name, us in draw(latencies).items()},
    )


@st.composite
def journals(draw: st.DrawFn) -> list[Line]:
    """Stages of a few ticks or of more than a span, on two servers and two hosts."""
    lines: list[Line] = [STARTED, HostsJoined(0.0, (FACTS["a"], FACTS["b"]))]
    t_s = 1.0
    for index in range(draw(st.integers(1, 3))):
        lines.append(StageStarted(t_s=t_s, index=index, concurrency=4, rate=None, isl=8, osl=8, duration_s=None))
        for _ in range(draw(st.integers(0, 7))):
            t_s += draw(st.sampled_from([0.25, 4.0]))
            if draw(st.booleans()):
                lines.append(Happened(t_s, "note", "a remark"))
            reported = draw(st.sets(st.integers(max(0, index - 1), index)))
            stages = {each: draw(stage_deltas(int(t_s * 1e9))) for each in reported}
            client = ClientDelta(reads=3, read_lag=latency(draw(values)) if draw(st.booleans()) else None)
            lines.append(
                Ticked(
                    t_s=t_s,
                    span_s=0.25,
                    stages=stages,
                    client=client,
                    held=draw(st.integers(0, 4)),
                    engine=EngineView(waiting=draw(st.floats(0, 9)), kv_usage=0.5),
                    instances=(stages, {}) if draw(st.booleans()) else (),
                    hosts=tuple(HostTick(stages=stages, client=client) for _ in range(draw(st.integers(0, 2)))),
                )
            )
        if draw(st.booleans()):
            lines.append(StageEnded(t_s, index, "its time was up"))
    return lines


@given(journals())
def test_nothing_of_a_stage_is_lost_and_the_order_stays(lines: list[Line]) -> None:
    reported = list(thinned(lines))
    assert result(reported) == result(lines)
    assert [(type(line), time_of(line)) for line in reported] == [(type(line), time_of(line)) for line in lines]
    assert [line for line in reported if not isinstance(line, Ticked)] == [
        line for line in lines if not isinstance(line, Ticked)
    ]


@pytest.mark.parametrize("cut", [1, 100])
def test_latencies_of_a_span_are_reported_once(cut: int) -> None:
    """Also where an event comes between; a part that begins within a span is no different."""
    began = StageStarted(t_s=0.0, index=0, concurrency=4, rate=None, isl=8, osl=8, duration_s=None)
    delta = StageDelta(sent=1, latency={"ttft": latency([1000])})
    ticks: list[Line] = [
        Ticked(t_s=0.25 * n, span_s=0.25, stages={0: delta}, client=ClientDelta(), held=4) for n in range(160)
    ]
    ticks.insert(cut, Happened(0.25 * cut, "note", "a remark"))
    finished = RunFinished(t_s=40.0, unix_s=1.7e9, state="complete", reason="")
    reported = list(thinned([STARTED, began, *ticks, finished]))
    heavy = [
        line for line in reported if isinstance(line, Ticked) and any(each.latency for each in line.stages.values())
    ]
    assert len(heavy) == 40 / SPAN_S
    assert sum(each.stages[0].latency["ttft"].count for each in heavy) == 160
    assert sum(map(len, map(encode_line, reported))) < 0.8 * sum(map(len, map(encode_line, ticks)))
