"""Braille: lines, dots and areas as 2 x 4 dots a cell, vectorised.

Invariants: every finite point lights the cell that it falls into, whatever the ink, and one outside the plot its
nearest edge; a NaN breaks the line; nothing raises, whatever the numbers.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ink = Literal["line", "dots", "area"]
Cells = NDArray[np.uint8]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Pixels = NDArray[np.bool_]

# Where the eight dots of a cell are, from the lowest bit of its code point to the highest.
_ROWS = np.array([0, 1, 2, 0, 1, 2, 3, 3])
_COLUMNS = np.array([0, 0, 0, 1, 1, 1, 0, 1])


def trace(columns: Ints, low: Floats, high: Floats, *, width: int, height: int, ink: Ink = "line") -> Cells:
    """The dots of one series as a (height, width) array of braille bits.

    Each point spans `low` to `high` (shares of the height, 0 at the bottom) in a column of dots; columns ascend.
    """
    pixels = np.zeros((height * 4, width * 2), dtype=np.bool_)
    known = np.isfinite(low) & np.isfinite(high)
    if known.any():
        column = columns[known]
        top, bottom = _scaled(1 - high[known], height * 4), _scaled(1 - low[known], height * 4)
        _draw_lines(pixels, column, column, top, bottom)
        places = np.flatnonzero(known)
        joined = places[1:] == places[:-1] + 1
        middle = (top + bottom) // 2
        _draw_lines(pixels, column[:-1][joined], column[1:][joined], middle[:-1][joined], middle[1:][joined])
    return _packed(_inked(pixels, ink))


def polyline(x: Floats, y: Floats, *, width: int, height: int, ink: Ink = "line") -> Cells:
    """The dots of points joined in their order, as a (height, width) array of braille bits; shares of both sides."""
    pixels = np.zeros((height * 4, width * 2), dtype=np.bool_)
    known = np.isfinite(x) & np.isfinite(y)
    columns, rows = _scaled(x[known], width * 2), _scaled(1 - y[known], height * 4)
    if len(columns) == 1:
        pixels[rows, columns] = True
    places = np.flatnonzero(known)
    joined = places[1:] == places[:-1] + 1
    _draw_lines(pixels, columns[:-1][joined], columns[1:][joined], rows[:-1][joined], rows[1:][joined])
    return _packed(_inked(pixels, ink))


def _scaled(share: Floats, size: int) -> Ints:
    return (np.clip(share, 0.0, 1.0) * (size - 1) + 0.5).astype(np.int64)


def _draw_lines(pixels: Pixels, x0: Ints, x1: Ints, y0: Ints, y1: Ints) -> None:
    """All the straight lines at once: as many dots on each as its longer side has."""
    steps = np.maximum(np.abs(x1 - x0), np.abs(y1 - y0))
    line = np.repeat(np.arange(len(steps)), steps + 1)
    first = np.cumsum(steps + 1) - (steps + 1)
    share = (np.arange(len(line)) - first[line]) / np.maximum(steps, 1)[line]
    rows = np.rint(y0[line] + share * (y1 - y0)[line]).astype(np.int64)
    columns = np.rint(x0[line] + share * (x1 - x0)[line]).astype(np.int64)
    pixels[rows, columns] = True


def _inked(pixels: Pixels, ink: Ink) -> Pixels:
    if ink == "dots":
        pixels[:, 0::2] |= pixels[:, 1::2]
        pixels[:, 1::2] = False
    elif ink == "area":
        np.logical_or.accumulate(pixels, axis=0, out=pixels)
    return pixels


def _packed(pixels: Pixels) -> Cells:
    rows, columns = pixels.shape
    blocks = pixels.reshape(rows // 4, 4, columns // 2, 2)
    return np.packbits(blocks[:, _ROWS, :, _COLUMNS].transpose(1, 2, 0), axis=2, bitorder="little")[:, :, 0]
