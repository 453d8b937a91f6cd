"""A worker's driver against servers that read late, hang up or refuse, and clocks that are stepped."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from loadgen.plan.stage import Stage
from loadgen.stream.request import Cancellation, ServerAddress, SessionHeaders, common_fields, request_template
from loadgen.stream.transport import Sockets
from loadgen.worker import driver as driver_module
from loadgen.worker.driver import Driver
from loadgen.worker.messages import BeginStage, Configure, Vocabulary, prompts_of
from loadgen.workload.sessions.data import SessionData, Sessions
from loadgen.workload.work import Work
from tests.server.fakes import eventually

_EVENTS = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(_EVENTS), _EVENTS)


def settings(listener: socket.socket, **changes: object) -> Configure:
    return settings_for(ServerAddress(int(listener.family), *listener.getsockname()[:2]), **changes)


def settings_for(address: ServerAddress, **changes: object) -> Configure:
    given: Any = {"timeout_s": 60, "stall_timeout_s": 60, "connect_timeout_s": 10}
    return Configure(address=address, seed=1, **{"vocabulary": Vocabulary(ids=(10, 11, 12)), **given, **changes})


def command(
    configured: Configure,
    stage: Stage,
    *,
    cancel: Cancellation | None = None,
    headers: SessionHeaders | None = None,
    **changes: Any,
) -> BeginStage:
    """To begin a stage now, as the first one and on one worker, unless `changes` say otherwise."""
    fields = common_fields("completions", model="m", temperature=0.0, options={}, extra={})
    url = f"http://{configured.address.ip}:{configured.address.port}"
    template = request_template(url, "completions", fields, osl=stage.osl, api_key=None)
    template = msgspec.structs.replace(template, cancel=cancel, headers=headers)
    given: dict[str, Any] = {"index": 0, "template": template, "rank": 0, "ranks": 1, "start_ns": time.monotonic_ns()}
    return BeginStage(stage=stage, **given | changes)


@asynccontextmanager
async def driven(configured: Configure, stage: Stage, **changes: Any) -> AsyncIterator[Driver]:
    """A driver whose stage has been told to begin."""
    driver = Driver(configured, prompts_of(configured.vocabulary, configured.seed), None)
    driver.begin_stage(command(configured, stage, **changes))
    try:
        yield driver
    finally:
        driver.end_load(abort=True)
        driver.sockets.close()


@asynccontextmanager
async def serving(
    answer: Callable[[bytes], bool] = lambda _: True,
    reads: asyncio.Event | None = None,
    *,
    keeps_alive: bool = True,
    heads: list[bytes] | None = None,
) -> AsyncIterator[socket.socket]:
    """A server that reads at once or when `reads` is set, and hangs up on a request that `answer` declines.

    `heads` takes those of the requests, whose number is then in a header of the answers. Unless it `keeps_alive`, it
    closes each connection after an answer. At the end its connections are over, because the client has closed them.
    """
    tasks: list[asyncio.Task[None]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reads is not None:
            await reads.wait()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while answer(await read_request(reader, heads)):
                token = b"" if heads is None else b"\r\nX-Session-Token: t%d" % len(heads)
                writer.write(ANSWER.replace(b"\r\n\r\n", token + b"\r\n\r\n", 1))
                if not keeps_alive:
                    break
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(handle(reader, writer)))

    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(accepted, sock=listener):
        yield listener
        await asyncio.gather(*tasks)


async def read_request(reader: asyncio.StreamReader, heads: list[bytes] | None = None) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if heads is not None:
        heads.append(head)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


class DeclinesTheSecond:
    """As a server whose idle connection has just timed out; keeps the bodies of all requests."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, body: bytes) -> bool:
        self.bodies.append(body)
        return len(self.bodies) != 2


