"""The engine's own metrics: read once a second for the screen, and at every boundary of a stage for the result.

One reading ends a stage and begins the next, so that their deltas add up. If nothing is in flight between two stages,
the next waits for the reading, so that both sides count the same streams; a running load never waits for a reading.
The metrics of an engine without /metrics are left out. Several servers are read at once and summed before anything is
computed, so that means cover all requests, as with several engines in one server. Rates for the screen are over the
last `WINDOW_S` seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from loadgen.errors import ServerError
from loadgen.metrics.stall import moving_part
from loadgen.schema.engine import EngineStage, EngineView
from loadgen.schema.journal import EngineMeasured, EnginesQuiet, Happened, Line
from loadgen.schema.snapshot import WINDOW_S
from loadgen.server.engines.figures import stage_of, view_of
from loadgen.server.engines.names import ENGINES, EngineSample
from loadgen.server.engines.sample import continued, parse_engine_metrics, sum_of, without_counts
from loadgen.server.engines.window import is_restarted
from loadgen.server.vllm.client import ServerClient

_PERIOD_S = 1.0
_AT_ONCE_S = 0.1  # a reading between two stages serves as their boundary if the next one begins within this time
_UNSURE = 1 / 3  # the largest uncertain part of a rate's span: a slow reading may be from any moment of its duration
_MIN_LIFE_S = 10.0  # no server restarts faster: counters that fall again sooner are not from one server
_RESTARTED = "the engine was restarted: its counters started from zero again"
_SEVERAL = "the engine's counters fall again and again: several servers answer at this address, or it miscounts"


class _Reading(NamedTuple):
    """The sample of each server (None if it did not answer), and the time span of the reading."""

    samples: list[EngineSample | None]
    began_s: float
    ended_s: float
    idle_s: float | None  # when all were last known to be idle, at most now; None if never

    def seconds_since(self, before: _Reading) -> float | None:
        """The time between the middles of two readings; None if too much of it was spent on reading."""
        span_s = (self.began_s + self.ended_s - before.began_s - before.ended_s) / 2
        unsure_s = (self.ended_s - self.began_s + before.ended_s - before.began_s) / 2
        return span_s if unsure_s <= _UNSURE * span_s else None


class _Server:
    """The readings of one server; after a restart they continue from the earlier totals, so that counters only grow."""

    def __init__(self, client: ServerClient, event: Callable[[str], None], clock_s: Callable[[], float]) -> None:
        self._client = client
        self._event = event
        self._clock_s = clock_s
        self._lock = asyncio.Lock()  # readings that overtook each other would look like a restart
        self._last: EngineSample | None = None  # as read
        self._total: EngineSample | None = None  # including counts from before restarts
        self._before: EngineSample | None = None
        self._failing = False
        self._is_unknown = False
        self.restarts_s: list[float] = []
        self.is_several = False  # several servers answer at this address in turn, so their samples cannot be used

    async def read(self) -> EngineSample | None:
        """The server's present sample, None if it does not answer; problems are reported once."""
        async with self._lock:
            try:
                text = await self._client.metrics_text()
                sample = await asyncio.to_thread(parse_engine_metrics, text)
            except ServerError as error:
                # Also happens when a server dies, which is reported elsewhere; stale figures are not shown.
                if not self._failing:
                    self._event(f"no engine metrics: {error}")
                self._failing = True
                return None
            if self._failing:
                self._event(f"{self._client.base_url}: engine metrics are back")
            self._failing = False
            return self._added(sample)

    def _added(self, sample: EngineSample) -> EngineSample:
        if sample.kind is None and not self._is_unknown:
            known = ", ".join(engine.title for engine in ENGINES.values())
            self._event(f"{self._client.base_url}/metrics: no figure of {known} is on this page")
        self._is_unknown = sample.kind is None
        if self._last is not None and is_restarted(self._last, sample):
            now_s = self._clock_s()
            if not self.is_several:
                self.is_several = bool(self.restarts_s) and now_s - self.restarts_s[-1] < _MIN_LIFE_S
                self._event(f"{self._client.base_url}: {_SEVERAL if self.is_several else _RESTARTED}")
            self._before = self._total
            self.restarts_s.append(now_s)
        self._last = sample
        self._total = sample if self._before is None else continued(self._before, sample)
        return without_counts(sample) if self.is_several else self._total


