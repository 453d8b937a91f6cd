"""A fleet on several hosts, each with its actor and real workers; Dask between them is left out.

What carries the exchanges here is a call in this process, which a test can delay or cut.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from loadgen.cluster import actor as actor_module
from loadgen.cluster import link, messages
from loadgen.cluster.actor import HostActor
from loadgen.cluster.link import ClusterHost
from loadgen.fleet.fleet import Fleet
from loadgen.metrics.stage import StageMetrics
from loadgen.schema.shared import HostFacts
from loadgen.worker.messages import BeginStage, decode_command
from tests.cluster.relay import pass_on
from tests.engines import Simulator
from tests.fleet.test_fleet import Driven, start


class Wire:
    """Brings exchanges to an actor, unless it is cut."""

    def __init__(self) -> None:
        self.actor = HostActor(ends_process=False)
        self.whole = asyncio.Event()
        self.whole.set()
        self.calls = 0
        self.said: list[bytes] = []

    def stage_began(self) -> int:
        """When the first stage was to begin, by the host's clock."""
        orders = [order for text in self.said for order in messages.decode_to_host(text).orders]
        commands = [decode_command(order.line) for order in orders if order.do == "write"]
        return next(command.start_ns for command in commands if isinstance(command, BeginStage))

    async def exchange(self, message: bytes) -> bytes:
        self.calls += 1
        self.said.append(message)
        await self.whole.wait()
        answer = await self.actor.exchange(message)
        await self.whole.wait()
        return answer


def host(name: str, wire: Wire) -> ClusterHost:
    facts = HostFacts(name, name, name, name, "", 2.0, 1024, 28_000, "", "", "", "")
    return ClusterHost(facts, wire.exchange)


class Cluster:
    def __init__(self, run: Driven, hosts: list[ClusterHost], wires: list[Wire]) -> None:
        self.run = run
        self.hosts = hosts
        self.wires = wires


@asynccontextmanager
async def cluster(engine: Simulator, names: str = "ab", workers: int | None = None) -> AsyncIterator[Cluster]:
    wires = [Wire() for _ in names]
    hosts = [host(name, wire) for name, wire in zip(names, wires, strict=True)]
    fleet = Fleet(1)
    await asyncio.gather(*(one.start() for one in hosts))
    try:
        await start(fleet, engine, workers or len(hosts), hosts=hosts)
        await fleet.wait_ready()
        run = Driven(fleet, engine, 1)
        yield Cluster(run, hosts, wires)
    finally:
        for wire in wires:
            wire.whole.set()
        await fleet.close()
        for one, wire in zip(hosts, wires, strict=True):
            await one.close()
            await wire.actor.close()
    run.take(fleet.rest())
    assert fleet.size == 0


async def test_hosts_share_a_stage_and_their_parts_add_up(engine: Simulator) -> None:
    async with cluster(engine, "abc") as there:
        run = there.run
        run.begin(0, concurrency=9, requests=60)
        parts: list[StageMetrics] = [StageMetrics() for _ in "abc"]
        while True:
            tick = await run.until(lambda _: True)
            assert [part.workers for part in tick.hosts] == [1, 1, 1]
            for sums, of_host in zip(parts, tick.hosts, strict=True):
                for delta in of_host.stages.values():
                    sums.add(delta)
            if tick.finished == 0:
                break
        assert [part.counters["completed"] for part in parts] == [20, 20, 20]
        whole = StageMetrics()
        for part in parts:
            whole.merge(part)
        assert whole.encode().latency == run.stages[0].encode().latency
    assert run.deaths == []
    assert run.adds_up(0)


async def test_all_hosts_begin_a_stage_at_the_same_moment_and_none_earlier(engine: Simulator) -> None:
    async with cluster(engine) as there:
        run = there.run
        run.begin(0, concurrency=2)
        reported = {one.name: one.offset_ns for one in there.hosts}
        windows = [StageMetrics(), StageMetrics()]
        while any(sums.window_start_ns is None for sums in windows):
            tick = await run.until(lambda _: True)
            for sums, part in zip(windows, tick.hosts, strict=True):
                for delta in part.stages.values():
                    sums.add(delta)
        begins = [wire.stage_began() for wire in there.wires]
        # By our clock, as far as it was known when they were reported.
        assert begins[0] - reported["a"] == begins[1] - reported["b"]
        for one, sums, begin_ns in zip(there.hosts, windows, begins, strict=True):
            assert sums.window_start_ns is not None
            assert sums.window_start_ns + one.offset_ns >= begin_ns - 2 * one.uncertainty_ns
        run.fleet.end_load(abort=True)


