"""The fleet: starts the workers, gives each its share of a stage, and merges their ticks.

A worker that dies, is silent for too long or talks nonsense is told in the next `FleetTick`, with the streams that are
lost with it, and the rest go on. Ticks are merged by their number; a worker that is late by more than one tick is not
waited for, and what it brings later is merged then: nothing is lost.

Each worker drives one server, and a stage has as many for each, so its shares are even and a server's figures are those
of its workers. A stage that takes more workers than there are has them started; they take part from the next one on.
A stage of no load needs no worker: the fleet itself tells how long it has been measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from loadgen.errors import WorkerError
from loadgen.fleet.worker_process import WorkerProcess
from loadgen.metrics.deltas import StageDelta, StreamRow
from loadgen.metrics.journal import TickNumbers
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.plan.stage import Stage, workers_for
from loadgen.stream.request import RequestTemplate, ServerAddress
from loadgen.worker.messages import TICK_NS, BeginStage, Configure, EndLoad, OpenWindow, Tick
from loadgen.workload.arrivals import share_of

_LONGEST_CHECK_S = 2 * TICK_NS / 1e9
_ENOUGH_TOKENS = 100  # for a guess at how fast they come
_ANSWERED = "all requests were answered"


class FleetTick(TickNumbers, frozen=True, kw_only=True):
    """What all workers did in a tick, merged."""

    first_wave_waiting: int | None
    """Streams of its first wave that have no first token yet; None until it has begun on every worker."""
    finished: int | None  # the running stage, once every worker that lives has had all its requests answered
    finished_why: str
    deaths: tuple[str, ...] = ()  # one message for each worker that died since the last tick
    news: tuple[str, ...] = ()  # what else became of the workers
    rows: dict[int, list[StreamRow]]  # of the streams that ended, by worker, if they are asked for


class Fleet:
    """The workers of a run: `start`, `wait_ready`, then commands and `tick` in any order, then `close` and `rest`.

    Until it is started it has none, and takes the commands of stages without load alone.
    """

    def __init__(self, servers: int) -> None:
        self._settings: Configure | None = None
        self._addresses: Sequence[ServerAddress] = ()
        self._servers = servers
        self._most = 0
        self._workers: list[WorkerProcess] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._closing = False
        self._news: list[str] = []
        self._changed = asyncio.Event()
        self._running: int | None = None
        self._sharing: list[WorkerProcess] = []  # those that have a share of the running stage
        self._last_number = 0
        self._checked_s = time.monotonic()
        self._held_s, self._tokens = 0.0, 0  # stream seconds of the running stage, and the tokens that came in them
        self._token_s: float | None = None  # seconds a token of a stream, in the last stage that had enough of them
        self._no_load: int | None = None  # the running stage, where nothing is sent in it
        self._no_load_windows: dict[int, tuple[int, int | None]] = {}
        """When such stages began and ended to be measured, until that is told."""

    @property
    def size(self) -> int:
        """How many workers can take a share of the load."""
        return len(self._ready)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def complete(self) -> bool:
        """Every server has a worker left; one without would be missing from the load."""
        return {worker.instance for worker in self._ready} == set(range(self._servers))

    @property
    def _ready(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.ready]

    # Its workers.

    async def start(
        self, settings: Configure, addresses: Sequence[ServerAddress], workers: int, *, most: int | None = None
    ) -> None:
        """Start and configure the workers to begin with; raises `WorkerError`.

        They have `settings`, but for their number and address; there may be `most` of them, None: no more.
        """
        self._settings, self._addresses, self._most = settings, addresses, workers if most is None else most
        for worker in self._add(workers):
            await self._start(worker)

    async def wait_ready(self) -> None:
        """Wait until every worker can send or is given up; raises `WorkerError` if a server is left without any."""
        self._checked_s = time.monotonic()
        while any(worker.alive and not worker.ready for worker in self._workers):
            await self._wait(lambda: all(worker.ready or not worker.alive for worker in self._workers), TICK_NS / 1e9)
            self._check_silence()
        if not self.complete:
            deaths = [worker.death for worker in self._workers if worker.death is not None]
            raise WorkerError("; ".join(deaths) or "no worker could be started")

    def grow(self, workers: int) -> None:
        """Have so many workers, or as many as there may be, from the next stage on; they start in the background."""
        missing = min(workers, self._most) - sum(worker.alive for worker in self._workers)
        if missing <= 0:
            return
        self._news.append(f"workers: {missing} more are started; they take part from the next stage on")
        task = asyncio.create_task(self._start_more(self._add(missing)))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_more(self, added: Sequence[WorkerProcess]) -> None:
        for worker in added:
            if self._closing:
                return
            with contextlib.suppress(WorkerError):  # its death is told
                await self._start(worker)

    def _add(self, count: int) -> list[WorkerProcess]:
        """So many more, each for the server that has the fewest."""
        before = len(self._workers)
        for _ in range(count):
            alive = [worker.instance for worker in self._workers if worker.alive]
            instance = min(range(self._servers), key=alive.count)
            self._workers.append(WorkerProcess(len(self._workers), instance, self._changed.set))
        return self._workers[before:]

    async def _start(self, worker: WorkerProcess) -> None:
        await worker.start()
        assert self._settings is not None
        address = self._addresses[worker.instance]
        worker.send(msgspec.structs.replace(self._settings, worker=worker.number, address=address))

    def _check_silence(self) -> None:
        """End the workers that have been silent for too long."""
        before_s, self._checked_s = self._checked_s, time.monotonic()
        span_s = min(self._checked_s - before_s, _LONGEST_CHECK_S)
        for worker in self._workers:
            worker.check_silence(span_s)

    async def close(self) -> None:
        """End all workers; safe to call at any time and more than once."""
        self._closing = True
        # A start that is cancelled could leave its process behind.
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
        """End the running stage on all workers and begin another, sliced over them; a template for each server.

        One that `waits` is measured from `open_window` on.
        """
        if stage.no_load:
            self.end_load(abort=False)
            self._no_load = index
            if not waits:
                self.open_window(index)
            return
        self._end_no_load()
        self._learn_pace()
        self.grow(workers_for(None, [stage], servers=self._servers, token_s=self._token_s))
        self._running, self._sharing = index, self._sharers(stage)
        start_ns = time.monotonic_ns()
        for worker in self._workers:
            if worker not in self._sharing:
                worker.share = None
                worker.send(EndLoad(abort=False))
        for rank, worker in enumerate(self._sharing):
            command = BeginStage(
                index=index,
                stage=stage,
                template=templates[worker.instance],
                rank=rank,
                ranks=len(self._sharing),
                start_ns=start_ns,
                waits=waits,
                first_wave_apart=first_wave_apart,
            )
            worker.share = command.share(stage.concurrency)
            worker.send(command)

    def streams_at_start(self, stage: Stage) -> int:
        """How many streams are open once all have filled their shares of a closed loop, before the surplus ends.

        More than it wants where shares are dealt anew: workers that have come fill theirs while others still have more.
        """
        sharing = self._sharers(stage)
        shares = {
            worker.number: share_of(stage.concurrency or 0, rank, len(sharing)) for rank, worker in enumerate(sharing)
        }
        return sum(max(worker.held, shares.get(worker.number, 0)) for worker in self._ready)

    def _sharers(self, stage: Stage) -> list[WorkerProcess]:
        """Who takes part: as many for each server."""
        by_server = [[worker for worker in self._ready if worker.instance == server] for server in range(self._servers)]
        even = [worker for one_for_each in zip(*by_server, strict=False) for worker in one_for_each]
        # A worker without a slot would never send its share of the requests.
        return even[: stage.most_streams or len(even)]

    def open_window(self, index: int) -> None:
        """Measure the running stage from now on."""
        if index == self._no_load:
            self._no_load_windows[index] = (time.monotonic_ns(), None)
        for worker in self._workers:
            worker.send(OpenWindow(index=index))

    def end_load(self, *, abort: bool) -> None:
        """Send no more; with `abort`, cut the running streams off."""
        self._end_no_load()
        self._learn_pace()
        self._running = None
        for worker in self._workers:
            worker.share = None
            worker.send(EndLoad(abort=abort))

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
        """Little's law of the stage that ends: a stream's time for a token says how many streams a rate will be."""
        if self._tokens >= _ENOUGH_TOKENS:
            self._token_s = self._held_s / self._tokens
        self._held_s, self._tokens = 0.0, 0

    # Ticks.

    async def tick(self) -> FleetTick:
        """The next merged tick, about every 250 ms; comes without a worker that is more than a tick late."""
        late = 1 if self._ready else 0
        deadline_s = (time.monotonic_ns() // TICK_NS + 1 + late) * TICK_NS / 1e9
        await self._wait(
            lambda: bool(self._ready) and all(worker.has_ticked for worker in self._ready),
            deadline_s - time.monotonic(),
        )
        self._check_silence()
        tick = self._merge()
        self._held_s += tick.held * tick.span_s
        self._tokens += tick.client.output_tokens
        return tick

    def rest(self) -> FleetTick:
        """After `close`: what the workers said at last, and the streams of those that had to be killed."""
        return self._merge()

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def _merge(self) -> FleetTick:
        ticks: list[Tick] = []
        by_server: list[list[dict[int, StageDelta]]] = [[] for _ in range(self._servers)]
        for worker in self._workers:
            new, lost = worker.take()
            ticks += new
            by_server[worker.instance].append(_merge_stages([*(tick.stages for tick in new), lost]))
        instances = tuple(_merge_stages(stages, peak=sum) for stages in by_server)
        deaths = tuple(death for worker in self._workers if (death := worker.take_death()) is not None)
        client = ClientMetrics()
        for tick in ticks:
            client.add(tick.client)
        last = [worker.last for worker in self._ready if worker.last is not None]
        open_stages, open_sent = Counter[int](), Counter[int]()
        for tick in last:
            open_stages.update(tick.open_stages)
            if tick.running is not None:
                open_sent[tick.running] += tick.open_sent
        rows: dict[int, list[StreamRow]] = {}
        for tick in ticks:
            if tick.rows:
                rows.setdefault(tick.worker, []).extend(tick.rows)
        before, self._last_number = self._last_number, max((tick.number for tick in ticks), default=self._last_number)
        finished_why = self._finished_why()
        news, self._news = tuple(self._news), []
        return FleetTick(
            span_s=(self._last_number - before if before else 1) * TICK_NS / 1e9,
            behind_s=_seconds_behind(last),
            stages=_merge_stages([*instances, self._take_no_load_windows()], peak=sum),
            instances=instances if self._servers > 1 else (),
            client=msgspec.structs.replace(client.encode(), workers_lost=len(deaths)),
            held=sum(tick.held for tick in last),
            queued=sum(tick.queued for tick in last),
            open_stages=dict(open_stages),
            open_sent=dict(open_sent),
            first_wave_waiting=self._first_wave_waiting(),
            finished=self._running if finished_why else None,
            finished_why=finished_why,
            deaths=deaths,
            news=news,
            rss_bytes=sum(tick.rss_bytes for tick in last),
            rows=rows,
        )

    def _first_wave_waiting(self) -> int | None:
        if self._no_load is not None:
            return 0
        sharing = [worker.last for worker in self._sharing if worker.alive]
        begun = [tick.first_wave_waiting for tick in sharing if tick is not None and tick.running == self._running]
        return sum(begun) if begun and len(begun) == len(sharing) else None

    def _finished_why(self) -> str:
        """Why the running stage is over; empty while one who has a share of it is not done and lives."""
        done = [worker.last is not None and worker.last.finished == self._running for worker in self._sharing]
        short = sum(not is_done and not worker.alive for is_done, worker in zip(done, self._sharing, strict=True))
        if self._running is None or not done or sum(done) + short < len(done):
            return ""
        if not any(done):
            return "no worker is left that had a share of it"
        return _ANSWERED if not short else f"{_ANSWERED} but those of {short} of {len(done)} workers, which died"


def _seconds_behind(last: Sequence[Tick]) -> float:
    """How long ago the slowest worker's last word was."""
    oldest = min((tick.number for tick in last), default=None)
    return 0.0 if oldest is None else round(max(0.0, (time.monotonic_ns() - oldest * TICK_NS) / 1e9), 3)


def _merge_stages(
    parts: Sequence[dict[int, StageDelta]], *, peak: Callable[[Iterable[int]], int] = max
) -> dict[int, StageDelta]:
    """The sums by stage; `peak` is `max` over ticks of one worker, `sum` over workers, which hold theirs at once."""
    by_stage: dict[int, list[StageDelta]] = {}
    for stages in parts:
        for index, delta in stages.items():
            by_stage.setdefault(index, []).append(delta)
    # One worker is the usual case, and its delta is the sum already.
    return {
        index: deltas[0]
        if len(deltas) == 1
        else msgspec.structs.replace(StageMetrics.of(*deltas).encode(), peak=peak(delta.peak for delta in deltas))
        for index, deltas in by_stage.items()
    }
