"""A run that is watched from elsewhere: what watchers see, what they may, and that the run does not care."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ResultError
from loadgen.metrics.series import TimeSeries
from loadgen.plan.request import PlanRequest
from loadgen.run import remote
from loadgen.run.operations import (
    Abort,
    Extend,
    FollowPlan,
    Hold,
    NextStage,
    Note,
    Operation,
    Pause,
    Redo,
    Restart,
    Resume,
    SetConcurrency,
    SetRate,
    SetShape,
    ShowProcesses,
    StartAnyway,
    Stop,
    TakeEvidence,
)
from loadgen.run.remote import SOCKET, Hello, RemoteRun, SnapshotServer, points_of
from loadgen.schema.snapshot import SeriesPoint, Snapshot
from tests.engines import Simulator, attach
from tests.run.driving import finish, flowing, once, run_of
from tests.tui.scripted import ScriptedRun, running

PAST = (SeriesPoint(t_s=1.0), SeriesPoint(t_s=2.0))


@asynccontextmanager
async def offered(folder: Path) -> AsyncIterator[tuple[SnapshotServer, ScriptedRun]]:
    run = ScriptedRun()
    offer = SnapshotServer(folder, apply=run.apply, past=lambda: PAST)
    assert await offer.open() is None
    try:
        yield offer, run
    finally:
        await offer.close()


async def raw(folder: Path, *lines: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A watcher that says what it likes."""
    reader, writer = await asyncio.open_unix_connection(folder / SOCKET, limit=1 << 24)
    writer.writelines(lines)
    return reader, writer


def encoded(message: Hello | Operation) -> bytes:
    return msgspec.json.encode(message) + b"\n"


