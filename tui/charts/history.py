"""The time series behind the charts: bounded like those of a result, and folded onto columns of dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.metrics.series import Floats, Ints, TimeSeries, changes

CAPACITY = 6_000
KEPT_RAW = 2_400  # ten minutes at four points a second


@dataclass(frozen=True, slots=True)
class Folded:
    """A stretch of time as columns of dots: each at most once, in order, with the lowest and highest values in it."""

    rows: Mapping[str, int]
    columns: Ints
    all_lows: Floats
    all_highs: Floats

    def lows(self, name: str) -> Floats:
        """The lowest values of a series, NaN where it is unknown."""
        lows: Floats = self.all_lows[self.rows[name]]
        return lows

    def highs(self, name: str) -> Floats:
        """The highest values of a series."""
        highs: Floats = self.all_highs[self.rows[name]]
        return highs


class History:
    """Columns over time, as lows and highs."""

    def __init__(self, columns: Sequence[str], capacity: int = CAPACITY, kept_raw: int = KEPT_RAW) -> None:
        self._series = TimeSeries(columns, capacity=capacity, kept_raw=kept_raw)
        self._folded: tuple[tuple[float, float, int, float], Folded] | None = None

    def __len__(self) -> int:
        return len(self._series)

    @property
    def times(self) -> Floats:
        return self._series.times

    def add(self, t_s: float, values: Mapping[str, float | None]) -> None:
        """Append a moment; one that is not later than the last is dropped."""
        self._series.add(t_s, values)

    def last(self, column: str) -> float | None:
        """The newest value of a column, None when it is unknown."""
        return self._series.last(column)

    def folded(self, start_s: float, end_s: float, columns: int) -> Folded:
        """A stretch of time folded onto columns of dots; remembered, because charts of one width ask for the same."""
        key = (start_s, end_s, columns, float(self.times[-1]) if len(self) else start_s)
        if self._folded is None or self._folded[0] != key:
            self._folded = (key, self._fold(start_s, end_s, columns))
        return self._folded[1]

    def _fold(self, start_s: float, end_s: float, columns: int) -> Folded:
        series = self._series
        first, last = np.searchsorted(series.times, (start_s, end_s + 1e-9)).tolist()
        shares = (series.times[first:last] - start_s) / (end_s - start_s)
        column = (np.clip(shares, 0.0, 1.0) * (columns - 1) + 0.5).astype(np.int64)
        starts = changes(column)
        if not len(starts):
            return Folded(series.rows, column, series.lows[:, :0], series.highs[:, :0])
        lows = np.fmin.reduceat(series.lows[:, first:last], starts, axis=1)
        highs = np.fmax.reduceat(series.highs[:, first:last], starts, axis=1)
        return Folded(series.rows, column[starts], lows, highs)
