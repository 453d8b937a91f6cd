"""Others' traffic: what an engine served beyond vramp's own requests, computed as its totals minus ours.

Both count the same events, but at different moments: the engine is read once a second, and a worker's events arrive in
its tick, up to `LAG_S` later. So for the time between two readings, our own count is known only within bounds. A total
within the bounds is no evidence of others and is reported as 0; beyond them, the likely value is subtracted from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from loadgen.metrics.series import Floats, TimeSeries
from loadgen.schema.engine import COUNT_AT_END, EngineStage, EngineView, OthersTraffic
from loadgen.schema.journal import Ticked

LAG_S = 0.75  # from an event in the engine to the tick that reports it: two intervals of 250 ms, and one of tolerance
_COUNTS = ("requests", "prompt_tokens", "generation_tokens")
_TOKENS = frozenset({"prompt_tokens", "generation_tokens"})
_INEXACT = 0.01  # of a rate: it is rounded, and its span is uncertain by the duration of a reading
_CAPACITY, _KEPT_RAW = 6_000, 1_200


class Bounds(NamedTuple):
    """Bounds of our own count over a span, and its likely value."""

    least: float
    likely: float
    most: float


class OwnTraffic:
    """vramp's own streams over the run: cumulative counts at each tick."""

    def __init__(self) -> None:
        self._series = TimeSeries((*_COUNTS, "open", "most_open", "reported_s"), capacity=_CAPACITY, kept_raw=_KEPT_RAW)
        self._totals = dict.fromkeys(_COUNTS, 0)
        self._reported_s = 0.0  # up to here, all workers have reported
        self.reported_late = False
        """The server reports tokens only at the end of a stream, or never: until then they are unknown."""

    def add(
        self,
        t_s: float,
        *,
        requests: int,
        prompt_tokens: int,
        generation_tokens: int,
        held: int,
        most_held: int = 0,
        behind_s: float = 0.0,
    ) -> None:
        """Add a tick: what arrived since the last one, the open streams, and the most since the last one.

        Events of the last `behind_s` may be missing: the slowest worker's report is that old.
        """
        self._reported_s = max(self._reported_s, t_s - behind_s)
        totals = self._totals
        totals["requests"] += requests
        totals["prompt_tokens"] += prompt_tokens
        totals["generation_tokens"] += generation_tokens
        self.reported_late |= totals["generation_tokens"] > 0 and not totals["prompt_tokens"]
        self._series.add(
            t_s, {**totals, "open": held, "most_open": max(held, most_held), "reported_s": self._reported_s}
        )

    def reaches(self, t_s: float) -> bool:
        """Whether everything that happened until `t_s` has been reported."""
        return len(self._series) > 0 and float(self._reported[-1]) >= t_s + LAG_S

    def count(self, name: str, since_s: float, until_s: float) -> Bounds:
        least = max(0.0, self._at_least(name, until_s) - self._at_most(name, since_s + LAG_S))
        most = self._at_most(name, until_s + LAG_S) - self._at_least(name, since_s)
        if not self.reaches(until_s):  # such as at the end of a run: the latest events may be incomplete
            most += self._totals[name] - self._at_least(name, until_s - 2 * LAG_S)
        likely = self._likely(name, until_s + LAG_S / 2) - self._likely(name, since_s + LAG_S / 2)
        return Bounds(least, min(max(likely, least), most), most)

    def open_between(self, since_s: float, until_s: float) -> Bounds:
        series = self._series
        first = int(np.searchsorted(series.times, since_s - LAG_S))
        last = int(np.searchsorted(self._reported, until_s + LAG_S))
        first = max(0, min(first, len(series)) - 1)
        row = series.rows["open"]
        lows, highs = series.lows[row, first:last], series.highs[row, first:last]
        most = series.highs[series.rows["most_open"], first:last]
        if not len(lows):
            return Bounds(0.0, 0.0, 0.0)
        return Bounds(float(lows.min()), float((lows.mean() + highs.mean()) / 2), float(most.max()))

    @property
    def _reported(self) -> Floats:
        """For each row of the series, the time up to which all workers had reported."""
        reported: Floats = self._series.lows[self._series.rows["reported_s"]]
        return reported

    def _at_least(self, name: str, t_s: float) -> float:
        """A lower bound of a total at a moment."""
        before = int(np.searchsorted(self._series.times, t_s, side="right"))
        return float(self._series.lows[self._series.rows[name], before - 1]) if before else 0.0

    def _at_most(self, name: str, t_s: float) -> float:
        """An upper bound of a total at a moment."""
        row, after = self._series.rows[name], int(np.searchsorted(self._reported, t_s))
        if after < len(self._series):
            return float(self._series.lows[row, after])
        return float(self._totals[name])

    def _likely(self, name: str, t_s: float) -> float:
        if not len(self._series):
            return 0.0
        return float(np.interp(t_s, self._reported, self._series.lows[self._series.rows[name]], left=0.0))