async def until_ended(reader: asyncio.StreamReader) -> bytes:
    """Everything that comes until the run hangs up."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


# A real run.


async def test_a_watcher_sees_what_the_run_shows_and_steers_it(engine: Simulator) -> None:
    run = run_of(attach(engine, load={"requests": None, "duration": "30s"}))
    started = asyncio.Event()
    driving = asyncio.create_task(finish(run, once(flowing, lambda _: started.set())))
    await started.wait()
    distant = RemoteRun(run.folder, steers=True)
    seen: list[Snapshot] = []
    async for snapshot in distant.snapshots():
        if not seen:
            distant.apply(SetConcurrency(3))
            distant.apply(Note("from elsewhere"))
        if snapshot.load.concurrency == 3:
            distant.apply(Stop())
        seen.append(snapshot)
    result = await driving
    assert seen[0].past[-1].t_s <= seen[0].point.t_s
    assert not any(snapshot.past for snapshot in seen[1:])
    assert seen[-1].phase == "done"
    assert seen[-1].events == tuple(result.events)
    assert ("load", "conc 4 -> conc 3") in [(event.kind, event.text) for event in result.events]
    assert ("note", "from elsewhere") in [(event.kind, event.text) for event in result.events]
    assert [stage.target.concurrency for stage in result.stages] == [4, 3]
    assert not (run.folder / SOCKET).exists()


async def test_a_run_whose_process_dies_is_shown_as_gone(tmp_path: Path) -> None:
    words = ["run", "simulator", "--concurrency", "2", "--duration", "60s", "--telemetry", "off", "--force"]
    command = [sys.executable, "-m", "tui.cli", *words, "--set", "server.args.startup-s=0.1"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while b"conc 2" not in await process.stderr.readline():
        assert not process.stderr.at_eof()
    (folder,) = (tmp_path / "runs").iterdir()
    seen: list[Snapshot] = []
    async for snapshot in RemoteRun(folder).snapshots():
        if not seen:
            os.kill(process.pid, signal.SIGKILL)
        seen.append(snapshot)
    await process.communicate()
    assert (seen[-1].phase, seen[-1].healthy) == ("done", False)
    assert "the run's process is gone" in seen[-1].headline
    with pytest.raises(ResultError, match="nothing runs there"):
        await anext(RemoteRun(folder).snapshots())


# The socket.


async def test_only_the_owner_may_come_in_however_long_the_path(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120) / ("b" * 120)
    folder.mkdir(parents=True)
    async with offered(folder) as (offer, _), aclosing(RemoteRun(folder).snapshots()) as watcher:
        offer.publish(running())
        assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o600
        assert (await anext(watcher)).past == PAST


async def test_a_folder_that_takes_no_socket_costs_only_the_watching(tmp_path: Path) -> None:
    (tmp_path / SOCKET).touch()
    offer = SnapshotServer(tmp_path, apply=ScriptedRun().apply, past=lambda: ())
    assert "cannot be watched" in (await offer.open() or "")
    offer.publish(running())
    await offer.close()


async def test_a_watcher_that_does_not_read_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FAREWELL_S", 0.05)
    async with offered(tmp_path) as (offer, _), aclosing(RemoteRun(tmp_path).snapshots()) as watcher:
        offer.publish(running())
        _, writer = await raw(tmp_path, encoded(Hello(steers=False)))
        await anext(watcher)
        big = running(headline="x" * 1_000_000)
        for number in range(50):
            offer.publish(msgspec.structs.replace(big, t_s=float(number)))
            assert (await anext(watcher)).t_s == number
        waiting = [each.transport.get_write_buffer_size() for each in offer._watchers]
        assert len(waiting) == 2
        assert max(waiting) < 2_000_000
        offer.publish(running(phase="done"))
        assert (await anext(watcher)).phase == "done"
        await offer.close()
        writer.close()


async def test_who_reads_late_still_gets_the_last(tmp_path: Path) -> None:
    async with offered(tmp_path) as (offer, _):
        offer.publish(running())
        reader, writer = await raw(tmp_path, encoded(Hello(steers=False)))
        await reader.readline()
        for _ in range(3):
            offer.publish(running(headline="x" * 1_000_000))
        offer.publish(running(phase="done"))
        closing = asyncio.create_task(offer.close())
        lines = (await until_ended(reader)).splitlines()
        await closing
        assert len(lines) == 2
        assert msgspec.json.decode(lines[-1], type=Snapshot).phase == "done"
        writer.close()


@pytest.mark.parametrize("turns", range(5))
async def test_who_comes_while_the_run_ends_is_not_left_behind(tmp_path: Path, turns: int) -> None:
    others = asyncio.all_tasks()
    with socket.socket(socket.AF_UNIX) as visitor:
        async with offered(tmp_path):
            visitor.connect(str(tmp_path / SOCKET))
            for _ in range(turns):
                await asyncio.sleep(0)
        assert asyncio.all_tasks() == others


async def test_another_version_is_distinguished(tmp_path: Path) -> None:
    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"other": 1}\n')
        writer.close()

    async with await asyncio.start_unix_server(speak, tmp_path / SOCKET):
        with pytest.raises(ResultError, match="another version of vramp"):
            await anext(RemoteRun(tmp_path).snapshots())


async def test_a_line_without_an_end_is_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 5000)
        writer.close()
        await writer.wait_closed()

    monkeypatch.setattr(remote, "_MAX_SNAPSHOT", 1000)
    async with (
        await asyncio.start_unix_server(endless, tmp_path / SOCKET),
        aclosing(RemoteRun(tmp_path).snapshots()) as snapshots,
    ):
        with pytest.raises(ResultError, match="another version of vramp: Separator is not found"):
            await anext(snapshots)


# What is asked for.


OPERATIONS: list[Operation] = [
    StartAnyway(), SetConcurrency(1), SetRate(2.5), SetShape(4096, 1024), Hold(), Pause(), Resume(), NextStage(),
    FollowPlan(PlanRequest("ladder", loads=(8.0, 16.0))), Extend(), Redo(), Note("from elsewhere"),
    TakeEvidence(), ShowProcesses(), Restart(), Restart("small"), Abort(), Stop(),
]  # fmt: skip


async def test_what_the_cockpit_can_ask_for_a_watcher_can(tmp_path: Path) -> None:
    assert {type(operation) for operation in OPERATIONS} == set(get_args(Operation))
    async with offered(tmp_path) as (offer, run):
        distant = RemoteRun(tmp_path, steers=True)
        async with aclosing(distant.snapshots()) as watcher:
            offer.publish(running())
            await anext(watcher)
            for operation in OPERATIONS:
                distant.apply(operation)
            async with asyncio.timeout(10):
                while len(run.calls) < len(OPERATIONS):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        assert run.calls == OPERATIONS


@pytest.mark.parametrize(
    "line",
    [
        {"type": "Close"},
        {"type": "__init__"},
        {"type": "snapshots"},
        {"type": "SetConcurrency"},
        {"type": "SetConcurrency", "concurrency": "8"},
        {"type": "SetConcurrency", "concurrency": -1},
        {"type": "SetConcurrency", "concurrency": 8, "rate": 9},
        {"type": "SetRate", "requests_per_s": -1.0},
        {"type": "Note", "text": "x" * 2_000},
        b"pause\n",
        b"\xff\n",
        b"x" * 100_000,
    ],
)
async def test_a_client_that_breaks_the_protocol_is_disconnected(
    tmp_path: Path, line: bytes | dict[str, object]
) -> None:
    async with offered(tmp_path) as (_, run):
        words = line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n"
        reader, writer = await raw(tmp_path, encoded(Hello(steers=True)), words, encoded(Pause()))
        assert await until_ended(reader) == b""
        writer.close()
        assert run.calls == []


async def test_a_watcher_that_only_looks_sends_nothing(tmp_path: Path) -> None:
    async with offered(tmp_path) as (offer, run):
        distant = RemoteRun(tmp_path)
        async with aclosing(distant.snapshots()) as watcher:
            for t_s in (1.0, 2.0, 3.0, 4.0, 5.0):  # the run hangs up on who may not steer
                offer.publish(msgspec.structs.replace(running(), t_s=t_s))
                assert (await anext(watcher)).t_s == t_s
                distant.apply(Abort())
        assert run.calls == []


async def test_the_run_refuses_who_came_to_look(tmp_path: Path) -> None:
    async with offered(tmp_path) as (_, run):
        reader, writer = await raw(tmp_path, encoded(Hello(steers=False)), encoded(Abort()))
        assert await until_ended(reader) == b""
        writer.close()
        assert run.calls == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from([*(each.__name__ for each in get_args(Operation)), "Run", "__init__", "_abort"]) | st.text(),
    st.dictionaries(st.sampled_from(["concurrency", "isl", "osl", "text", "variant", "plan"]) | st.text(), json_values),
)
def test_nothing_else_can_be_requested(name: str, fields: dict[str, Any]) -> None:
    try:
        operation = remote.operations.decode(msgspec.json.encode(fields | {"type": name}))
    except msgspec.MsgspecError:
        return
    assert type(operation) in get_args(Operation)
    assert msgspec.to_builtins(operation).keys() - {"type"} >= fields.keys() - {"type"}


# The past.


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_no_extreme_of_the_past_is_lost(values: list[float]) -> None:
    series = TimeSeries(("output_tokens_per_s", "held"), capacity=40, kept_raw=10)
    for number, value in enumerate(values):
        series.add(number / 4, {"output_tokens_per_s": value, "held": 3})
    points = points_of(series)
    shown = np.array([point.output_tokens_per_s for point in points])
    assert (shown.min(), shown.max()) == (min(values), max(values))
    times = [point.t_s for point in points]
    assert times == sorted(set(times))
    assert {point.held for point in points} == {3}