async def test_the_clock_of_this_machine_has_no_offset(engine: Simulator) -> None:
    async with cluster(engine, "a") as there:
        tick = await there.run.until(lambda _: True)
        assert abs(tick.hosts[0].offset_ns) <= tick.hosts[0].uncertainty_ns
        assert tick.hosts[0].rtt_ns > 0
        assert tick.clock_moves == ()


async def test_streams_of_a_lost_host_are_lost_and_the_others_go_on(
    engine: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "LOST_S", 0.5)
    monkeypatch.setattr(link, "_ATTEMPT_S", 0.2)
    async with cluster(engine) as there:
        run = there.run
        run.begin(0, concurrency=8)
        await run.until(lambda tick: tick.held == 8)
        there.wires[0].whole.clear()
        tick = await run.until(lambda tick: tick.hosts[0].lost)
        tick = await run.until(lambda tick: tick.hosts[0].workers == 0)
        assert (tick.held, tick.hosts[1].workers, run.fleet.size) == (4, 1, 1)
        assert run.deaths == ["worker 0 on a was lost: a has not answered for 0.5 s; 4 streams are lost with it"]
        assert run.count(0, "lost") == 4
        # Once it answers again, its former workers are ended, and the next stage may use it.
        there.wires[0].whole.set()
        await run.until(lambda tick: not tick.hosts[0].lost)
        run.begin(1, concurrency=8)
        run.fleet.grow(2)
        await run.until(lambda tick: tick.hosts[0].workers == 1)
        run.begin(2, concurrency=8)
        await run.until(lambda tick: tick.hosts[0].held == 4 and tick.hosts[1].held == 4)
        run.fleet.end_load(abort=True)
        await run.until(lambda tick: not tick.held)


async def test_a_short_silence_loses_nothing(engine: Simulator) -> None:
    async with cluster(engine) as there:
        run, wire = there.run, there.wires[0]
        run.begin(0, concurrency=4)
        await run.until(lambda tick: tick.held == 4)
        wire.whole.clear()
        before = wire.calls
        await run.until(lambda _: wire.calls > before + 1)
        wire.whole.set()
        run.fleet.end_load(abort=False)
        await run.until(lambda tick: not tick.held)
    assert (run.count(0, "lost"), run.deaths) == (0, [])
    assert run.adds_up(0)


async def test_an_actor_that_nobody_calls_ends_its_workers(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_module, "SILENCE_S", 1.0)
    monkeypatch.setattr(link, "LOST_S", 0.5)
    monkeypatch.setattr(link, "_ATTEMPT_S", 0.2)
    async with cluster(engine, "a") as there:
        pipe = there.wires[0].actor._pipes[0]
        assert pipe.pid is not None
        there.wires[0].whole.clear()
        async with asyncio.timeout(30):
            await pipe._tasks[1]
        assert pipe.pid is None


async def test_a_worker_that_hears_nothing_ends_itself(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LIFELINE_S", 1.0)
    monkeypatch.setattr(actor_module, "_BEAT_S", 60.0)
    async with cluster(engine, "a") as there:
        await there.run.until(lambda tick: bool(tick.deaths))
        assert there.run.deaths == ["worker 0 on a died with status 1: heard nothing for 1 s"]


@asynccontextmanager
async def recorded(engine: Simulator) -> AsyncIterator[tuple[Simulator, list[bytearray]]]:
    """The simulator behind a relay that keeps what comes on each connection."""
    said: list[bytearray] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", int(engine.url.rpartition(":")[2]))
        said.append(bytearray())
        await asyncio.gather(pass_on(reader, back, 0.0, said[-1].extend), pass_on(there, writer, 0.0, lambda _: None))

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield Simulator(engine.process, [], f"http://127.0.0.1:{port}"), said


def bodies(said: Sequence[bytearray]) -> list[bytes]:
    """The bodies of all requests, in an order that does not depend on connections."""
    found = []
    for text in map(bytes, said):
        while text:
            head, _, rest = text.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            found.append(rest[:length])
            text = rest[length:]
    return sorted(found)


@pytest.mark.parametrize("load", [{"concurrency": 6}, {"rate": 200.0}])
async def test_the_requests_are_the_same_from_any_number_of_hosts(engine: Simulator, load: dict[str, float]) -> None:
    sent = []
    for names in ("a", "abc"):
        async with recorded(engine) as (relayed, said):
            async with cluster(relayed, names) as there:
                there.run.begin(0, requests=30, **load)
                await there.run.until(lambda tick: tick.finished == 0)
            assert there.run.count(0, "completed") == 30
        sent.append(bodies(said))
    assert len(set(sent[0])) == 30
    assert sent[0] == sent[1]
