"""What a snapshot has of the stages that are over."""

from typing import Any

import msgspec
import pytest

from loadgen.record.record import Record
from loadgen.run.view import ShownStages, _compute, _quiet_words, load_headline, load_view, phase_headline, snapshot_of
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import DevicesChosen, ServerChanged, StageEnded, TelemetryChanged, Ticked
from loadgen.schema.samples import GpuStatic, ServerDevices
from loadgen.schema.shared import Milestone
from loadgen.schema.snapshot import RECENT_S, SNAPSHOT_S, ClientView, LoadView, ServerView, Snapshot
from tests.engines import MANAGED, profile
from tests.journal import STARTED
from tests.metrics.served import started
from tests.run.driving import finish, noted, run_of

PUBLISHED = {"source": "a publication", "points": [{"figures": {"ttft_p50_ms": 40.0}}]}
CLIENT = ClientView("kernel", 1, 10.0, 0.4, 0.0, limited=False, why=None)
CALM: dict[str, Any] = {"client": CLIENT, "engine": None, "failed": 0, "completed": 9, "errors": 0}
IMPORT = Milestone("import", "import", "done")
WEIGHTS = Milestone("weights", "load weights", "running", 0.5, "2/4 shards")
READY = Milestone("ready", "ready")


def test_a_load_of_sessions_is_named_so_until_the_next_stage() -> None:
    """Also before the first stage, and once no worker is left to report sessions."""
    record = Record()
    ended = StageEnded(1.0, 0, "the workers died")
    at_first = msgspec.structs.replace(STARTED, profile={"load": {"sessions": {"data": "sample"}}})
    for line in (at_first, started(in_sessions=True), ended):
        record.apply(line)
        assert load_view(None, record, 2.0, stage=1, stages_planned=1, paused=False, manual=False).in_sessions


async def test_published_figures_next_to_the_running_stage() -> None:
    shown: list[Snapshot] = []
    load = {"concurrency": [1, 2], "requests": 20}
    run = run_of(profile(MANAGED, load=load, reference=PUBLISHED))
    await finish(run, noted(shown))
    by_snapshot = [[one.stage for one in snapshot.reference] for snapshot in shown]
    assert by_snapshot[-1] == [0, 1] and all(stages in ([], [0], [1]) for stages in by_snapshot[:-1])
    assert all(one.difference_percent is not None for one in shown[-1].reference)


@pytest.mark.parametrize(
    ("changes", "text", "healthy"),
    [
        ({}, "ok", True),
        ({"errors": 2}, "ok, 2 failed", True),
        ({"errors": 20, "failed": 1, "completed": 0}, "failing: 1 of the last 1 request", False),
        ({"errors": 20, "failed": 3}, "failing: 3 of the last 12 requests", False),
        ({"errors": 20, "failed": 1, "completed": 90}, "ok, 20 failed", True),
        ({"engine": EngineView(waiting=4)}, "engine-limited: queueing, 4 waiting", True),
        ({"engine": EngineView(waiting=4, kv_usage=1.0)}, "KV-limited: 4 waiting, KV cache 100% full", True),
        (
            {"client": msgspec.structs.replace(CLIENT, limited=True, why="read late")},
            "client-limited, not trustworthy: read late",
            False,
        ),
    ],
)
def test_the_headline_of_a_load(changes: dict[str, object], text: str, healthy: bool) -> None:
    assert load_headline(**CALM | changes) == (text, healthy)


@pytest.mark.parametrize(
    ("reported", "text", "healthy"),
    [
        ({"phase": "paused"}, "paused", True),
        ({"phase": "starting"}, "server starting: waiting for its answer", True),
        (
            {"phase": "starting", "milestones": (IMPORT, WEIGHTS, READY)},
            "server starting: load weights 2/4 shards",
            True,
        ),
        ({"phase": "starting", "milestones": (IMPORT, READY)}, "server starting: next: ready", True),
        ({"phase": "done", "state": "complete", "reason": "the plan is done"}, "complete: the plan is done", True),
        ({"phase": "done", "state": "server_died", "reason": "killed"}, "server_died: killed", False),
        (
            {"phase": "stopping", "state": "failed", "reason": "nothing but failures"},
            "stopping: nothing but failures",
            False,
        ),
    ],
)
def test_the_headline_of_a_phase_without_load(reported: dict[str, Any], text: str, healthy: bool) -> None:
    assert phase_headline(**reported) == (text, healthy)


