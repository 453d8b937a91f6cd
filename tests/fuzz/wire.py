"""Readers of what engines, watchers, hosts and vramp's own processes send."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import time
from collections.abc import AsyncIterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import httpx
import msgspec
from prometheus_client import CollectorRegistry, make_wsgi_app

import loadgen
from loadgen.cluster.dask_worker import JoinOrders
from loadgen.cluster.messages import Mailbox, Report, ToHost, decode_from_host, decode_to_host, encode
from loadgen.cluster.ssh import HostProcess, find_vramp
from loadgen.errors import ServerError, TelemetryError
from loadgen.fleet.host import Host, Pipe
from loadgen.fleet.worker import Worker
from loadgen.run.canary import METHODS, read_answer, read_score
from loadgen.run.metrics_port import _Handler
from loadgen.run.operations import Operation
from loadgen.run.remote import SnapshotServer, _read
from loadgen.schema.deltas import StageDelta
from loadgen.schema.snapshot import Snapshot
from loadgen.server.engines.figures import view_of
from loadgen.server.engines.names import EngineSample
from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.server.process import guard_client
from loadgen.server.vllm.client import _TOKENIZE, ServerClient, _reported
from loadgen.simulator.api import Api
from loadgen.simulator.http import Connection, HttpServer
from loadgen.simulator.physics import PRESETS
from loadgen.simulator.service import Service
from loadgen.stream.channel import Channel
from loadgen.stream.events import Event, EventSplitter, single_event, text_of
from loadgen.stream.samples import ClientSamples, StageSamples
from loadgen.stream.stream import Stream
from loadgen.telemetry.process import Child
from loadgen.telemetry.protocol import Opened, Sampled, encode_line
from loadgen.worker.messages import TICK_NS
from tests.fuzz.checks import done, event_loop, require_amounts, require_finite, require_same, require_showable, scratch

_SENT_NS = 1_000_000_000
_LONGEST = 1 << 62
_DRAINED_OF = 32  # it takes longer than all else


# The timed path.


def stream(data: bytes) -> str:
    """A response, whole and in reads that are cut somewhere."""
    (whole, one), (pieces, other) = _streamed(data, []), _streamed(data, _cuts(data))
    require_same((one.done, one.output_tokens, one.events), (other.done, other.output_tokens, other.events))
    require_same(tuple(whole.errors), tuple(pieces.errors))
    return ",".join(whole.errors) or "completed"


def _streamed(data: bytes, cuts: list[int]) -> tuple[StageSamples, Stream]:
    client, samples, ended = ClientSamples(), StageSamples(is_open=True), list[Stream]()
    channel = Channel(client, lambda _, stream, __: ended.append(stream), lambda _, stream: ended.append(stream))
    channel.write = lambda _: True
    channel.usable = True
    stream = Stream(stage=0, samples=samples, wire=b"POST", intended_ns=0, pieces=[] if cuts else None)
    channel.begin(stream)
    stream.sent_ns = stream.last_ns = _SENT_NS
    for number, (low, high) in enumerate(pairwise([0, *cuts, len(data)])):
        if channel.stream is not None:
            channel.feed(data[low:high], _SENT_NS + (number + 1) * 1_000_000)
    if channel.stream is not None:
        channel.lost("reset", "over")
    assert len(ended) == 1
    if stream.pieces is not None:
        "".join(text_of(piece) or "" for piece in stream.pieces)
    _require_countable(samples, client)
    if not crc32(data) % _DRAINED_OF:
        delta = samples.drain()
        require_amounts(delta)
        require_amounts(client.drain(0))
        require_same(delta, msgspec.json.decode(msgspec.json.encode(delta), type=StageDelta))
    return samples, ended[0]


def _require_countable(samples: StageSamples, client: ClientSamples) -> None:
    """What is reported and counted at the next tick is within what it can hold."""
    for message in (message for kept in samples.messages.values() for message in kept):
        require_showable(message)
    for gap in samples.odd_gaps:
        assert all(-_LONGEST < part < _LONGEST for part in gap), gap
    counts = (samples.input_tokens, samples.output_tokens, samples.completed, samples.failed, client.input_tokens)
    assert min(*counts, client.output_tokens) >= 0, counts


def _cuts(data: bytes) -> list[int]:
    random = Random(crc32(data))
    return sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(1, 5)))


def events(data: bytes) -> list[Event]:
    """A body, whole and in pieces."""
    whole, pieces = EventSplitter(), EventSplitter()
    found = whole.feed(data)
    parts = [pieces.feed(data[low:high]) for low, high in pairwise([0, *_cuts(data), len(data)])]
    require_same(found, [event for part in parts for event in part])
    single = single_event(data)
    assert single is None or found == [single]
    return found


# What else an engine answers.


def engine_metrics(data: bytes) -> EngineSample:
    sample = parse_engine_metrics(data.decode("utf-8", "replace"))
    for before in (None, EngineSample(), sample):
        view = view_of(before, sample, 1.0)
        require_finite(view)
        msgspec.json.encode(view)
    for name in sample.engines:
        require_showable(name)
    return sample


@cache
def _client() -> ServerClient:
    return ServerClient("http://127.0.0.1:8000")


def server_answers(data: bytes) -> object:
    """The same bytes as the answer to each question."""
    require_showable(_reported(data))
    client = _client()
    answer = httpx.Response(200, content=data, request=httpx.Request("GET", "http://127.0.0.1:8000/x"))

    async def answered(*_: object, **__: object) -> httpx.Response:
        return answer

    client._send = answered  # type: ignore[method-assign]  # no socket for a million answers
    client._schemas = dict(_TOKENIZE)
    found: list[Any] = []
    tokenize = partial(client.tokenize_text, "m", "text"), partial(client.tokenize_messages, "m", [])
    for ask in (client.models, client.version, *tokenize):
        try:
            found.append(done(ask()))
        except ServerError as error:
            require_showable(str(error))
    if not found:
        raise ServerError("none of these")
    for model in found[0] if isinstance(found[0], list) and found[0] and hasattr(found[0][0], "id") else ():
        assert model.max_model_len is None or model.max_model_len > 0
    return type(found[0]).__name__


def score(data: bytes) -> object:
    found = []
    for method in METHODS:
        try:
            found.append(read_score(method, data))
        except ValueError as error:
            assert str(error)
    for one in found:
        require_finite(one)
        assert one.mean <= 0
        require_amounts(one[1:])
    if not found:
        raise ValueError("no score")
    return found


def canary_answer(data: bytes) -> object:
    answer = read_answer(data)
    require_amounts((answer.usage.prompt_tokens or 0, answer.usage.completion_tokens or 0))
    msgspec.json.encode(answer.text)
    return answer


# The simulator.


@cache
def _simulated() -> tuple[Service, HttpServer]:
    service = Service(event_loop(), PRESETS["fast"], model="simulated", seed=1, faults=[])
    service.submit = lambda *_: None  # type: ignore[method-assign]  # nobody waits for its tokens here
    return service, HttpServer(event_loop(), Api(service).handle)


def simulator(data: bytes) -> bytes:
    """Requests to the simulator on a connection, up to its first answers; returns those."""
    service, server = _simulated()
    ours, theirs = socket.socketpair()
    with ours:
        theirs.setblocking(False)
        ours.setblocking(False)
        sent = ours.send(data[: 1 << 16])
        connection = Connection(server, theirs)
        if sent:
            connection._readable()
        try:
            answer = ours.recv(1 << 16)
        except BlockingIOError:
            answer = b""
        connection.lost()
    # What the connection leaves to the loop, which holds it until then.
    server.loop.call_soon(server.loop.stop)
    server.loop.run_forever()
    service.truth.reset()
    service.faults = []
    return answer[:20]


# Watchers.


def _fed(data: bytes, limit: int = 1 << 26) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=limit, loop=event_loop())
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def snapshots(data: bytes) -> int:
    """What a watcher reads from a run's socket."""

    async def read() -> list[Snapshot]:
        return [snapshot async for snapshot in _read(_fed(data), Path("runs/x"))]

    found = done(read())
    for snapshot in found:
        msgspec.json.encode(snapshot)
    return len(found)