class EngineWatch:
    """Reads /metrics during a run; `start`, then `boundary` at each change of stage, then `close`."""

    def __init__(
        self, clients: Sequence[ServerClient], log: Callable[[Line], None], clock_s: Callable[[], float]
    ) -> None:
        self._log = log
        self._servers = [_Server(client, self._event, clock_s) for client in clients]
        self._clock_s = clock_s
        self._poll: asyncio.Task[None] | None = None
        self._readings: set[asyncio.Task[None]] = set()
        self._began: dict[int, _Reading] = {}
        self._nothing_begun = True
        self._latest = _Reading([None for _ in clients], 0.0, 0.0, None)
        self._recent: deque[_Reading] = deque()  # of the last `WINDOW_S` seconds, oldest first
        self._between: _Reading | None = None  # taken while nothing was open, for the next boundary
        self._quiet: _Reading | None = None  # the last one while nothing was open
        self._since_quiet: list[int] = []  # the stages that have begun since then
        self.view: EngineView | None = None  # all servers together, at the last reading; None unless all answered
        self.views: list[EngineView | None] = [None for _ in clients]  # each server, at the last reading
        self._is_new = False  # whether `views` have not been taken yet

    async def start(self) -> None:
        """Take the first reading, and continue once a second if it worked."""
        await self._read()
        if any(self._latest.samples):
            self._poll = asyncio.create_task(self._poll_forever())

    def boundary(self, ended: int | None, begun: int | None) -> None:
        """Note that a stage ended, began, or both."""
        between, self._between = self._between, None
        if self._poll is None or (ended is None and begun is None):
            return
        is_first, self._nothing_begun = self._nothing_begun, False
        is_between = between is not None and self._clock_s() - between.ended_s < _AT_ONCE_S
        if between is not None and is_between:
            self._assign(ended, begun, between)
            self._now_quiet(between)
        elif is_first and begun is not None and all(self._latest.samples):
            # Nothing has been sent since the first reading.
            self._began[begun] = self._quiet = self._latest
        else:
            task = asyncio.create_task(self._read_at(ended, begun))
            self._readings.add(task)
            task.add_done_callback(self._readings.discard)
        if begun is not None:
            self._since_quiet.append(begun)

    async def _read_at(self, ended: int | None, begun: int | None) -> None:
        self._assign(ended, begun, await self._read())

    async def read_between(self) -> None:
        """Take the reading for the next boundary, while nothing is open and before anything more is sent."""
        if self._poll is not None:
            self._between = await self._read()

    async def read_after_load(self) -> None:
        """Read the engines after the last stream has ended."""
        before = list(self._since_quiet)
        if self._poll is not None and before:
            reading = await self._read()
            if self._since_quiet == before:  # no stage has begun meanwhile
                self._now_quiet(reading)

    def _now_quiet(self, reading: _Reading) -> None:
        """Compare with the last reading at which nothing was open, over all stages since then."""
        before, stages = self._quiet, self._since_quiet
        self._quiet, self._since_quiet = reading, []
        if before is not None and stages:
            engine, _ = self._engines_between(before, reading)
            self._log(EnginesQuiet(t_s=self._clock_s(), first=stages[0], last=stages[-1], engine=engine))

    async def settle(self) -> None:
        """Wait for readings of boundaries that are in progress."""
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
        if ended is None or before is None:
            return
        whole, each = self._engines_between(before, reading)
        if whole is not None or any(each):
            instances = tuple(each) if len(each) > 1 else ()
            engine = whole or EngineStage()
            self._log(EngineMeasured(t_s=self._clock_s(), index=ended, engine=engine, instances=instances))

    def _engines_between(
        self, before: _Reading, after: _Reading
    ) -> tuple[EngineStage | None, Sequence[EngineStage | None]]:
        """What all servers did together, and each of them; None where one could not be read."""
        # No open request began more than `oldest_s` before the end.
        oldest_s = None if before.idle_s is None else after.ended_s - before.idle_s
        numbers_of = partial(stage_of, between_s=(before.began_s, after.ended_s), oldest_s=oldest_s)
        restarts = [sum(t_s > before.ended_s for t_s in server.restarts_s) for server in self._servers]
        pairs = zip(before.samples, after.samples, restarts, strict=True)
        each = [numbers_of(*samples, restarts=count) for *samples, count in pairs]
        whole = numbers_of(sum_of(before.samples), sum_of(after.samples), restarts=sum(restarts))
        if any(server.is_several for server in self._servers):
            each, whole = [None for _ in each], EngineStage(doubts={"all": _SEVERAL})
        return whole, each

    async def _read(self) -> _Reading:
        began_s = self._clock_s()
        samples = await asyncio.gather(*(server.read() for server in self._servers))
        idle = all(sample is not None and sample.is_idle for sample in samples)
        idle_s = began_s if idle else self._latest.idle_s
        reading = self._latest = _Reading(samples, began_s, self._clock_s(), idle_s)
        self._show(reading)
        return reading

    def _show(self, latest: _Reading) -> None:
        self._recent.append(latest)
        while self._recent[0].ended_s < latest.ended_s - WINDOW_S:
            self._recent.popleft()
        # If no span is certain enough there are no rates; counts are known anyway.
        oldest = next((reading for reading in self._recent if latest.seconds_since(reading)), self._recent[0])
        span_s = latest.seconds_since(oldest) or 0.0
        view = view_of(sum_of(oldest.samples), sum_of(latest.samples), span_s)
        if view is not None and span_s:
            between_s, reading_s = (oldest.began_s, latest.ended_s), latest.ended_s - latest.began_s
            view = msgspec.structs.replace(view, between_s=between_s, span_s=span_s, reading_s=reading_s)
        self.view = view
        pairs = zip(oldest.samples, latest.samples, strict=True)
        self.views = [view_of(before, after, span_s) for before, after in pairs]
        self._is_new = True

    def take_each(self) -> tuple[EngineView | None, ...]:
        """What moves while each of several servers works; empty if not read since the last call."""
        is_new, self._is_new = self._is_new and len(self.views) > 1, False
        return tuple(None if view is None else moving_part(view) for view in self.views) if is_new else ()

    def _event(self, text: str) -> None:
        self._log(Happened(t_s=self._clock_s(), kind="engine", text=text))
