"""The fleet on a simulator: it grows between stages, outlives its workers, and its shares stay even."""

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import WorkerError
from loadgen.fleet import fleet as fleet_module
from loadgen.fleet import host, worker
from loadgen.fleet.fleet import Fleet, FleetTick
from loadgen.fleet.host import LocalHost
from loadgen.metrics.stage import StageMetrics
from loadgen.plan.stage import Stage
from loadgen.stream.request import RequestTemplate, ServerAddress, common_fields, request_template
from loadgen.worker.messages import Configure, Vocabulary
from loadgen.workload.data import Dataset, index_dataset
from loadgen.workload.work import Work
from tests.engines import Simulator

pytestmark = pytest.mark.usefixtures("little_patience")

OSL = 20
OUTCOMES = ("completed", "failed", "cancelled", "unfinished", "carried_over")


class Driven:
    """A fleet and the sum of its ticks."""

    def __init__(self, fleet: Fleet, engine: Simulator, servers: int) -> None:
        self.fleet = fleet
        self.templates = [template(engine)] * servers
        self.stages: dict[int, StageMetrics] = {}
        self.instances: list[dict[int, StageMetrics]] = [{} for _ in range(servers)]
        self.deaths: list[str] = []
        self.news: list[str] = []
        self.last: FleetTick | None = None

    def begin(self, index: int, **parts: Any) -> None:
        known: dict[str, Any] = {"concurrency": None, "rate": None, "isl": 16, "osl": OSL}
        self.fleet.begin_stage(index, Stage(**known | parts), self.templates, waits=False, first_wave_apart=False)

    def take(self, tick: FleetTick) -> None:
        self.last = tick
        self.deaths += tick.deaths
        self.news += tick.news
        for index, delta in tick.stages.items():
            self.stages.setdefault(index, StageMetrics()).add(delta)
        for sums, stages in zip(self.instances, tick.instances, strict=False):
            for index, delta in stages.items():
                sums.setdefault(index, StageMetrics()).add(delta)

    async def until(self, condition: Callable[[FleetTick], bool]) -> FleetTick:
        async with asyncio.timeout(60):
            while True:
                tick = await self.fleet.tick()
                self.take(tick)
                if condition(tick):
                    return tick

    def count(self, index: int, name: str) -> int:
        return self.stages[index].counters[name]

    def adds_up(self, index: int) -> bool:
        counters = self.stages[index].counters
        return counters["sent"] == sum(counters[name] for name in OUTCOMES)


def closed(concurrency: int) -> Stage:
    return Stage(concurrency=concurrency, rate=None, isl=16, osl=OSL)


def template(engine: Simulator) -> RequestTemplate:
    fields = common_fields("completions", model="simulator", temperature=0.0, options={}, extra={})
    return request_template(engine.url, "completions", fields, osl=OSL, api_key=None)


async def start(fleet: Fleet, engine: Simulator, workers: int, *, servers: int = 1, **options: Any) -> None:
    target = ServerAddress(family=socket.AF_INET, ip="127.0.0.1", port=int(engine.url.rpartition(":")[2]))
    limits: Any = {"timeout_s": 60.0, "stall_timeout_s": 60.0, "connect_timeout_s": 10.0}
    settings = Configure(address=target, vocabulary=Vocabulary(ids=tuple(range(10, 200))), seed=1, **limits)
    await fleet.start(settings, [target] * servers, workers, **options)


@asynccontextmanager
async def driven(engine: Simulator, workers: int, *, servers: int = 1, **options: Any) -> AsyncIterator[Driven]:
    fleet = Fleet(servers)
    pids: set[int] = set()
    try:
        await start(fleet, engine, workers, servers=servers, **options)
        pids.update(fleet.pids)
        await fleet.wait_ready()
        driving = Driven(fleet, engine, servers)
        yield driving
    finally:
        pids.update(fleet.pids)
        await fleet.close()
    driving.take(fleet.rest())
    assert not any(is_there(pid) for pid in pids)
    assert driving.last is not None and (driving.last.held, fleet.size) == (0, 0)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_fleet_grows_between_stages(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "workers_for", lambda *_, **__: 3)
    async with driven(engine, 1, most=3) as run:
        run.begin(0, concurrency=6)
        # It runs at once, with the one that there is.
        await run.until(lambda _: 0 in run.stages and run.count(0, "completed") > 0)
        assert run.news == ["workers: 2 more are started; they take part from the next stage on"]
        await run.until(lambda _: run.fleet.size == 3)
        # The first still holds all six while the others fill their shares.
        assert run.fleet.streams_at_start(closed(6)) == 10
        run.begin(1, concurrency=6)
        run.begin(2, concurrency=6)
        await run.until(lambda _: 2 in run.stages and run.count(2, "completed") > 0)
        await run.until(lambda tick: tick.held == 6)
        run.begin(3, concurrency=6)
        assert run.fleet.streams_at_start(closed(6)) == 6
        assert run.fleet.streams_at_start(closed(9)) == 9
        await run.until(lambda tick: 3 in tick.open_stages)
        assert (run.stages[3].peak, len(run.fleet.pids), len(run.news)) == (6, 3, 1)
        run.fleet.end_load(abort=True)
        await run.until(lambda tick: not tick.held)
    assert run.deaths == []
    assert all(run.adds_up(index) for index in run.stages)