def operations(data: bytes) -> int:
    """What a run reads from a watcher."""
    requested: list[Operation] = []
    server = SnapshotServer(scratch(), apply=requested.append, past=tuple)
    done(server._visit(_fed(data), cast("asyncio.StreamWriter", _NoWriter())))
    for operation in requested:
        require_finite(operation)
    return len(requested)


class _NoWriter:
    """A connection's other direction, of which nothing is read."""

    def write(self, data: bytes) -> None:
        return

    def close(self) -> None:
        return

    async def wait_closed(self) -> None:
        return


def metrics_port(data: bytes) -> bytes:
    """A request to the port for Prometheus, without the socket."""
    app = make_wsgi_app(CollectorRegistry())
    answer = io.BytesIO()
    connection = SimpleNamespace(
        makefile=lambda *_: io.BytesIO(data),
        sendall=answer.write,
        settimeout=lambda _: None,
        setsockopt=lambda *_: None,
    )
    server = SimpleNamespace(
        server_name="x", server_port=1, get_app=lambda: app, base_environ={"SERVER_NAME": "x", "SERVER_PORT": "1"}
    )
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        _Handler(connection, ("127.0.0.1", 1), server)  # type: ignore[arg-type]  # stands in for a socket
    assert not said.getvalue(), "it belongs to the screen"
    return answer.getvalue()[:20]


