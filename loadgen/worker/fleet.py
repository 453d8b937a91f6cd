"""The fleet: starts the workers, gives each its share of a stage, and merges their ticks.

A worker that dies is reported in the next `FleetTick` and the rest go on. Ticks are merged by their number; a worker
that is late by more than one tick is not waited for, and what it brings later is merged then: nothing is lost.

Each worker drives one server: of N servers, worker w drives number w mod N. There are as many workers for each, so the
shares of a stage are even, and a server's figures are those of its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from loadgen.errors import WorkerError
from loadgen.metrics.stage import ClientDelta, ClientMetrics, StageDelta, StageMetrics
from loadgen.metrics.stream_rows import StreamRow
from loadgen.plan import Stage
from loadgen.stream.request import RequestTemplate
from loadgen.stream.tally import StreamLimits
from loadgen.stream.transport import Target
from loadgen.worker import messages
from loadgen.worker.messages import TICK_NS, BeginStage, Configure, EndLoad, OpenWindow, Tick, Vocabulary
from loadgen.worker.pace import realtime_share
from loadgen.workload.arrivals import share_of

_LINE_LIMIT = 64 * 1024 * 1024
_STDERR_KEPT = 4000
_STREAMS_A_WORKER = 512
_START_S = 60.0


class FleetTick(msgspec.Struct, frozen=True):
    """What all workers did in a tick, merged."""

    span_s: float
    """The time it covers."""
    stages: dict[int, StageDelta]
    instances: tuple[dict[int, StageDelta], ...]
    """The same by the server that was driven, where there are several."""
    client: ClientDelta
    held: int
    queued: int
    open_stages: dict[int, int]
    open_sent: int
    """Open streams of the running stage that count in `sent`."""
    awaits: int | None
    """Streams of its first wave that have no first token yet; None until it has begun on every worker."""
    finished: int | None
    """The running stage, once every worker has had all its requests answered."""
    deaths: tuple[str, ...] = ()
    """One message for each worker that died since the last tick."""
    rss_bytes: int = 0
    rows: dict[int, list[StreamRow]] = {}
    """Of the streams that ended, by worker, if they are asked for."""


class FleetSettings(msgspec.Struct, frozen=True):
    """What every worker is told at its start."""

    targets: tuple[Target, ...]
    """The servers."""
    vocabulary: Vocabulary
    seed: int
    timeout_s: float
    stall_timeout_s: float
    connect_timeout_s: float
    verify_tls: bool = True
    realtime: bool = True
    """Workers run before all other processes, where the system lets them and while they take little."""
    rows: bool = False
    """A row for each stream comes with the ticks."""


def workers_for(wanted: int | None, *, most_streams: int, servers: int) -> int:
    """How many workers a load gets: as many for each server, so a wanted number is rounded up.

    Unless told, one for every few hundred streams, but not more than half the cores.
    """
    cores = os.cpu_count() or 1
    workers = wanted or max(1, min(cores // 2, -(-most_streams // _STREAMS_A_WORKER)))
    return -(-workers // servers) * servers


class _Worker:
    """One worker process and what it said last."""

    def __init__(self, number: int, instance: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.instance = instance
        self.process = process
        self.ticks: list[Tick] = []
        self.last: Tick | None = None
        self.alive = True
        self.cut_off: dict[int, StageDelta] = {}
        """The streams that it took with it when it died."""
        self.stderr = b""

    def tell(self, command: messages.Command) -> None:
        assert self.process.stdin is not None
        if self.alive:
            self.process.stdin.write(messages.encode(command) + b"\n")

    def take_stages(self) -> dict[int, StageDelta]:
        """What it did in the ticks that are here."""
        stages = _merge_stages([*(tick.stages for tick in self.ticks), self.cut_off])
        self.cut_off = {}
        return stages


class Fleet:
    """The workers of a run; `start`, then commands and `ticks` in any order, then `close`."""

    def __init__(self, settings: FleetSettings, workers: int) -> None:
        self._settings = settings
        self._count = workers
        self._workers: list[_Worker] = []
        self._readers: list[asyncio.Task[None]] = []
        self._deaths: list[str] = []
        self._arrived = asyncio.Event()
        self._running: int | None = None
        self._last_number = 0
        self._ranks: list[_Worker] = []

    @property
    def alive(self) -> int:
        """How many workers there are."""
        return sum(worker.alive for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """Of the workers that live."""
        return [worker.process.pid for worker in self._workers if worker.alive]

    @property
    def complete(self) -> bool:
        """Every server has a worker left; one without would be missing from the load."""
        return {worker.instance for worker in self._workers if worker.alive} == set(range(len(self._settings.targets)))

    async def start(self) -> None:
        """Start and configure all workers; raises `WorkerError`."""
        for number in range(self._count):
            try:
                process = await asyncio.create_subprocess_exec(
                    # -P: what lies in the current folder is not ours to import.
                    *(sys.executable, "-P", "-m", "loadgen.worker"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    limit=_LINE_LIMIT,
                    # Ctrl-C in the terminal is for vramp, which ends its workers in order.
                    start_new_session=True,
                )
            except OSError as error:
                raise WorkerError(f"worker {number} could not be started: {error.strerror}") from error
            worker = _Worker(number, number % len(self._settings.targets), process)
            self._workers.append(worker)
            self._readers.append(asyncio.create_task(self._read_ticks(worker)))
            self._readers.append(asyncio.create_task(self._read_stderr(worker)))
            worker.tell(self._configure(worker))

    def _configure(self, worker: _Worker) -> Configure:
        settings = msgspec.structs.asdict(self._settings)
        target = settings.pop("targets")[worker.instance]
        share = realtime_share(os.cpu_count() or 1, self._count) if settings.pop("realtime") else 0.0
        return Configure(worker=worker.number, target=target, realtime_share=share, **settings)

    async def wait_ready(self) -> None:
        """Wait until every worker has ticked once and can send; raises `WorkerError`."""
        try:
            async with asyncio.timeout(_START_S):
                while not all(worker.ticks or not worker.alive for worker in self._workers):
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            silent = [str(worker.number) for worker in self._workers if not worker.ticks]
            raise WorkerError(f"worker {', '.join(silent)} did not start within {_START_S:g} s") from None
        if not self.complete:
            raise WorkerError("; ".join(self._deaths) or "no worker could be started")

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
        alive = [worker for worker in self._workers if worker.alive]
        # A worker without a slot would never send its share of the requests.
        ranks = min(len(alive), stage.most_streams or len(alive))
        self._running = index
        self._ranks = alive[:ranks]
        start_ns = time.monotonic_ns()
        for rank, worker in enumerate(alive):
            if rank >= ranks:
                worker.tell(EndLoad(abort=False))
                continue
            worker.tell(
                BeginStage(
                    index=index,
                    template=templates[worker.instance],
                    isl=stage.isl,
                    osl=stage.osl,
                    rank=rank,
                    ranks=ranks,
                    concurrency=None if stage.concurrency is None else share_of(stage.concurrency, rank, ranks),
                    rate=stage.rate,
                    arrival=stage.arrival,
                    rate_points=stage.rate_points,
                    max_concurrency=None if stage.most is None else share_of(stage.most, rank, ranks),
                    work=stage.work,
                    start_ns=start_ns,
                    warmup_requests=stage.warmup_requests,
                    warmup_ns=int(stage.warmup_s * 1e9),
                    requests=stage.requests,
                    waits=waits,
                    first_wave_apart=first_wave_apart,
                    steps=tuple(
                        (int(at_s * 1e9), None if stage.concurrency is None else share_of(int(load), rank, ranks))
                        for at_s, load in stage.steps
                    ),
                    limits=_limits_of(stage),
                )
            )

    def open_window(self, index: int) -> None:
        """Measure the running stage from now on."""
        for worker in self._workers:
            worker.tell(OpenWindow(index=index))

    def end_load(self, *, abort: bool) -> None:
        """Send no more; with `abort`, cut the running streams off."""
        self._running = None
        for worker in self._workers:
            worker.tell(EndLoad(abort=abort))

    async def close(self) -> None:
        """End all workers; safe to call at any time and more than once."""
        for worker in self._workers:
            if worker.process.stdin is not None:
                worker.process.stdin.close()
        for worker in self._workers:
            try:
                async with asyncio.timeout(2):
                    await worker.process.wait()
            except TimeoutError:
                worker.process.kill()
                await worker.process.wait()
        # The pipes end with the processes; what they still hold is read, so that their transports close themselves.
        if self._readers:
            await asyncio.wait(self._readers, timeout=2)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    # Ticks.

    async def tick(self) -> FleetTick:
        """The next merged tick, about every 250 ms; comes without a worker that is more than a tick late."""
        deadline_s = (time.monotonic_ns() // TICK_NS + 2) * TICK_NS / 1e9
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
                while not self._all_have_ticked():
                    self._arrived.clear()
                    await self._arrived.wait()
        return self._merge()

    def _all_have_ticked(self) -> bool:
        alive = [worker for worker in self._workers if worker.alive]
        return bool(alive) and all(worker.ticks for worker in alive)

    def _merge(self) -> FleetTick:
        ticks = [tick for worker in self._workers for tick in worker.ticks]
        instances = self._take_instances()
        for worker in self._workers:
            worker.ticks.clear()
        last = [worker.last for worker in self._workers if worker.alive and worker.last is not None]
        deaths, self._deaths = tuple(self._deaths), []
        number = max((tick.number for tick in ticks), default=self._last_number)
        span_s = (number - self._last_number) * TICK_NS / 1e9 if self._last_number else TICK_NS / 1e9
        self._last_number = number
        return FleetTick(
            span_s=span_s,
            stages=_merge_stages(instances, peak=sum),
            instances=instances if len(instances) > 1 else (),
            client=_merge_clients([tick.client for tick in ticks]),
            held=sum(tick.held for tick in last),
            queued=sum(tick.queued for tick in last),
            open_stages=_sum_by_key([tick.open_stages for tick in last]),
            open_sent=sum(tick.open_sent for tick in last),
            awaits=self._awaits(),
            finished=self._running if self._all_finished() else None,
            deaths=deaths,
            rss_bytes=sum(tick.rss_bytes for tick in last),
            rows=_rows_by_worker(ticks),
        )

    def _take_instances(self) -> tuple[dict[int, StageDelta], ...]:
        taken: list[list[dict[int, StageDelta]]] = [[] for _ in self._settings.targets]
        for worker in self._workers:
            taken[worker.instance].append(worker.take_stages())
        return tuple(_merge_stages(stages, peak=sum) for stages in taken)

    def _awaits(self) -> int | None:
        last = [worker.last for worker in self._ranks if worker.alive]
        begun = [tick.awaits for tick in last if tick is not None and tick.running == self._running]
        return sum(begun) if begun and len(begun) == len(last) else None

    def _all_finished(self) -> bool:
        # One that has not ticked yet has not finished: its share is still to come.
        finished = [worker.last.finished if worker.last is not None else None for worker in self._ranks if worker.alive]
        return bool(finished) and self._running is not None and all(index == self._running for index in finished)

    async def _read_ticks(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        try:
            while line := await worker.process.stdout.readline():
                worker.last = messages.decode_tick(line)
                worker.ticks.append(worker.last)
                self._arrived.set()
        except (msgspec.DecodeError, ValueError) as error:
            self._lost(worker, f"worker {worker.number} sent what is not a tick: {error}")
            worker.process.kill()
            return
        status = await worker.process.wait()
        self._lost(worker, f"worker {worker.number} died with status {status}{_last_words(worker.stderr)}")

    def _lost(self, worker: _Worker, message: str) -> None:
        worker.alive = False
        self._deaths.append(message)
        last = worker.last
        if last is not None and last.running is not None and last.open_sent:
            worker.cut_off = {last.running: StageDelta(unfinished=last.open_sent, lost=last.open_sent)}
        self._arrived.set()

    async def _read_stderr(self, worker: _Worker) -> None:
        assert worker.process.stderr is not None
        while text := await worker.process.stderr.read(4096):
            worker.stderr = (worker.stderr + text)[-_STDERR_KEPT:]


def _rows_by_worker(ticks: Iterable[Tick]) -> dict[int, list[StreamRow]]:
    rows: dict[int, list[StreamRow]] = {}
    for tick in ticks:
        if tick.rows:
            rows.setdefault(tick.worker, []).extend(tick.rows)
    return rows


def _limits_of(stage: Stage) -> StreamLimits | None:
    limits_ns = {metric: int(limit_ms * 1e6) for metric, limit_ms in stage.limits_ms.items()}
    if not limits_ns:
        return None
    # The mean of a stream's ITLs is its TPOT.
    tpot_ns = min((limits_ns[name] for name in ("tpot", "itl") if name in limits_ns), default=None)
    return StreamLimits(ttft_ns=limits_ns.get("ttft"), tpot_ns=tpot_ns, e2e_ns=limits_ns.get("e2e"))


def _last_words(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def _merge_stages(
    parts: Sequence[dict[int, StageDelta]], *, peak: Callable[[Iterable[int]], int] = max
) -> dict[int, StageDelta]:
    """The sums by stage; `peak` is `max` over ticks of one worker, `sum` over workers, which hold theirs at once."""
    by_stage: dict[int, list[StageDelta]] = {}
    for stages in parts:
        for index, delta in stages.items():
            by_stage.setdefault(index, []).append(delta)
    return {index: _merged(deltas, peak) for index, deltas in by_stage.items()}


def _merged(deltas: list[StageDelta], peak: Callable[[Iterable[int]], int]) -> StageDelta:
    # One worker is the usual case, and its delta is the sum already.
    if len(deltas) == 1:
        return deltas[0]
    total = StageMetrics.of(*deltas).encode()
    return msgspec.structs.replace(total, peak=peak(delta.peak for delta in deltas))


def _merge_clients(deltas: list[ClientDelta]) -> ClientDelta:
    if len(deltas) == 1:
        return deltas[0]
    total = ClientMetrics()
    for delta in deltas:
        total.add(delta)
    return total.encode()


def _sum_by_key(counts: list[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for count in counts:
        for key, value in count.items():
            total[key] = total.get(key, 0) + value
    return total