class OtherHost(LocalHost):
    """This machine under a name, so that its part is reported."""

    name = "other"


async def test_ticks_report_the_workers_of_a_stage(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "workers_for", lambda *_, **__: 3)
    async with driven(engine, 2, most=3, hosts=[OtherHost()]) as run:
        run.begin(0, concurrency=6)
        tick = await run.until(lambda _: run.fleet.size == 3)
        assert (tick.sharing, tick.hosts[0].sharing, tick.hosts[0].workers) == (2, 2, 3)
        run.begin(1, concurrency=6)
        tick = await run.until(lambda tick: 1 in tick.open_stages)
        assert tick.sharing == 3
        os.kill(run.fleet.pids[0], signal.SIGKILL)
        tick = await run.until(lambda _: bool(run.deaths))
        assert (tick.sharing, tick.hosts[0].sharing) == (2, 2)
        run.fleet.end_load(abort=True)
        tick = await run.until(lambda tick: not tick.held)
        assert (tick.sharing, run.fleet.size) == (0, 2)


async def test_a_fleet_of_a_wanted_size_does_not_grow(engine: Simulator) -> None:
    async with driven(engine, 2) as run:
        run.begin(0, concurrency=4, requests=4)
        run.fleet.grow(10)
        await run.until(lambda tick: tick.finished == 0)
        assert (run.fleet.size, run.news) == (2, [])


async def test_it_is_closed_while_it_grows(engine: Simulator) -> None:
    async with driven(engine, 1, most=4) as run:
        run.fleet.grow(4)
    assert run.fleet.pids == []