# vramp's own processes.


class _NoPipe:
    """A worker's pipe that only notes whether it was killed: nothing is started here."""

    pid = None
    killed = False

    def write(self, line: bytes) -> None:
        return

    def kill(self) -> None:
        self.killed = True


def tick(data: bytes) -> str | None:
    """A line of a worker; one that is none ends the worker, and returns why."""
    host = cast("Host", SimpleNamespace(name="", lost=None, moved_ns=0, offset_ns=0, uncertainty_ns=0))
    worker = Worker(0, 0, host, cast("Pipe", _NoPipe()), lambda: None)
    worker._last_number = 0
    worker._hear(data)
    for one in worker.take():
        assert one.number <= time.monotonic_ns() // TICK_NS + 1
        for delta in one.stages.values():
            StageDelta.__struct_fields__  # noqa: B018 - it has the type that the merge expects
            msgspec.json.encode(delta)
    return worker.take_death() and "ended"


def telemetry_line(data: bytes) -> object:
    """A line of a child that measures GPUs."""
    child = Child.__new__(Child)
    child._reader, child._second, child._lines, child._bytes = _fed(data, 1 << 20), 0.0, 0, 0
    child._process = cast("Any", SimpleNamespace(poll=lambda: 0, returncode=0))
    child._log_path, child._log_start = scratch() / "no.log", 0
    try:
        line: Opened | Sampled = done(child._line(5.0))
    except TelemetryError as error:
        require_showable(str(error))
        raise
    require_finite(line.gpus)
    encode_line(line)
    return type(line).__name__


def guard_events(data: bytes) -> int:
    """What the guard reports, as far as it says something."""

    async def read() -> int:
        return len([event async for event in guard_client.events(cast("Any", SimpleNamespace(stdout=pipe)))])

    ours, theirs = socket.socketpair()
    with ours, theirs.makefile("rb", buffering=0) as pipe:
        theirs.close()
        ours.setblocking(False)
        ours.send(data[: 1 << 16] or b"\n")
        ours.shutdown(socket.SHUT_WR)
        return int(done(read()))


# Hosts of a cluster.


def host_messages(data: bytes) -> object:
    """What an actor and the operator's vramp say to each other."""
    try:
        said: Any = decode_to_host(data)
    except (ValueError, RecursionError):
        said = decode_from_host(data)
    items = said.orders if isinstance(said, ToHost) else said.reports
    Mailbox[Any, Any]().take(said.first, items, said.confirmed)
    for report in items:
        if isinstance(report, Report):
            tick(report.line)
    encode(said)
    return type(said).__name__


def host_facts(data: bytes) -> object:
    """What a shell on a host prints when it is looked at; in kept inputs, `@VERSION@` is that of this vramp."""
    data = data.replace(b"@VERSION@", loadgen.__version__.encode())
    out, _, errors = data.decode("utf-8", "replace").partition("\n--\n")
    printed = SimpleNamespace(stdout=out, stderr=errors, exit_status=0)

    async def run(*_: object, **__: object) -> object:
        return printed

    connection = SimpleNamespace(run=run, get_extra_info=lambda *_: ("10.0.0.1", 22))
    host = done(find_vramp("host", cast("Any", connection), None))
    require_finite(host.facts)
    return "facts"


def host_answer(data: bytes) -> str:
    """The first line of a Dask worker on a host."""

    async def lines() -> AsyncIterator[str]:
        for line in data.decode("utf-8", "replace").splitlines(keepends=True):
            yield line

    async def over() -> None:
        return

    process = HostProcess.__new__(HostProcess)
    process._process = cast("Any", SimpleNamespace(stdout=lines(), stdin=SimpleNamespace(write=len), wait_closed=over))
    process._host = cast("Any", SimpleNamespace(name="host"))
    process._log = cast("Any", ["said"])
    return str(done(process.begin(JoinOrders("a", "b", "c", 0, "d"))))