class Held:
    """Connections take as long as the test wants: a real network would decide that by itself."""

    def __init__(self, sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.go_on = asyncio.Event()
        self._connect = sockets.connect
        monkeypatch.setattr(sockets, "connect", self.connect)

    async def connect(self, *args: Any) -> None:
        self.count += 1
        await self.go_on.wait()
        await self._connect(*args)


def finished(driver: Driver) -> bool:
    return driver.current is not None and driver.current.finished


async def test_long_prompts_are_sent_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads at first: what the kernel does not take stays in memory, but not of all streams."""
    monkeypatch.setattr(driver_module, "MAX_UNSENT_BYTES", 20_000_000)
    reads = asyncio.Event()
    sizes: list[int] = []

    def answer(body: bytes) -> bool:
        sizes.append(len(body))
        return True

    stage = Stage(concurrency=12, rate=None, isl=3_000_000, osl=1, requests=12)
    async with serving(answer, reads) as listener, driven(settings(listener), stage) as driver:
        await eventually(lambda: driver.sockets.unsent_bytes > 20_000_000)
        assert len(driver.open) < 12
        assert driver.sockets.unsent_bytes < 40_000_000
        assert all(channel.stream is not None and channel.stream.wire == b"" for channel in driver.open)
        reads.set()
        await eventually(lambda: finished(driver))
        assert (len(sizes), min(sizes) > 9_000_000, driver.sockets.unsent_bytes) == (12, True, 0)
        assert driver.stages[0].drain().completed == 12


async def test_a_request_is_written_again_where_an_idle_connection_was_closed() -> None:
    """The second request finds its connection closed before any answer, as by a server's keep-alive timeout."""
    answer = DeclinesTheSecond()
    stage = Stage(concurrency=1, rate=None, isl=16, osl=1, requests=2)
    async with serving(answer) as listener, driven(settings(listener), stage) as driver:
        await eventually(lambda: finished(driver))
        delta = driver.stages[0].drain()
    assert (delta.completed, delta.failed, delta.retried) == (2, 0, 1)
    assert (len(answer.bodies), answer.bodies[1]) == (3, answer.bodies[2])


async def test_a_conversation_repeats_the_token_of_its_first_response() -> None:
    heads: list[bytes] = []
    stage = Stage(concurrency=1, rate=None, isl=16, osl=1, requests=4, work=Work(turns=2))
    names = SessionHeaders(session="X-Session-ID", echo="x-session-token")
    async with serving(heads=heads) as listener:
        configured = settings(listener, echo_header="x-session-token")
        async with driven(configured, stage, headers=names) as driver:
            await eventually(lambda: finished(driver))
    named = [
        [line for line in request.decode().split("\r\n") if line.lower().startswith("x-session")] for request in heads
    ]
    first, second = "X-Session-ID: 1-0-0", "X-Session-ID: 1-0-1"
    assert named == [[first], [first, "x-session-token: t1"], [second], [second, "x-session-token: t3"]]


async def test_closed_connections_are_reopened_before_a_stage() -> None:
    """As after five seconds of low load on uvicorn: otherwise all would be opened at once when the stage begins."""
    stage = Stage(concurrency=3, rate=None, isl=16, osl=1, requests=3)
    async with (
        serving(keeps_alive=False) as listener,
        driven(settings(listener), stage) as driver,
    ):
        await eventually(lambda: finished(driver) and not driver.sockets.plain)
        later_ns = time.monotonic_ns() + 3_600_000_000_000
        driver.begin_stage(command(settings(listener), stage, index=1, start_ns=later_ns))
        await eventually(lambda: driver.client.connects == 6)
        assert driver.current is driver.stages[0]


async def test_a_stage_fills_after_the_connects_of_the_one_before_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(concurrency=2, rate=None, isl=16, osl=1)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        async with driven(settings(deaf), stage) as driver:
            await eventually(lambda: 0 in driver.stages and "connect" in driver.stages[0].samples.messages)
            held = Held(driver.sockets, monkeypatch)
            await eventually(lambda: held.count == 2)
            driver.begin_stage(command(settings(deaf), stage, index=1))
            await eventually(lambda: 1 in driver.stages)
            assert "connect" not in driver.stages[1].samples.messages
            held.go_on.set()
            await eventually(lambda: "connect" in driver.stages[1].samples.messages)


async def test_stage_without_a_transient_is_measured_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(concurrency=2, rate=None, isl=16, osl=1, settle_s=1.0)
    async with serving() as listener:
        configured = settings(listener)
        driver = Driver(configured, prompts_of(configured.vocabulary, configured.seed), None)
        held = Held(driver.sockets, monkeypatch)
        driver.begin_stage(command(configured, stage, waits=True))
        await eventually(lambda: held.count == 2)
        driver.open_window(0)
        assert driver.current is None
        held.go_on.set()
        await eventually(lambda: driver.current is not None)
        assert driver.stages[0].window.is_open
        driver.end_load(abort=True)
        driver.sockets.close()


async def test_a_clock_step_is_noted_for_a_stream_that_waits_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = asyncio.Event()
    stage = Stage(concurrency=1, rate=None, isl=16, osl=1, requests=2)
    async with serving(DeclinesTheSecond(), reads) as listener, driven(settings(listener), stage) as driver:
        await eventually(lambda: bool(driver.open))
        held = Held(driver.sockets, monkeypatch)
        reads.set()
        await eventually(lambda: held.count == 1)
        driver.discard_times()
        held.go_on.set()
        await eventually(lambda: finished(driver))
        delta = driver.stages[0].drain()
    assert (delta.completed, delta.retried, delta.clock_steps, delta.latency) == (2, 1, 2, {})


async def test_no_request_seems_early_after_the_wall_clock_was_stepped_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(concurrency=None, rate=20.0, max_concurrency=1, isl=16, osl=1, arrival="constant")
    async with serving() as listener, driven(settings(listener), stage) as driver:
        await eventually(lambda: driver.client.requests > 0 and not driver.open)
        now_ns = time.time_ns
        # The clock of this process cannot be stepped otherwise.
        monkeypatch.setattr("time.time_ns", lambda: now_ns() - 3_600_000_000_000)
        driver.discard_times()
        assert driver.client.send_lag_ns == driver.client.read_lag_ns == []
        await eventually(lambda: bool(driver.client.send_lag_ns))
        assert driver.client.send_lag_ns[0] >= 0


async def test_conversations_that_clients_abandon() -> None:
    reads = asyncio.Event()
    stage = Stage(concurrency=1, rate=None, isl=16, osl=1, work=Work(turns=2))
    cancel = Cancellation(share=1.0, after_s=0.001)
    async with serving(lambda _: False, reads) as listener, driven(settings(listener), stage, cancel=cancel) as driver:
        await eventually(lambda: 0 in driver.stages and driver.stages[0].samples.cancelled >= 3)
        run = driver.stages[0]
        assert len(run.samples.ttft_censored_ns) == run.samples.cancelled
        # One stream is open. Nothing else tells what is kept.
        assert len(run._requests._written) <= 1
        reads.set()


async def test_conversations_that_lose_the_server_keep_nothing() -> None:
    """The first turn is answered, the second is not, and a new connection is refused."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ANSWER)
        await read_request(reader)
        server.close()
        writer.close()

    listener = socket.create_server(("127.0.0.1", 0))
    configured = settings(listener)
    server = await asyncio.start_server(handle, sock=listener)
    stage = Stage(concurrency=1, rate=None, isl=16, osl=1, work=Work(turns=3))
    async with server, driven(configured, stage) as driver:
        await eventually(lambda: 0 in driver.stages and driver.stages[0].samples.failed >= 3)
        run = driver.stages[0]
        assert run.samples.retried == 1
        assert run._requests._written == {}
        assert not run.prepare_one(0)


async def test_sessions_after_a_stage_without_load_are_others() -> None:
    """The server's cache may still have the earlier ones."""
    sessions = Sessions(SessionData(form="generated", sessions=50, seed=2, scale=0.001), max_gap_s=0.0)
    stage = Stage(concurrency=2, rate=None, isl=8, osl=4, work=Work(sessions=sessions))

    def numbers(driver: Driver) -> set[int]:
        live = driver.sessions
        return set() if live is None else {row.session for row in live.now().rows}

    async with serving() as listener:
        configured = settings(listener)
        async with driven(configured, stage) as driver:
            await eventually(lambda: len(numbers(driver)) == 2)
            before = numbers(driver)
            driver.end_load(abort=False, ends_sessions=True)
            driver.begin_stage(command(configured, stage, index=1))
            await eventually(lambda: len(numbers(driver)) == 2)
            assert min(numbers(driver)) > max(before)