@pytest.mark.parametrize(
    ("ticks", "text"),
    [
        (
            [(1.0, 4, 2), (11.5, 0, 2)],
            "no output for 10 s: 2 streams open, to fail after load.stall_timeout_s",
        ),
        ([(1.0, 4, 2), (10.5, 0, 2)], ""),
        ([(1.0, 4, 2), (30.0, 0, 2), (30.5, 1, 2)], ""),
        ([(1.0, 4, 2), (2.0, 0, 0), (30.0, 0, 0)], ""),  # nobody waits
        ([(1.0, 4, 2), (20.0, 0, 0), (29.0, 0, 1)], ""),  # nor for long
        ([(20.0, 0, 1)], ""),
        ([], ""),
    ],
)
def test_silence_is_said_while_streams_wait(ticks: list[tuple[float, int, int]], text: str) -> None:
    record = Record()
    for t_s, tokens, held in ticks:
        record.apply(
            Ticked(t_s=t_s, span_s=0.25, stages={}, client=ClientDelta(reads=4, output_tokens=tokens), held=held)
        )
    assert _quiet_words(record) == text


def test_only_recent_ends_count_as_failing() -> None:
    record = Record()
    record.apply(started())
    for t_s, failed, completed in ((1.0, 50, 0), (2.0, 3, 1), (12.5, 0, 2)):
        delta = StageDelta(warmup_failed=failed)
        record.apply(Ticked(t_s=t_s, span_s=1.0, stages={0: delta}, client=ClientDelta(requests=completed), held=4))
        ends = record.timeline.recent_ends()
        assert ends == ((0, 2) if t_s > 10 else (50, 0) if t_s < 2 else (53, 1))


def test_many_ticks_at_one_moment_cost_one_window() -> None:
    """A journal from others may say so; before, each tick summed all before it."""
    record = Record()
    record.apply(started())
    for _ in range(1000):
        record.apply(Ticked(t_s=1.0, span_s=0.25, stages={}, client=ClientDelta(requests=1), held=4))
    assert record.timeline.recent_ends()[1] == 2 * RECENT_S / SNAPSHOT_S


def test_the_share_of_the_peak_is_that_of_the_servers_gpus() -> None:
    names = ("AMD Instinct MI300X", "AMD Instinct MI210")
    gpus = tuple(GpuStatic(index=index, vendor="amd", name=name) for index, name in enumerate(names))
    command = ["vllm", "serve", "m", "--dtype", "bfloat16"]
    engine = EngineView(tflops_per_gpu=130.74)
    tick = Ticked(t_s=1.0, span_s=0.25, stages={}, client=ClientDelta(), held=0, queued=0, engine=engine)
    record = Record()
    for line in (
        TelemetryChanged(0.0, gpus, {}),
        ServerChanged(0.0, "ready", "vllm", "http://localhost", command=command),
        DevicesChosen(0.0, ServerDevices((0,), "given")),
        tick,
    ):
        record.apply(line)
    compute = _compute(record)
    assert compute is not None and compute.mfu_percent == pytest.approx(10.0)


def test_silence_is_the_headline_also_while_streams_wait_in_a_pause() -> None:
    record = Record()
    record.apply(STARTED)
    record.apply(ServerChanged(0.0, "ready", "vllm", ""))
    frozen = EngineView(running=2.0, generation_tokens_per_s=0.0)
    for t_s in range(40):
        record.apply(Ticked(t_s=t_s, span_s=1.0, stages={}, client=ClientDelta(), held=2, engine=frozen))
    server = ServerView(engine="vllm", url="", state="ready")
    load = LoadView(stage=1, stages_planned=1, concurrency=2, rate=None, held=2, queued=0, isl=1, osl=1)
    for phase, silent in (("running", True), ("paused", True), ("draining", True), ("stopping", False)):
        shown = snapshot_of(
            record,
            ShownStages(),
            t_s=40.0,
            unix_s=0.0,
            profile="p",
            phase=phase,  # type: ignore[arg-type]
            server=server,
            load=load,
            workers=1,
            telemetry="",
        )
        assert shown.headline.startswith("no output for 39 s") is silent, phase
        assert not shown.healthy
