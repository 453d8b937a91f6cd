"""The time series behind the charts: bounded memory however long the run.

Each row is a moment with the lowest and highest value of every column; a fresh point has the two equal. The newest
`KEPT_RAW` points stay as they came; when the arrays are full, older rows that fall into one time step are merged, and
the step doubles until a quarter of the room is free. So extremes are never lost, the older part has one uniform
resolution, and times stay in order. Unknown is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CAPACITY = 6_000
KEPT_RAW = 2_400
"""Ten minutes at four points a second."""
FIRST_STEP_S = 0.5

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
        assert 0 < kept_raw <= capacity // 2
        self._rows = {column: row for row, column in enumerate(columns)}
        self._capacity, self._kept_raw = capacity, kept_raw
        self._step_s = FIRST_STEP_S
        self._length = 0
        self._times = np.empty(capacity)
        self._lows = np.empty((len(self._rows), capacity))
        self._highs = np.empty((len(self._rows), capacity))
        self._folded: tuple[tuple[float, float, int, float], Folded] | None = None

    def __len__(self) -> int:
        return self._length

    def add(self, t_s: float, values: Mapping[str, float | None]) -> None:
        """Append a moment; one that is not later than the last is dropped."""
        if self._length and t_s <= self._times[self._length - 1]:
            return
        if self._length == self._capacity:
            self._thin()
        here = self._length
        self._times[here] = t_s
        for column, row in self._rows.items():
            value = values.get(column)
            self._lows[row, here] = self._highs[row, here] = np.nan if value is None else value
        self._length += 1

    @property
    def times(self) -> Floats:
        """All moments."""
        return self._times[: self._length]

    def folded(self, start_s: float, end_s: float, columns: int) -> Folded:
        """A stretch of time folded onto columns of dots; remembered, because charts of one width ask for the same."""
        key = (start_s, end_s, columns, float(self._times[self._length - 1]) if self._length else start_s)
        if self._folded is None or self._folded[0] != key:
            self._folded = (key, self._fold(start_s, end_s, columns))
        return self._folded[1]

    def _fold(self, start_s: float, end_s: float, columns: int) -> Folded:
        first, last = np.searchsorted(self._times[: self._length], (start_s, end_s + 1e-9)).tolist()
        shares = (self._times[first:last] - start_s) / (end_s - start_s)
        column = (np.clip(shares, 0.0, 1.0) * (columns - 1) + 0.5).astype(np.int64)
        starts = _changes(column)
        if not len(starts):
            return Folded(self._rows, column, self._lows[:, :0], self._highs[:, :0])
        lows = np.fmin.reduceat(self._lows[:, first:last], starts, axis=1)
        highs = np.fmax.reduceat(self._highs[:, first:last], starts, axis=1)
        return Folded(self._rows, column[starts], lows, highs)

    def last(self, column: str) -> float | None:
        """The newest value of a column, None when it is unknown."""
        if not self._length:
            return None
        value = float(self._highs[self._rows[column], self._length - 1])
        return None if np.isnan(value) else value

    def _thin(self) -> None:
        self._merge_older()
        while self._length > self._capacity * 3 // 4:
            self._step_s *= 2
            self._merge_older()

    def _merge_older(self) -> None:
        older = self._length - self._kept_raw
        steps = np.floor(self._times[:older] / self._step_s)
        starts = _changes(steps)
        length = len(starts) + self._kept_raw
        self._times[:length] = np.concatenate([self._times[starts], self._times[older : self._length]])
        for values, extreme in ((self._lows, np.fmin), (self._highs, np.fmax)):
            merged = extreme.reduceat(values[:, :older], starts, axis=1)
            values[:, :length] = np.concatenate([merged, values[:, older : self._length]], axis=1)
        self._length = length


def _changes(values: NDArray[Any]) -> Ints:
    """Where runs of equal values begin."""
    changed = np.ones(len(values), dtype=np.bool_)
    changed[1:] = values[1:] != values[:-1]
    return np.flatnonzero(changed)
