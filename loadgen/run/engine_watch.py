"""The engine's own metrics beside ours: once a second for the screen, and at every boundary of a stage for the result.

One reading ends a stage and begins the next, so that their deltas add up. Where nothing is open between two stages, the
next waits for the reading, so that it is of the same streams as ours; a running load never waits for any of it. An
engine without /metrics is simply not shown. Several servers are read at once and added up before anything is computed,
so that means are those of all requests, as with engines in one server.
What is shown as a rate is over the last `WINDOW_S` seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from loadgen.errors import ServerError
from loadgen.metrics.engine import EngineLatencyMs, EngineStage, EngineView
from loadgen.metrics.journal import EngineMeasured, Happened, Line
from loadgen.metrics.snapshot import WINDOW_S
from loadgen.server.vllm.client import ServerClient
from loadgen.server.vllm.engine_metrics import (
    LATENCIES,
    EngineHistogram,
    EngineLatency,
    EngineSample,
    delta,
    engine_doubts,
    is_idle,
    parse_engine_metrics,
    together,
)

_PERIOD_S = 1.0
_SHORTEST_SPAN_S = 0.5  # of a rate: a boundary may be read right after the poll, and a step of the counter is no speed
_AT_ONCE_S = 0.1  # A reading between two stages is of their boundary if that follows so soon
_RESTARTED = "its counters went back: it was restarted, or miscounts"


class _Reading(NamedTuple):
    """What each server said, and between which moments; None for one that said nothing."""

    samples: list[EngineSample | None]
    began_s: float
    ended_s: float
    idle_s: float | None  # when all were last known to be idle, at the latest now; None if they never were


class EngineWatch:
    """Reads /metrics while a run goes on; `start`, then `boundary` at each change of stage, then `close`."""

    def __init__(
        self, clients: Sequence[ServerClient], log: Callable[[Line], None], clock_s: Callable[[], float]
    ) -> None:
        self._clients = clients
        self._log = log
        self._clock_s = clock_s
        self._poll: asyncio.Task[None] | None = None
        self._readings: set[asyncio.Task[None]] = set()
        self._began: dict[int, _Reading] = {}
        self._latest = _Reading([None for _ in clients], 0.0, 0.0, None)
        self._recent: deque[_Reading] = deque()  # the readings of the last `WINDOW_S` seconds, oldest first
        self._between: _Reading | None = None  # taken while nothing was open, for the boundary that comes next
        self._failing: set[ServerClient] = set()
        self.view: EngineView | None = None  # all servers together, as last read; None unless all are known
        self.views: list[EngineView | None] = [None for _ in clients]  # each server, as last read

    async def start(self) -> None:
        """Take the first reading, and go on once a second if there was one."""
        await self._read()
        if any(self._latest.samples):
            self._poll = asyncio.create_task(self._poll_forever())

    def boundary(self, ended: int | None, begun: int | None) -> None:
        """A stage ended, or began, or both."""
        between, self._between = self._between, None
        if self._poll is None or (ended is None and begun is None):
            return
        if between is not None and self._clock_s() - between.ended_s < _AT_ONCE_S:
            self._assign(ended, begun, between)
            return
        if not self._began and ended is None and begun is not None and all(self._latest.samples):
            # Nothing has been sent since the first reading.
            self._began[begun] = self._latest
            return

        async def read() -> None:
            self._assign(ended, begun, await self._read())

        task = asyncio.create_task(read())
        self._readings.add(task)
        task.add_done_callback(self._readings.discard)

    async def read_between(self) -> None:
        """Nothing is open: take the reading of the boundary that comes next, before anything is sent after it."""
        if self._poll is not None:
            self._between = await self._read()

    async def settle(self) -> None:
        """Wait for readings of boundaries that are under way."""
        await asyncio.gather(*self._readings)

    async def close(self) -> None:
        tasks = {*self._readings, *([self._poll] if self._poll is not None else [])}
        self._poll = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self._read()

    def _assign(self, ended: int | None, begun: int | None, reading: _Reading) -> None:
        if begun is not None:
            self._began[begun] = reading
        before = self._began.pop(ended, None) if ended is not None else None
        if ended is not None and before is not None:
            self._measured(ended, before, reading)

    def _measured(self, stage: int, before: _Reading, after: _Reading) -> None:
        # No request that was open had begun more than `oldest_s` before the end.
        oldest_s = None if before.idle_s is None else after.ended_s - before.idle_s
        numbers_of = partial(_stage_numbers, span_s=after.ended_s - before.began_s, oldest_s=oldest_s)
        each = [numbers_of(*pair) for pair in zip(before.samples, after.samples, strict=True)]
        whole = numbers_of(sum_of(before.samples), sum_of(after.samples))
        if any(each):
            instances = tuple(each) if len(each) > 1 else ()
            engine = whole or EngineStage()
            self._log(EngineMeasured(t_s=self._clock_s(), index=stage, engine=engine, instances=instances))

    async def _read(self) -> _Reading:
        began_s = self._clock_s()
        samples = await asyncio.gather(*(self._read_one(client) for client in self._clients))
        idle = all(sample is not None and is_idle(sample) for sample in samples)
        idle_s = began_s if idle else self._latest.idle_s
        reading = self._latest = _Reading(samples, began_s, self._clock_s(), idle_s)
        self._show(reading)
        return reading

    def _show(self, latest: _Reading) -> None:
        self._recent.append(latest)
        while self._recent[0].ended_s < latest.ended_s - WINDOW_S:
            self._recent.popleft()
        oldest = self._recent[0]
        span_s = latest.ended_s - oldest.ended_s
        self.view = _view(sum_of(oldest.samples), sum_of(latest.samples), span_s)
        pairs = zip(oldest.samples, latest.samples, strict=True)
        self.views = [_view(before, after, span_s) for before, after in pairs]

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


def _view(before: EngineSample | None, sample: EngineSample | None, span_s: float) -> EngineView | None:
    if sample is None:
        return None
    change = delta(before, sample) if before is not None else None
    known = before.engines if before is not None else {}
    return EngineView(
        running=sample.running,
        waiting=sample.waiting,
        kv_usage=sample.kv_usage,
        preemptions=sample.preemptions,
        waiting_by_reason={reason: count for reason, count in sample.waiting_by_reason.items() if count},
        prefix_hit_rate=change.prefix_hit_rate if change is not None else None,
        prompt_tokens_per_s=_rate(change.prompt_tokens, span_s) if change is not None else None,
        generation_tokens_per_s=_rate(change.generation_tokens, span_s) if change is not None else None,
        tflops_per_gpu=_tflops(change.flops_per_gpu, span_s, _SHORTEST_SPAN_S) if change is not None else None,
        engines={name: view for name, one in sample.engines.items() if (view := _view(known.get(name), one, span_s))},
    )


def _rate(count: float | None, span_s: float) -> float | None:
    return None if count is None or span_s < _SHORTEST_SPAN_S else round(count / span_s, 1)


def _tflops(flops: float | None, span_s: float, shortest_s: float = 0.0) -> float | None:
    """Nothing gained is nothing told: an engine that does not count leaves the counter at 0."""
    return None if not flops or span_s <= shortest_s else flops / span_s / 1e12


def _stage_numbers(
    before: EngineSample | None, after: EngineSample | None, *, span_s: float, oldest_s: float | None
) -> EngineStage | None:
    if before is None or after is None:
        return None
    change = delta(before, after)
    if change is None:
        return EngineStage(doubts={"all": _RESTARTED})
    doubts = engine_doubts(before, after, span_s=span_s, oldest_s=oldest_s)
    found: dict[str, EngineLatency | None] = {name: getattr(change, name) for name in LATENCIES if name not in doubts}
    latency = {name: _latency_ms(known) for name, known in found.items() if known is not None}
    idle = is_idle(before), is_idle(after)
    numbers_of = partial(_stage_numbers, span_s=span_s, oldest_s=oldest_s)
    engines = {name: numbers_of(before.engines.get(name), one) for name, one in after.engines.items()}
    return EngineStage(
        **{f"{name}_mean_ms": known.mean for name, known in latency.items()},
        ttft_count=None if change.ttft is None else int(change.ttft.count),
        prompt_tokens=_whole(change.prompt_tokens),
        generation_tokens=_whole(change.generation_tokens),
        preemptions=_whole(change.preemptions),
        prefix_hit_rate=None if "prefix_hit_rate" in doubts else change.prefix_hit_rate,
        admission_rejections=_whole(change.admission_rejections),
        latency_ms=latency,
        engines={name: engine for name, engine in engines.items() if engine is not None},
        idle_around=None if None in idle else all(idle),
        doubts=doubts,
        tflops_per_gpu=_tflops(change.flops_per_gpu, span_s),
    )


def _latency_ms(latency: EngineLatency) -> EngineLatencyMs:
    percentiles = [
        None if value_s is None else value_s * 1000 for value_s in (latency.p50_s, latency.p90_s, latency.p99_s)
    ]
    return EngineLatencyMs(int(latency.count), latency.mean_s * 1000, *percentiles)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def sum_of(samples: Sequence[EngineSample | None]) -> EngineSample | None:
    """All samples added, of the use of the KV cache the fullest; None if one is missing, a metric if one lacks it."""
    known = [sample for sample in samples if sample is not None]
    if len(known) < len(samples) or not known:
        return None
    if len(known) == 1:
        return known[0]
    # Engines are kept apart within their server only: elsewhere the same label means another.
    names = [field.name for field in fields(EngineSample) if field.name != "engines"]
    return EngineSample(**{name: _sum(name, [getattr(sample, name) for sample in known]) for name in names})


def _sum(name: str, values: list[Any]) -> Any:  # noqa: ANN401 - a number, a mapping or a histogram, as the field is
    if None in values:
        return None
    if isinstance(values[0], Mapping):
        return {key: sum(value.get(key, 0.0) for value in values) for key in sorted({*chain(*values)})}
    if isinstance(values[0], EngineHistogram):
        buckets = Counter[float]()
        for part in values:
            buckets.update(dict(part.buckets))
        return EngineHistogram(
            sum(part.sum_s for part in values), sum(part.count for part in values), tuple(sorted(buckets.items()))
        )
    return together(name, values)