class Traffic:
    """Separates others' traffic from our own, from ticks and engine views in order."""

    def __init__(self) -> None:
        self.others: OthersTraffic | None = None
        """Others' traffic over the latest seconds that both sides have reported; None if unknown."""
        self.own = OwnTraffic()
        self._unreported: EngineView | None = None  # a view whose span the ticks have not fully reported yet

    def tick(self, line: Ticked) -> bool:
        """Process a tick; returns whether `others` is new."""
        own = line.own
        given_up = sum(delta.cancelled + delta.unfinished for delta in line.stages.values())
        self.own.add(
            line.t_s,
            requests=line.client.requests + line.failed + given_up + own.requests,
            prompt_tokens=line.client.input_tokens + own.input_tokens,
            generation_tokens=line.client.output_tokens + own.output_tokens,
            behind_s=line.behind_s,
            held=line.held + own.open,
            most_held=max(line.held, line.most_held) + own.open + own.requests,
        )
        if line.engine is None or line.engine.between_s is None:
            self.others = self._unreported = None
            return False
        self._unreported = self._unreported or line.engine
        _, until_s = self._unreported.between_s or line.engine.between_s
        if not self.own.reaches(until_s):
            return False
        self.others, self._unreported = others_now(self._unreported, self.own), None
        return True


def others_now(engine: EngineView, own: OwnTraffic) -> OthersTraffic | None:
    """Others' traffic over the span of a view, and at its end; None if the view has no span."""
    if engine.between_s is None or engine.span_s is None:
        return None
    rates = _rates(engine, own, *engine.between_s, engine.span_s)
    until_s = engine.between_s[1]
    open_streams = own.open_between(until_s - engine.reading_s, until_s)
    running = None if engine.running is None else _beyond(engine.running + (engine.waiting or 0.0), open_streams)
    return OthersTraffic(running=running, **rates)


def others_of(engine: EngineStage, own: OwnTraffic, running: float | None) -> OthersTraffic | None:
    """Others' traffic over a stage; `running` is the mean of the values observed during it."""
    if engine.between_s is None or "all" in engine.doubts:
        return None
    since_s, until_s = engine.between_s
    return OthersTraffic(running=running, **_rates(engine, own, since_s, until_s, until_s - since_s))


def _rates(
    engine: EngineView | EngineStage, own: OwnTraffic, since_s: float, until_s: float, span_s: float
) -> Mapping[str, float | None]:
    # If either side counts tokens only when a stream ends, the counts say nothing about streams in flight.
    late = own.reported_late or engine.kind in COUNT_AT_END
    alone = not own.count("requests", since_s, until_s).most and not own.open_between(until_s, until_s).most
    found: dict[str, float | None] = {}
    for name in _COUNTS:
        rate: float | None = getattr(engine, f"{name}_per_s")
        unknown = rate is None or span_s <= 0 or (late and not alone and name in _TOKENS)
        beyond = None if unknown else _beyond((rate or 0.0) * span_s, own.count(name, since_s, until_s))
        found[f"{name}_per_s"] = None if beyond is None else beyond / span_s
    return found


def _beyond(total: float, own: Bounds) -> float:
    return total - own.likely if round(total) > own.most * (1 + _INEXACT) else 0.0
