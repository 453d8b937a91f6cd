"""Time series that take bounded memory, however long the run, and lose no extremes.

Each row is a moment with the lowest and highest value of every column, equal in a fresh row. The newest `kept_raw` rows
stay as they are; when the arrays are full, older rows within one time step are merged, and the step doubles until a
quarter of the room is free. So the older part has one uniform resolution, and times stay in order. Unknown is NaN here
and None in a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.schema.bounds import Columns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FIRST_STEP_S = 0.5


class TimeSeries:
    """Columns over time, as lows and highs."""

    def __init__(self, columns: Sequence[str], *, capacity: int, kept_raw: int) -> None:
        assert 0 < kept_raw <= capacity // 2
        self.rows: Mapping[str, int] = {column: row for row, column in enumerate(columns)}
        """The row of each column in `lows` and `highs`."""
        self._capacity, self._kept_raw = capacity, kept_raw
        self._step_s = _FIRST_STEP_S
        self._length = 0
        # Filled now, so that the memory is allocated now and does not grow for the first hour of a run.
        self._times = np.full(capacity, np.nan)
        self._lows = np.full((len(self.rows), capacity), np.nan)
        self._highs = np.full((len(self.rows), capacity), np.nan)

    def __len__(self) -> int:
        return self._length

    @property
    def times(self) -> Floats:
        return self._times[: self._length]

    @property
    def lows(self) -> Floats:
        """The lowest values: a row for each column, a value for each moment."""
        return self._lows[:, : self._length]

    @property
    def highs(self) -> Floats:
        return self._highs[:, : self._length]

    def add(self, t_s: float, values: Mapping[str, float | tuple[float, float] | None]) -> None:
        """Append a moment; ignored unless it is later than the last.

        A value known only to lie between two bounds is given as these.
        """
        if self._length and t_s <= self._times[self._length - 1]:
            return
        if self._length == self._capacity:
            self._merge_older()
            while self._length > self._capacity * 3 // 4:
                self._step_s *= 2
                self._merge_older()
        here = self._length
        self._times[here] = t_s
        for column, row in self.rows.items():
            value = values.get(column)
            bounds = value if isinstance(value, tuple) else (value, value)
            self._lows[row, here], self._highs[row, here] = (np.nan if one is None else one for one in bounds)
        self._length += 1

    def last(self, column: str) -> float | None:
        """The newest value of a column, None when it is unknown."""
        if not self._length:
            return None
        value = float(self._highs[self.rows[column], self._length - 1])
        return None if np.isnan(value) else value

    def last_bounds(self, column: str) -> tuple[float, float] | None:
        """The bounds of the newest value; None if it is known exactly, or unknown."""
        row = self.rows[column]
        low, high = (
            float(values[row, self._length - 1]) if self._length else 0.0 for values in (self._lows, self._highs)
        )
        return (low, high) if low < high else None

    def columns(self) -> Columns:
        columns: Columns = {"t_s": _plain(self.times)}
        for column, row in self.rows.items():
            lows, highs = self.lows[row], self.highs[row]
            columns[column] = _plain(highs)
            if not np.array_equal(lows, highs, equal_nan=True):
                columns[f"{column}_min"] = _plain(lows)
        return columns

    def _merge_older(self) -> None:
        older = self._length - self._kept_raw
        steps = np.floor(self._times[:older] / self._step_s)
        starts = changes(steps)
        length = len(starts) + self._kept_raw
        self._times[:length] = np.concatenate([self._times[starts], self._times[older : self._length]])
        for values, extreme in ((self._lows, np.fmin), (self._highs, np.fmax)):
            merged = extreme.reduceat(values[:, :older], starts, axis=1)
            values[:, :length] = np.concatenate([merged, values[:, older : self._length]], axis=1)
        self._length = length


def changes(values: NDArray[Any]) -> Ints:
    """Where runs of equal values begin."""
    changed = np.ones(len(values), dtype=np.bool_)
    changed[1:] = values[1:] != values[:-1]
    return np.flatnonzero(changed)


def _plain(values: Floats) -> list[float | int | None]:
    """Numbers of JSON: whole ones without a fraction, None for what is unknown."""
    return [None if value != value else int(value) if value.is_integer() else value for value in values.tolist()]
