"""What the seed decides of a request does not depend on who sends it."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from loadgen.plan.stage import Stage
from loadgen.stream.request import Cancellation, common_fields, model_shares, request_template
from loadgen.stream.samples import ClientSamples
from loadgen.stream.stream import Stream
from loadgen.worker.messages import BeginStage
from loadgen.worker.stage_run import StageRun
from loadgen.workload.prompts import token_prompts

REQUESTS = 60
TEMPLATE = msgspec.structs.replace(
    request_template(
        "http://a",
        "completions",
        common_fields("completions", model=None, temperature=0.0, options={}, extra={}),
        osl=4,
        api_key=None,
    ),
    models=model_shares({"base": 1, "adapter": 2}),
    cancel=Cancellation(share=0.25, after_s=0.5),
)
PROMPTS = token_prompts(range(100), 5)


def command_of(rank: int, ranks: int, **changes: Any) -> BeginStage:
    """The command of a stage with `changes`."""
    stage: dict[str, Any] = {"concurrency": 4 * ranks, "rate": None, "isl": 8, "osl": 4, "requests": REQUESTS}
    return BeginStage(index=3, stage=Stage(**stage | changes), template=TEMPLATE, rank=rank, ranks=ranks, start_ns=0)


def stage_run(rank: int, ranks: int, **changes: Any) -> StageRun:
    return StageRun(command_of(rank, ranks, **changes), PROMPTS, ClientSamples(), 5)


def marks(run: StageRun, *, prepared: bool) -> list[tuple[str, float | None]]:
    """The model and the patience of every request of a worker, in order."""
    found = []
    while not run.exhausted:
        while prepared and run.prepare_one(4):
            pass
        stream = run.next_stream(0)
        found.append((body_of(stream)["model"], stream.cancel_after_s))
    return found


def body_of(stream: Stream) -> Any:
    return json.loads(stream.wire.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("prepared", [True, False])
def test_any_number_of_workers_sends_the_same(ranks: int, prepared: bool) -> None:
    runs = [stage_run(rank, ranks) for rank in range(ranks)]
    parts = [marks(run, prepared=prepared) for run in runs]
    together = [parts[index % ranks][index // ranks] for index in range(REQUESTS)]
    assert together == marks(stage_run(0, 1), prepared=True)
    hang_ups = Counter(after_s for _, after_s in together)
    assert set(hang_ups) == {None, 0.5}
    counted = Counter[str]()
    for run in runs:
        counted.update(run.drain().models)
    assert counted == Counter(model for model, _ in together)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("warmup_requests", [0, 40])
def test_an_open_loop_reaches_its_requests_after_a_warm_up_in_time(ranks: int, warmup_requests: int) -> None:
    """Arrivals within the warm-up do not count, and as many that do follow, the same for any number of workers."""
    sent: list[int] = []
    measured = 0
    for rank in range(ranks):
        load = {"concurrency": None, "rate": 100.0, "arrival": "gamma:0.5"}
        run = stage_run(rank, ranks, **load, warmup_requests=warmup_requests, warmup_s=0.3)
        while (due_ns := run.next_arrival()) is not None:
            sent.append(due_ns)
            run.next_stream(0)
        assert run.exhausted
        measured += run.drain().sent
    early = sum(due_ns < 300_000_000 for due_ns in sent)
    assert measured == REQUESTS
    assert len(sent) == REQUESTS + max(warmup_requests, early)


@pytest.mark.parametrize("warmup_s", [0.0, 0.5])
def test_a_schedule_that_ends_before_all_requests_are_sent_is_exhausted(warmup_s: float) -> None:
    load = {"concurrency": None, "rate": 10.0, "rate_points": ((0.0, 20.0), (2.0, 0.0)), "warmup_s": warmup_s}
    run = stage_run(0, 1, **load)
    due = 0
    while run.next_arrival() is not None:
        due += 1
    for _ in range(due):
        assert not run.exhausted
        run.next_stream(0)
    assert 0 < due < REQUESTS
    assert run.exhausted


def test_warm_up_stream_within_the_window_is_not_timed() -> None:
    run = stage_run(0, 1, requests=1, warmup_requests=1)
    warmup = run.next_stream(0)
    warmup.tokens = 20
    warmup.record_first_token(1_000_000, 1)
    warmup.record_gap(10_000_000)
    assert (run.next_stream(0).measured, run.window.is_open) == (True, True)
    warmup.record_gap(10_000_000)
    warmup.record_odd_gap((10_000_000, 10_000_000, 2))
    warmup.finish()
    ended = run.drain()
    assert (ended.warmup, ended.sent, ended.tpot_parts) == (1, 1, 0)
    assert set(ended.latency) == {"warmup_ttft"}


def test_clock_step_after_a_stage_ended() -> None:
    limits_ms = {"ttft": 1000.0}
    run = stage_run(0, 1, requests=2, limits_ms=limits_ms)
    streams = [run.next_stream(0), run.next_stream(0)]
    for stream in streams:
        stream.sent_ns = 1
    streams[0].record_first_token(1_000_000, 1)
    streams[0].last_ns = 2_000_000
    streams[0].finish()
    run.end(streams[1:])
    run.note_clock_step()
    ended = run.drain()
    assert (ended.completed, ended.carried_over, ended.clock_steps) == (1, 1, 1)
    assert (ended.good, ended.beyond, ended.latency) == (0, 0, {})
