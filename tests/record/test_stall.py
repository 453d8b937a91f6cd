"""A stall is folded from the journal alone, so that run, replay and recovery show the same."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.record.record import Record
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import (
    DevicesChosen,
    GpusSampled,
    Line,
    ServerChanged,
    StageEnded,
    StageStarted,
    TelemetryChanged,
    Ticked,
)
from loadgen.schema.samples import GpuSample, GpuStatic, ServerDevices
from tests.journal import STARTED, record_of

READY = ServerChanged(1.0, "ready", "vllm", "http://127.0.0.1:8000")
FROZEN = EngineView(running=4.0, waiting=0.0, kv_usage=0.4, generation_tokens_per_s=0.0)
WORKING = EngineView(running=4.0, waiting=0.0, kv_usage=0.4, generation_tokens_per_s=50.0)
FROZEN_WORDS = "requests are open, but no token comes (4 running, 0 waiting)"
STAGE = StageStarted(t_s=1.0, index=0, concurrency=4, rate=None, isl=16, osl=16)


def tick(
    t_s: float, *, reads: int = 0, held: int = 4, engine: EngineView | None = FROZEN, says: bool = False
) -> Ticked:
    client = ClientDelta(reads=reads, output_tokens=reads)
    return Ticked(t_s=t_s, span_s=1.0, stages={}, client=client, held=held, engine=engine, waits_for_worker=says)


def answered(t_s: float = 1.0) -> Ticked:
    """A first token of the stage: its prompts are known to be answered."""
    first = Histogram()
    first.record_ns([5_000_000])
    return msgspec.structs.replace(tick(t_s, reads=1), stages={0: StageDelta(latency={"ttft": first.encode()})})


def silence(to_s: int, **changes: object) -> list[Ticked]:
    return [tick(t_s, **changes) for t_s in range(2, to_s)]  # type: ignore[arg-type]


def recorded(lines: Iterable[Line]) -> Record:
    return record_of((STARTED, *lines))


def stalled(lines: Iterable[Line]) -> list[tuple[str, str, bool]]:
    found = recorded(lines).run_verdicts()
    return [(one.subject, one.text, one.bad) for one in found if one.id == "stalled"]


def test_a_stall_is_a_bad_verdict_on_the_running_stage() -> None:
    found = stalled([READY, STAGE, answered(), *silence(40)])
    assert found == [("stage 1", f"stalled for 38 s: {FROZEN_WORDS}", True)]


@pytest.mark.parametrize("held", [0, 4])
def test_prompts_of_unknown_length_are_not_judged_before_a_step_is_too_long(held: int) -> None:
    """Neither of others, nor of a load whose first prompts are not answered yet."""
    record = recorded([READY, STAGE, *silence(40, held=held)])
    [(id, bad, text)] = [(one.id, one.bad, one.text) for one in record.run_verdicts()]
    assert (id, bad) == ("no-output", False)
    assert text.startswith("no output for 37 s: a stall, or a long prefill or compilation")
    assert stalled([READY, STAGE, *silence(310, held=held)]) == [
        ("stage 1", f"stalled for 307 s: {FROZEN_WORDS}", True)
    ]


def test_one_engine_of_a_data_parallel_server_that_stalls_is_named() -> None:
    both = msgspec.structs.replace(WORKING, engines={"0": WORKING, "1": FROZEN})
    lines = [tick(t_s, reads=1, engine=both) for t_s in range(2, 40)]
    [(_, text, bad)] = stalled([READY, STAGE, answered(), *lines])
    assert (text, bad) == (f"engine 1 stalled for 37 s: {FROZEN_WORDS}", True)


def test_one_of_two_servers_that_stalls_is_named() -> None:
    each = [(tick(t_s, reads=1), FROZEN, WORKING) for t_s in range(2, 40)]
    lines = [msgspec.structs.replace(line, engines=tuple(engines)) for line, *engines in each]
    assert stalled([READY, STAGE, answered(), *lines]) == [
        ("stage 1", f"instance 0 stalled for 37 s: {FROZEN_WORDS}", True)
    ]
    cleared = msgspec.structs.replace(tick(40.0, reads=1), engines=(WORKING, WORKING))
    record = recorded([READY, STAGE, answered(), *lines, cleared])
    assert record.stall is None
    assert [one.words(40.0) for one in record.ended_stalls] == [f"instance 0 stalled for 38 s: {FROZEN_WORDS}"]


def test_a_busy_gpu_of_the_server_shows_a_kernel_and_a_stale_sample_nothing() -> None:
    gpus = TelemetryChanged(0.0, tuple(GpuStatic(index=index, vendor="amd", name="GPU") for index in range(2)), {})
    chosen = DevicesChosen(0.0, ServerDevices((0,), "given"))

    def sampled(t_s: float) -> GpusSampled:
        return GpusSampled(t_s, (GpuSample(0, t_s, gfx_percent=99.0), GpuSample(1, t_s, gfx_percent=0.0)))

    def text(sampled_s: float) -> str:
        return stalled([gpus, chosen, READY, STAGE, answered(), *silence(39), sampled(sampled_s), tick(39.0)])[0][1]

    assert "a kernel that does not end (4 running, 0 waiting, 99% GPU busy)" in text(38.0)
    assert "GPU" not in text(20.0)


def test_a_worker_that_does_not_answer_shows_a_collective() -> None:
    said = [*silence(20), tick(20.0, says=True), *(tick(t_s) for t_s in range(21, 40))]
    [(_, text, _)] = stalled([READY, STAGE, answered(), *said])
    assert "workers wait for each other" in text


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([READY, *silence(30)], id="not long enough"),
        pytest.param(silence(90), id="before it is ready"),
        pytest.param([READY, *silence(90, engine=None)], id="engine unknown"),
        pytest.param([READY, *silence(90, held=0, engine=EngineView(generation_tokens_per_s=0.0))], id="pause"),
        pytest.param([READY, *silence(90, reads=1)], id="answers arrive"),
        pytest.param([READY, *silence(40), ServerChanged(40.0, "starting", "vllm", "")], id="another start"),
    ],
)
def test_no_stall_is_called(lines: list[Line]) -> None:
    assert stalled(lines) == []


def test_a_stall_during_a_pause_with_open_streams_is_called() -> None:
    assert stalled([READY, STAGE, answered(), StageEnded(2.0, 0, "paused"), *silence(40)])


def test_a_stalled_server_that_was_stopped_stays_so_in_the_result() -> None:
    record = recorded(
        [READY, STAGE, answered(), *silence(40), ServerChanged(40.0, "stopped", "vllm", ""), tick(41.0, held=0)]
    )
    assert [one.id for one in record.result().verdicts] == ["stalled"]


def test_a_stall_that_a_restart_ended_stays_in_the_result() -> None:
    again = ServerChanged(40.0, "starting", "vllm", "")
    lines: list[Line] = [READY, STAGE, answered(), *silence(40), again, tick(41.0, held=0)]
    assert [one.id for one in recorded(lines).result().verdicts] == ["stalled"]


def test_what_a_stalled_engine_keeps_is_not_called_traffic_of_others() -> None:
    record, seen = recorded([READY, STAGE, answered()]), []
    for line in silence(45):
        between_s = (line.t_s - 3, line.t_s - 2)
        one_more = msgspec.structs.replace(FROZEN, running=5.0, between_s=between_s, span_s=1.0)
        record.apply(msgspec.structs.replace(line, engine=one_more))
        seen.append(record.others and record.others.running)
    assert (seen[20], seen[-1]) == (1.0, None)


def test_headers_of_new_requests_are_no_output() -> None:
    lines = [msgspec.structs.replace(line, client=ClientDelta(reads=1)) for line in silence(60)]
    assert recorded([READY, *lines]).stall is not None


def test_a_stall_that_clears_is_known_with_the_tick_that_ends_it() -> None:
    record = recorded([READY, STAGE, answered(), *silence(60), tick(60.0, reads=3)])
    assert record.stall is None
    assert [one.words(60.0) for one in record.ended_stalls] == [f"stalled for 59 s: {FROZEN_WORDS}"]
    record.apply(tick(61.0, reads=3))
    assert record.ended_stalls == []
