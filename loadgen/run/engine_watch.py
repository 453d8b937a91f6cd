"""The engine's own metrics beside ours: once a second for the screen, and at every boundary of a stage for the result.

One reading ends a stage and begins the next, so that their deltas add up. The load never waits for any of it, and an
engine without /metrics is simply not shown. Several servers are read at once and added up before anything is computed,
so that means are those of all requests; of the use of the KV cache the fullest counts, as with engines in one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from loadgen.errors import ServerError
from loadgen.metrics.journal import EngineMeasured, EngineStage, Happened, Line
from loadgen.metrics.snapshot import EngineView
from loadgen.run.engine_sum import sum_of
from loadgen.server.client import ServerClient
from loadgen.server.engine_metrics import EngineLatency, EngineSample, delta, parse_engine_metrics

_PERIOD_S = 1.0
_Reading = list[EngineSample | None]
"""What each server said at one moment; None for one that said nothing."""


class EngineWatch:
    """Reads /metrics while a run goes on; `start`, then `boundary` at each change of stage, then `close`."""

    def __init__(
        self, clients: Sequence[ServerClient], log: Callable[[Line], None], clock_s: Callable[[], float]
    ) -> None:
        self._clients = clients
        self._log = log
        self._clock_s = clock_s
        self._poll: asyncio.Task[None] | None = None
        self._marks: set[asyncio.Task[None]] = set()
        self._began: dict[int, _Reading] = {}
        self._latest: _Reading = [None for _ in clients]
        self._failing: set[ServerClient] = set()

    @property
    def view(self) -> EngineView | None:
        """The latest gauges of all servers; None unless all are known."""
        return _view(sum_of(self._latest))

    @property
    def views(self) -> list[EngineView | None]:
        """The latest gauges of each server."""
        return [_view(sample) for sample in self._latest]

    async def start(self) -> None:
        """Take the first reading, and go on once a second if there was one."""
        await self._read()
        if any(self._latest):
            self._poll = asyncio.create_task(self._poll_forever())

    def boundary(self, ended: int | None, begun: int | None) -> None:
        """A stage ended, or began, or both."""
        if self._poll is None or (ended is None and begun is None):
            return
        if not self._began and ended is None and begun is not None and all(self._latest):
            # Nothing has been sent since the first reading.
            self._began[begun] = self._latest
            return
        task = asyncio.create_task(self._mark(ended, begun))
        self._marks.add(task)
        task.add_done_callback(self._marks.discard)

    async def settle(self) -> None:
        """Wait for readings of boundaries that are under way."""
        await asyncio.gather(*self._marks)

    async def close(self) -> None:
        """Read no more."""
        if self._poll is not None:
            self._poll.cancel()
        for task in self._marks:
            task.cancel()
        await asyncio.gather(*([self._poll] if self._poll else []), *self._marks, return_exceptions=True)
        self._poll = None

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self._read()

    async def _mark(self, ended: int | None, begun: int | None) -> None:
        reading = await self._read()
        if begun is not None:
            self._began[begun] = reading
        before = self._began.pop(ended, None) if ended is not None else None
        if ended is not None and before is not None:
            self._measured(ended, before, reading)

    def _measured(self, stage: int, before: _Reading, after: _Reading) -> None:
        each = [_stage_numbers(*pair) for pair in zip(before, after, strict=True)]
        whole = _stage_numbers(sum_of(before), sum_of(after))
        if any(each):
            instances = tuple(each) if len(each) > 1 else ()
            engine = whole or EngineStage()
            self._log(EngineMeasured(t_s=self._clock_s(), index=stage, engine=engine, instances=instances))

    async def _read(self) -> _Reading:
        self._latest = await asyncio.gather(*(self._read_one(client) for client in self._clients))
        return self._latest

    async def _read_one(self, client: ServerClient) -> EngineSample | None:
        try:
            text = await client.metrics_text()
            sample = None if text is None else parse_engine_metrics(text)
        except ServerError as error:
            # Seen when a server dies, which others report; what is stale is not shown.
            if client not in self._failing:
                self._log(Happened(t_s=self._clock_s(), kind="engine", text=f"no engine metrics: {error}"))
            self._failing.add(client)
            return None
        self._failing.discard(client)
        return sample


def _view(sample: EngineSample | None) -> EngineView | None:
    if sample is None:
        return None
    return EngineView(
        running=sample.running,
        waiting=sample.waiting,
        kv_usage=sample.kv_usage,
        preemptions=sample.preemptions,
    )


def _stage_numbers(before: EngineSample | None, after: EngineSample | None) -> EngineStage | None:
    if before is None or after is None:
        return None
    change = delta(before, after)
    if change is None:
        return EngineStage()
    return EngineStage(
        ttft_mean_ms=_mean_ms(change.ttft),
        ttft_count=None if change.ttft is None else int(change.ttft.count),
        itl_mean_ms=_mean_ms(change.itl),
        tpot_mean_ms=_mean_ms(change.tpot),
        e2e_mean_ms=_mean_ms(change.e2e),
        queue_mean_ms=_mean_ms(change.queue),
        prefill_mean_ms=_mean_ms(change.prefill),
        decode_mean_ms=_mean_ms(change.decode),
        prompt_tokens=_whole(change.prompt_tokens),
        generation_tokens=_whole(change.generation_tokens),
        preemptions=_whole(change.preemptions),
        prefix_hit_rate=change.prefix_hit_rate,
    )


def _mean_ms(latency: EngineLatency | None) -> float | None:
    return None if latency is None else latency.mean_s * 1000


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
