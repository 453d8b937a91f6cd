"""The fleet: starts the workers, gives each its share of a stage, and merges their ticks.

A worker that dies, falls silent or sends garbage is reported in the next `FleetTick`, with the streams lost with it,
and the others continue. Ticks are merged by number; a worker more than one tick late is not waited for, and its ticks
are merged when they come: nothing is lost.

Each worker drives one server, and a stage uses equally many workers for each, so that shares are even and a server's
figures are those of its workers. If a stage needs more workers, they are started and take part from the next stage on.
A stage without load needs no worker: the fleet itself reports how long it has been measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import nlargest
from operator import attrgetter

import msgspec

from loadgen.errors import WorkerError
from loadgen.fleet.host import Host, LocalHost
from loadgen.fleet.worker import Worker
from loadgen.metrics.stage import ClientMetrics, merge_stages
from loadgen.plan.stage import Stage, workers_for
from loadgen.schema.deltas import MAX_SESSION_ROWS, ClientDelta, SessionsNow, StageDelta, StreamRow
from loadgen.schema.journal import HostTick, TickNumbers
from loadgen.stream.request import RequestTemplate, ServerAddress
from loadgen.worker.messages import TICK_NS, BeginStage, Configure, EndLoad, OpenWindow, Tick
from loadgen.worker.realtime import waited_ns
from loadgen.worker.timing import standstill_ns
from loadgen.workload.arrivals import share_of

_MAX_CHECK_S = 2 * TICK_NS / 1e9
_ENOUGH_TOKENS = 100  # to estimate the time per token
_ANSWERED = "all requests were answered"


class FleetTick(TickNumbers, frozen=True, kw_only=True):
    """What all workers did in a tick, merged."""

    first_wave_waiting: int | None
    """Streams of the first wave without a first token; None until the stage has begun on every worker."""
    finished: int | None  # the running stage, once all requests of every live worker have been answered
    finished_why: str
    deaths: tuple[str, ...] = ()  # one message for each worker that died since the last tick
    news: tuple[str, ...] = ()  # other messages about the workers
    clock_moves: tuple[tuple[str, int], ...] = ()  # hosts whose clock was moved, and by how many nanoseconds
    rows: dict[int, list[StreamRow]]  # of the streams that ended, by worker, if rows are wanted


class Fleet:
    """The workers of a run: `start`, `wait_ready`, then commands and `tick` in any order, then `close` and `rest`.

    Before `start` there are no workers, and only stages without load are possible.
    """

    def __init__(self, servers: int) -> None:
        self._settings: Configure | None = None
        self._addresses: Sequence[ServerAddress] = ()
        self._servers = servers
        self._hosts: Sequence[Host] = ()
        self._moved_ns: dict[str, int] = {}  # by how much each host's clock was moved
        self._most = 0
        self._busy_ns = time.process_time_ns() + waited_ns()  # how long this process ran or waited for a core
        self._standstills: list[tuple[int, int]] = []  # when this process stood still, since the last tick
        self._stood_still_until_ns = 0
        self._workers: list[Worker] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._closing = False
        self._news: list[str] = []
        self._changed = asyncio.Event()
        self._running: int | None = None
        self._sharing: list[Worker] = []  # the workers that take part in the running stage
        self._last_number = 0
        self._checked_s = time.monotonic()
        self._held_s, self._tokens = 0.0, 0  # stream seconds of the running stage, and its output tokens
        self._token_s: float | None = None  # seconds per token of a stream, from the last stage with enough tokens
        self._no_load: int | None = None  # the running stage, if it sends nothing
        self._no_load_windows: dict[int, tuple[int, int | None]] = {}
        """When the windows of such stages opened and closed, until that is reported."""

    @property
    def size(self) -> int:
        """How many workers can take part."""
        return len(self._ready)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def complete(self) -> bool:
        """Whether every server has a live worker; one without would be missing from the load."""
        return {worker.instance for worker in self._ready} == set(range(self._servers))

    @property
    def _ready(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.ready]

    # Its workers.

    async def start(
        self,
        settings: Configure,
        addresses: Sequence[ServerAddress],
        workers: int,
        *,
        most: int | None = None,
        hosts: Sequence[Host] = (LocalHost(),),
    ) -> None:
        """Start and configure the first `workers` on `hosts`; raises `WorkerError`.

        They share `settings` except for number, address and lifeline. `grow` may bring them to `most`; None: no more.
        """
        self._settings, self._addresses, self._hosts = settings, addresses, hosts
        self._most = workers if most is None else most
        for worker in self._add(workers):
            await self._start(worker)

    async def wait_ready(self) -> None:
        """Wait until every worker is ready or given up; raises `WorkerError` if a server is left without one."""
        self._checked_s = time.monotonic()
        while any(worker.alive and not worker.ready for worker in self._workers):
            await self._wait(lambda: all(worker.ready or not worker.alive for worker in self._workers), TICK_NS / 1e9)
            self._check_silence()
        if not self.complete:
            deaths = [worker.death for worker in self._workers if worker.death is not None]
            raise WorkerError("; ".join(deaths) or "no worker could be started")

    def grow(self, workers: int) -> None:
        """Grow to `workers`, or to the most allowed, from the next stage on; new ones start in the background."""
        missing = min(workers, self._most) - sum(worker.alive for worker in self._workers)
        if missing <= 0:
            return
        self._news.append(f"workers: {missing} more are started; they take part from the next stage on")
        task = asyncio.create_task(self._start_more(self._add(missing)))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_more(self, added: Sequence[Worker]) -> None:
        for worker in added:
            if self._closing:
                return
            with contextlib.suppress(WorkerError):  # the next tick reports its death
                await self._start(worker)

    def _add(self, count: int) -> list[Worker]:
        """Add `count` workers, each on the host and for the server that has the fewest."""
        before = len(self._workers)
        for _ in range(count):
            alive = [worker for worker in self._workers if worker.alive]
            by_host = Counter(worker.host.name for worker in alive)
            reachable = [host for host in self._hosts if host.lost is None] or self._hosts
            host = min(reachable, key=lambda host: by_host[host.name])
            by_instance = Counter(worker.instance for worker in alive)
            there = Counter(worker.instance for worker in alive if worker.host is host)
            instance = min(range(self._servers), key=lambda server: (by_instance[server], there[server]))
            number = len(self._workers)
            self._workers.append(Worker(number, instance, host, host.open_pipe(number), self._changed.set))
        return self._workers[before:]

    async def _start(self, worker: Worker) -> None:
        await worker.start()
        assert self._settings is not None
        settings = msgspec.structs.replace(
            self._settings,
            worker=worker.number,
            address=self._addresses[worker.instance],
            lifeline_s=worker.host.lifeline_s,
        )
        worker.send(settings)

    def _check_silence(self) -> None:
        before_s, self._checked_s = self._checked_s, time.monotonic()
        span_s = min(self._checked_s - before_s, _MAX_CHECK_S)
        for worker in self._workers:
            worker.check_silence(span_s)

    async def close(self) -> None:
        """End all workers; safe to call at any time and more than once."""
        self._closing = True
        # Cancelling a start could leave its process behind.
        await asyncio.gather(*self._starting)
        await asyncio.gather(*(worker.close() for worker in self._workers))

    # Commands.

    def begin_stage(
        self,
        index: int,
        stage: Stage,
        templates: Sequence[RequestTemplate],
        *,
        waits: bool,
        first_wave_apart: bool,
    ) -> None:
        """End the running stage on all workers and begin another, shared among them; one template per server.

        With `waits`, it is measured from `open_window` on.
        """
        if stage.no_load:
            self.end_load(abort=False, ends_sessions=True)
            self._no_load = index
            if not waits:
                self.open_window(index)
            return
        self._end_no_load()
        self._learn_pace()
        cores = [host.cores for host in self._hosts if host.lost is None]
        self.grow(workers_for(None, [stage], servers=self._servers, cores=cores, token_s=self._token_s))
        self._running, self._sharing = index, self._sharers(stage)
        for worker in self._workers:
            if worker not in self._sharing:
                worker.share = None
                worker.send(EndLoad(abort=False, ends_sessions=True))
        # All hosts begin at the same moment, once the command has reached every one of them.
        start_ns = time.monotonic_ns() + max((worker.host.delivery_ns for worker in self._sharing), default=0)
        for rank, worker in enumerate(self._sharing):
            command = BeginStage(
                index=index,
                stage=stage,
                template=templates[worker.instance],
                rank=rank,
                ranks=len(self._sharing),
                start_ns=start_ns + worker.host.offset_ns,
                waits=waits,
                first_wave_apart=first_wave_apart,
            )
            worker.share = command.share(stage.concurrency)
            worker.send(command)

    def streams_at_start(self, stage: Stage) -> int:
        """How many streams are open once every worker has filled its share, before the surplus ends.

        That exceeds the stage's concurrency if shares shift: new workers fill theirs while old ones still hold more.
        """
        sharing = self._sharers(stage)
        shares = {
            worker.number: share_of(stage.concurrency or 0, rank, len(sharing)) for rank, worker in enumerate(sharing)
        }
        return sum(max(worker.held, shares.get(worker.number, 0)) for worker in self._ready)

    def _sharers(self, stage: Stage) -> list[Worker]:
        """The workers that take part: equally many for each server."""
        by_server = [[worker for worker in self._ready if worker.instance == server] for server in range(self._servers)]
        even = [worker for one_for_each in zip(*by_server, strict=False) for worker in one_for_each]
        # A worker without a slot would never send its share of the requests.
        return even[: stage.most_streams or len(even)]

    @property
    def measures(self) -> bool:
        """Whether a worker has not yet reported the end of its stage, and with it the last that was measured."""
        last = _last_ticks(self._workers)
        return any(tick.running is not None and (tick.finished is None or tick.sessions is not None) for tick in last)

    def open_window(self, index: int) -> None:
        """Measure the running stage from now on."""
        if index == self._no_load:
            self._no_load_windows[index] = (time.monotonic_ns(), None)
        for worker in self._workers:
            worker.send(OpenWindow(index=index))

    def end_load(self, *, abort: bool, ends_sessions: bool = False) -> None:
        """Send no more; with `abort`, also cut off the open streams. Sessions live on unless that `ends_sessions`."""
        self._end_no_load()
        self._learn_pace()
        self._running = None
        for worker in self._workers:
            worker.share = None
            worker.send(EndLoad(abort=abort, ends_sessions=ends_sessions))

    def _end_no_load(self) -> None:
        index, self._no_load = self._no_load, None
        if index is not None and index in self._no_load_windows:
            self._no_load_windows[index] = (self._no_load_windows[index][0], time.monotonic_ns())

    def _take_no_load_windows(self) -> dict[int, StageDelta]:
        now_ns, windows = time.monotonic_ns(), self._no_load_windows
        self._no_load_windows = {index: window for index, window in windows.items() if window[1] is None}
        return {
            index: StageDelta(window_start_ns=start_ns, window_end_ns=now_ns if end_ns is None else end_ns)
            for index, (start_ns, end_ns) in windows.items()
        }

    def _learn_pace(self) -> None:
        """Note the ending stage's time per token, which predicts (Little's law) how many streams a rate holds."""
        if self._tokens >= _ENOUGH_TOKENS:
            self._token_s = self._held_s / self._tokens
        self._held_s, self._tokens = 0.0, 0

    # Ticks.

    async def tick(self) -> FleetTick:
        """The next merged tick, about every 250 ms; without workers that are more than a tick late."""
        late = 1 if self._ready else 0
        deadline_s = (time.monotonic_ns() // TICK_NS + 1 + late) * TICK_NS / 1e9
        await self._wait(
            lambda: bool(self._ready) and all(worker.has_ticked for worker in self._ready),
            deadline_s - time.monotonic(),
        )
        # Did this process stand still while it waited for the tick that was due?
        due_ns = round(deadline_s * 1e9)
        busy_before_ns, self._busy_ns = self._busy_ns, time.process_time_ns() + waited_ns()
        still_ns = standstill_ns(due_ns, self._busy_ns - busy_before_ns)
        if still_ns:
            self._standstills.append((due_ns, due_ns + still_ns))

        self._check_silence()
        tick = self._merge()
        self._held_s += tick.held * tick.span_s
        self._tokens += tick.client.output_tokens
        return tick

    def rest(self) -> FleetTick:
        """After `close`: the workers' last ticks, and the streams lost with those that had to be killed."""
        return self._merge()

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def _merge(self) -> FleetTick:
        ticks = [tick for worker in self._workers for tick in worker.take()]
        died = [(worker, death) for worker in self._workers if (death := worker.take_death()) is not None]
        last = _last_ticks(self._workers)
        instances = tuple(
            merge_stages([worker.stages for worker in self._workers if worker.instance == server], peak=sum)
            for server in range(self._servers)
        )
        open_stages, open_sent = Counter[int](), Counter[int]()  # streams by stage, and those that count in its `sent`
        for now in last:
            open_stages.update(now.open_stages)
            if now.running is not None:
                open_sent[now.running] += now.open_sent
        before, self._last_number = self._last_number, max((tick.number for tick in ticks), default=self._last_number)
        finished_why = self._finished_why()
        moved_before, self._moved_ns = self._moved_ns, {host.name: host.moved_ns for host in self._hosts}
        moves = ((name, moved_ns - moved_before.get(name, 0)) for name, moved_ns in self._moved_ns.items())
        news, self._news = tuple(self._news), []
        rows: dict[int, list[StreamRow]] = {}
        for tick in ticks:
            if tick.rows:
                rows.setdefault(tick.worker, []).extend(tick.rows)
        return FleetTick(
            span_s=(self._last_number - before if before else 1) * TICK_NS / 1e9,
            behind_s=_seconds_behind(last),
            stages=merge_stages([*instances, self._take_no_load_windows()], peak=sum),
            instances=instances if self._servers > 1 else (),
            hosts=self._host_ticks(Counter(worker.host.name for worker, _ in died)),
            client=msgspec.structs.replace(
                _merge_clients(ticks, workers_lost=len(died)), stood_still_ns=self._take_standstill(ticks)
            ),
            held=sum(tick.held for tick in last),
            most_held=sum(worker.most_held for worker in self._workers),
            queued=sum(tick.queued for tick in last),
            open_stages=dict(open_stages),
            open_sent=dict(open_sent),
            sessions=_merge_sessions(last),
            first_wave_waiting=self._first_wave_waiting(),
            finished=self._running if finished_why else None,
            finished_why=finished_why,
            deaths=tuple(death for _, death in died),
            news=news,
            clock_moves=tuple((name, by_ns) for name, by_ns in moves if by_ns),
            rss_bytes=sum(tick.rss_bytes for tick in last),
            sharing=self._sharing_among(self._workers),
            rows=rows,
        )

    def _take_standstill(self, ticks: Sequence[Tick]) -> int:
        """How long workers or this process stood still; what several noticed at once is counted once."""
        spans, self._standstills = self._standstills, []
        for tick in ticks:
            if tick.client.stood_still_ns:
                due_ns = tick.number * TICK_NS
                spans.append((due_ns, due_ns + tick.client.stood_still_ns))
        total_ns = 0
        for start_ns, end_ns in sorted(spans):
            total_ns += max(0, end_ns - max(start_ns, self._stood_still_until_ns))
            self._stood_still_until_ns = max(end_ns, self._stood_still_until_ns)
        return total_ns

    def _sharing_among(self, workers: Sequence[Worker]) -> int:
        return sum(worker.ready for worker in workers if self._running is not None and worker in self._sharing)

    def _host_ticks(self, died: Counter[str]) -> tuple[HostTick, ...]:
        """Each host's part; none if the only host is this machine."""
        ticks = []
        for host in self._hosts:
            if not host.name:
                continue
            workers = [worker for worker in self._workers if worker.host.name == host.name]
            last = _last_ticks(workers)
            ticks.append(
                HostTick(
                    stages=merge_stages([worker.stages for worker in workers], peak=sum),
                    client=_merge_clients(
                        [tick for worker in workers for tick in worker.taken], workers_lost=died[host.name]
                    ),
                    held=sum(tick.held for tick in last),
                    workers=len(last),
                    sharing=self._sharing_among(workers),
                    rss_bytes=sum(tick.rss_bytes for tick in last),
                    offset_ns=host.offset_ns,
                    uncertainty_ns=host.uncertainty_ns,
                    rtt_ns=host.rtt_ns,
                    lost=host.lost is not None,
                )
            )
        return tuple(ticks)

    def _first_wave_waiting(self) -> int | None:
        if self._no_load is not None:
            return 0
        sharing = [worker.last for worker in self._sharing if worker.alive]
        begun = [tick.first_wave_waiting for tick in sharing if tick is not None and tick.running == self._running]
        return sum(begun) if begun and len(begun) == len(sharing) else None

    def _finished_why(self) -> str:
        """Why the running stage is over; empty while a live worker that takes part is not done."""
        done = [worker.last is not None and worker.last.finished == self._running for worker in self._sharing]
        short = sum(not is_done and not worker.alive for is_done, worker in zip(done, self._sharing, strict=True))
        if self._running is None or not done or sum(done) + short < len(done):
            return ""
        if not any(done):
            return "every worker that took part in it died"
        return _ANSWERED if not short else f"{_ANSWERED} but those of {short} of {len(done)} workers, which died"


def _last_ticks(workers: Sequence[Worker]) -> list[Tick]:
    return [worker.last for worker in workers if worker.alive and worker.last is not None]


def _merge_clients(ticks: Sequence[Tick], *, workers_lost: int) -> ClientDelta:
    client = ClientMetrics()
    for tick in ticks:
        client.add(tick.client)
    return msgspec.structs.replace(client.encode(), workers_lost=workers_lost)


def _merge_sessions(last: Sequence[Tick]) -> SessionsNow | None:
    """The sessions of all workers; None if none has any."""
    known = [tick.sessions for tick in last if tick.sessions is not None]
    if not known:
        return None
    counts = {
        name: sum(getattr(one, name) for one in known) for name in SessionsNow.__struct_fields__ if name != "rows"
    }
    rows = (row for one in known for row in one.rows)
    return SessionsNow(**counts, rows=nlargest(MAX_SESSION_ROWS, rows, key=attrgetter("context_tokens")))


def _seconds_behind(last: Sequence[Tick]) -> float:
    """The age of the slowest worker's last tick."""
    oldest = min((tick.number for tick in last), default=None)
    return 0.0 if oldest is None else round(max(0.0, (time.monotonic_ns() - oldest * TICK_NS) / 1e9), 3)