async def test_the_pace_of_the_last_stage_sizes_the_next(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[float | None] = []

    def size(*_: Any, token_s: float | None, **__: Any) -> int:
        known.append(token_s)
        return 1

    monkeypatch.setattr(fleet_module, "workers_for", size)
    async with driven(engine, 1) as run:
        # For longer than a few ticks, at which it is sampled.
        run.begin(0, concurrency=4, requests=120)
        await run.until(lambda tick: tick.finished == 0)
        run.begin(1, concurrency=4, requests=4)
        await run.until(lambda tick: tick.finished == 1)
    first, second = known
    assert first is None
    assert second is not None and 0 < second < 1


async def test_equal_shares_after_a_worker_died(engine: Simulator) -> None:
    async with driven(engine, 4, servers=2) as run:
        os.kill(run.fleet.pids[0], signal.SIGKILL)
        await run.until(lambda _: run.fleet.size == 3)
        run.begin(0, concurrency=4, requests=20)
        await run.until(lambda tick: tick.finished == 0)
        assert [part[0].counters["completed"] for part in run.instances] == [10, 10]
    assert len(run.deaths) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_request_count_without_a_dead_workers_share(engine: Simulator, how: signal.Signals) -> None:
    async with driven(engine, 2) as run:
        run.begin(0, concurrency=4, requests=160)
        await run.until(lambda tick: tick.held == 4 and run.count(0, "completed") > 0)
        os.kill(run.fleet.pids[0], how)
        tick = await run.until(lambda tick: tick.finished == 0)
        assert tick.finished_why == "all requests were answered but those of 1 of 2 workers, which died"
        assert run.adds_up(0)
        assert run.count(0, "lost") == run.count(0, "unfinished") == 2
        assert 80 < run.count(0, "sent") < 160
    (death,) = run.deaths
    words = "sent no tick for 1.5 s and was killed" if how == signal.SIGSTOP else f"was killed by {how.name}"
    assert death == f"worker 0 {words}; 2 streams are lost with it"


async def test_stage_ends_without_its_workers(engine: Simulator) -> None:
    async with driven(engine, 2) as run:
        run.begin(0, concurrency=1)
        await run.until(lambda tick: tick.held == 1)
        os.kill(run.fleet.pids[0], signal.SIGKILL)
        tick = await run.until(lambda tick: tick.finished == 0)
        assert tick.finished_why == "every worker that took part in it died"
        assert tick.client.workers_lost == 1 or run.deaths
        run.begin(1, concurrency=2, requests=4)
        await run.until(lambda tick: tick.finished == 1)
        assert run.count(1, "completed") == 4


def without_last_record(path: Path) -> Dataset:
    path.write_text("Tell me a story.\n" * 40)
    data = index_dataset(str(path))
    index = Path(data.index)
    os.truncate(index, index.stat().st_size * 39 // 40)
    return data


async def test_callback_error_ends_one_worker(engine: Simulator, tmp_path: Path) -> None:
    data = without_last_record(tmp_path / "prompts.txt")  # only one of the two workers comes to it
    async with driven(engine, 2) as run:
        run.begin(0, concurrency=2, work=Work(data=data))
        await run.until(lambda _: bool(run.deaths))
        before = run.count(0, "completed")
        await run.until(lambda _: run.count(0, "completed") > before + 10)
        run.fleet.end_load(abort=True)
        await run.until(lambda tick: not tick.held)
        assert run.adds_up(0)
    (death,) = run.deaths
    assert "died with status 1: IndexError: index 39 is out of bounds" in death


async def test_a_worker_that_is_stopped_and_goes_on_is_not_lost(engine: Simulator) -> None:
    async with driven(engine, 2) as run:
        run.begin(0, concurrency=4)
        await run.until(lambda tick: tick.held == 4)
        pid = run.fleet.pids[1]
        os.kill(pid, signal.SIGSTOP)
        await run.until(lambda _: True)
        await run.until(lambda _: True)
        os.kill(pid, signal.SIGCONT)
        run.fleet.end_load(abort=True)
        await run.until(lambda tick: not tick.held)
        assert (run.fleet.size, run.deaths) == (2, [])
        assert run.adds_up(0)


async def test_worker_stopped_during_close_is_killed(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CLOSE_S", 0.2)
    async with driven(engine, 2) as run:
        run.begin(0, concurrency=4)
        await run.until(lambda tick: tick.held == 4)
        os.kill(run.fleet.pids[0], signal.SIGSTOP)
        run.fleet.end_load(abort=True)
    assert run.adds_up(0)
    assert any("worker 0 did not exit" in death for death in run.deaths)


async def test_worker_stopped_during_start_is_left_out(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "START_S", 20.0)
    fleet = Fleet(1)
    try:
        await start(fleet, engine, 2)
        os.kill(fleet.pids[0], signal.SIGSTOP)
        monkeypatch.setattr(fleet_module, "_MAX_CHECK_S", 20.0)
        await until_one_is_ready(fleet)
        monkeypatch.setattr(worker, "START_S", 0.5)
        await fleet.wait_ready()
        assert fleet.size == 1
        assert "worker 0 did not start within 0.5 s" in (await fleet.tick()).deaths[0]
    finally:
        await fleet.close()


async def until_one_is_ready(fleet: Fleet) -> None:
    async with asyncio.timeout(60):
        while not fleet.size:
            await fleet.tick()


async def test_without_any_that_starts_there_is_no_fleet(engine: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(1)
    try:
        await start(fleet, engine, 2)
        for pid in fleet.pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"worker 0 was killed by SIGKILL; worker 1 was killed by SIGKILL"):
            await fleet.wait_ready()
    finally:
        await fleet.close()
    with monkeypatch.context() as patch:
        patch.setattr(host, "_PROGRAM", ("/no/such/program",))
        nobody = Fleet(1)
        with pytest.raises(WorkerError, match="worker 0 could not be started"):
            await start(nobody, engine, 1, most=2)
        nobody.grow(2)
        assert [len((await nobody.tick()).deaths), nobody.size] == [3, 0]
        await nobody.close()


async def test_no_load_is_measured_without_workers() -> None:
    fleet, stages = Fleet(1), Counter[int]()
    fleet.begin_stage(0, closed(0), (), waits=False, first_wave_apart=False)
    for index in (1, 2):
        for number, delta in (await fleet.tick()).stages.items():
            assert delta.window_start_ns is not None and delta.window_end_ns is not None
            stages[number] += delta.window_end_ns > delta.window_start_ns
        fleet.begin_stage(index, closed(0), (), waits=index == 2, first_wave_apart=False)
    tick = await fleet.tick()
    assert (tick.first_wave_waiting, tick.finished, tick.held) == (0, None, 0)
    assert list(tick.stages) == [1]  # the last waits for its window
    fleet.open_window(2)
    assert list((await fleet.tick()).stages) == [2]
    fleet.end_load(abort=False)
    assert list(fleet.rest().stages) == [2] and not fleet.rest().stages
    assert stages == {0: 2, 1: 1}  # its end comes with the tick after it
