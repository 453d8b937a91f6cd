"""The load curve: what was measured against the streams held, from a load that moves and from stages that stand.

All that was measured at one load is one point, however the load came there: stages of a plan, of the operator's hand,
and the steps of ramps. Ramps up and down are kept apart, so that hysteresis shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.result import CurvePoint
from loadgen.metrics.stage_record import StageRecord

Direction = Literal["", "up", "down"]


class _Place(NamedTuple):
    """Where a point is on the curve."""

    isl: int
    osl: int
    direction: Direction
    load: float


class _Sum:
    """Everything that was measured at one place."""

    def __init__(self) -> None:
        self.span_s = 0.0
        self.held_area_s = 0.0
        self.output_tokens = 0
        self.ttft = Histogram()
        self.itl = Histogram()

    def add(self, other: _Sum) -> None:
        self.span_s += other.span_s
        self.held_area_s += other.held_area_s
        self.output_tokens += other.output_tokens
        self.ttft.add(other.ttft)
        self.itl.add(other.itl)

    def point(self, place: _Place) -> CurvePoint:
        return CurvePoint(
            isl=place.isl,
            osl=place.osl,
            load=place.load,
            direction=place.direction,
            held=self.held_area_s / self.span_s if self.span_s else 0.0,
            measured_s=self.span_s,
            output_tokens_per_s=self.output_tokens / self.span_s if self.span_s else None,
            output_tokens_per_s_per_user=self.output_tokens / self.held_area_s if self.held_area_s else None,
            ttft_ms=self.ttft.summary(),
            itl_ms=self.itl.summary(),
        )


class LoadCurve:
    """The curve of the stages that are over, to which those that go on are added for a look."""

    def __init__(self) -> None:
        self._sums: dict[_Place, _Sum] = {}
        self._points: dict[_Place, CurvePoint] = {}

    def add(self, stage: StageRecord) -> None:
        """Take in a stage to which nothing more comes."""
        for place, part in _parts(stage):
            self._sums.setdefault(place, _Sum()).add(part)
            self._points[place] = self._sums[place].point(place)

    def points(self, running: Iterable[StageRecord] = ()) -> tuple[CurvePoint, ...]:
        """A point for each load at which something was measured, by shape, direction and load."""
        present: dict[_Place, _Sum] = {}
        for stage in running:
            for place, part in _parts(stage):
                if place not in present:
                    present[place] = _Sum()
                    present[place].add(self._sums.get(place, _Sum()))
                present[place].add(part)
        points = self._points | {place: total.point(place) for place, total in present.items()}
        return tuple(points[place] for place in sorted(points))


def load_curve(stages: Iterable[StageRecord]) -> tuple[CurvePoint, ...]:
    return LoadCurve().points(stages)


def direction_of(steps: tuple[tuple[float, float], ...]) -> Direction:
    """Where a moving load goes; empty for one that stands."""
    if not steps or steps[0][1] == steps[-1][1]:
        return ""
    return "up" if steps[-1][1] > steps[0][1] else "down"


def _parts(stage: StageRecord) -> Iterator[tuple[_Place, _Sum]]:
    started = stage.started
    load = started.rate if started.rate is not None else started.concurrency
    place = _Place(started.isl, started.osl, direction_of(started.steps), float(load or 0))
    if not started.steps:
        if stage.window_s and started.rate is None:
            part = _Sum()
            part.span_s, part.held_area_s = stage.window_s, stage.counters["held_area_ns"] / 1e9
            part.output_tokens = stage.counters["window_output_tokens"]
            part.ttft, part.itl = (stage.histogram(name) for name in ("ttft", "itl"))
            yield place, part
        return
    for step, moved in sorted(stage.metrics.bins.items()):
        part = _Sum()
        # The span was added over the workers, which hold their shares at the same time.
        workers = max(1, stage.workers)
        part.span_s, part.held_area_s = moved.span_ns / 1e9 / workers, moved.held_area_ns / 1e9
        part.output_tokens, part.ttft, part.itl = moved.output_tokens, moved.ttft, moved.itl
        yield place._replace(load=started.steps[step][1] if step < len(started.steps) else place.load), part
