"""The GPUs with their history: a cell for each, a strip for each figure, all on the time axis of the charts.

Every strip has a fixed range, so that cells can be compared by eye: percent of time, of the power cap and of the
memory, and 0 to 110 C. Where the cells have no room, the table of the overview says it.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen import format as fmt
from loadgen.metrics.samples import GpuSample
from loadgen.metrics.snapshot import GpuView
from tui.charts.chart import MarkColumns, axis_row, mark_columns, traced
from tui.charts.definitions import GPU_STRIPS, GpuStrip, Series
from tui.charts.scale import Scale
from tui.charts.timeline import Folded
from tui.panels.frame import Frame
from tui.panels.gpus import energy, gpus
from tui.widgets.rows import GAP, Row, Rows, beside, cropped, titled, widths_of

_LEAST_WIDTH, _MOST_COLUMNS = 36, 4
_LEAST_ROWS, _ROOMY = 2, 5  # A title and a strip; a title and all strips
_GUTTER = 18


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the cells lie."""

    columns: int
    rows: int  # of each cell


def grid(frame: Frame, width: int, height: int) -> Rows:
    """All GPUs, or the table where they have no room."""
    found = frame.snapshot.gpus
    shape = _shape_of(len(found), width, height - 2)
    if shape is None:
        return gpus(frame, width, height)
    widths = widths_of(width, shape.columns)
    each = min(widths)
    folded = frame.timeline.gpus.folded(frame.span, (each - _GUTTER) * 2)
    marks = mark_columns(frame.timeline.marks.all, frame.span, each - _GUTTER)
    legend: Row = (*energy(frame), (f"  {fmt.plain(frame.snapshot.telemetry)}", "dim"))
    rows: Rows = [titled("gpus", legend, width)]
    for first in range(0, len(found), shape.columns):
        cells = [(_cell(gpu, folded, marks, each, shape.rows), each) for gpu in found[first : first + shape.columns]]
        rows += beside(cells, shape.rows)
    axis: Row = ((" " * (_GUTTER - 1), "text"), ("└", "rule"), *axis_row(marks, frame.span, each - _GUTTER))
    return [*rows, *beside([([axis], each)] * min(shape.columns, len(found)), 1)]


def _shape_of(count: int, width: int, height: int) -> _Shape | None:
    """As few columns as leave room to all strips, else as many as there is room for."""
    if not count:
        return None
    most = max(1, min(_MOST_COLUMNS, (width + GAP) // (_LEAST_WIDTH + GAP)))
    shapes = [_Shape(columns, height // -(-count // columns)) for columns in range(1, most + 1)]
    fewest = next((shape for shape in shapes[1:] or shapes if shape.rows >= _ROOMY), shapes[-1])
    best = shapes[0] if count == 1 else fewest
    return best if best.rows >= _LEAST_ROWS else None


def _cell(gpu: GpuView, folded: Folded, marks: MarkColumns, width: int, height: int) -> Rows:
    """A title with what is wrong, and as many strips as there are rows; a taller cell has taller strips."""
    strips = GPU_STRIPS[: height - 1]
    tall = max(1, (height - 1) // len(strips))
    legend: Row = ((fmt.plain("; ".join(gpu.flags)), "bad"),) if gpu.flags else ()
    rows: Rows = [titled(f"{gpu.static.index} {_short(gpu.static.name)}", cropped(legend, width - 8), width)]
    for strip in strips:
        rows += _strip_rows(gpu, strip, folded, marks, width - _GUTTER, tall)
    return rows


def _strip_rows(gpu: GpuView, strip: GpuStrip, folded: Folded, marks: MarkColumns, columns: int, rows: int) -> Rows:
    static, now = gpu.static, gpu.sample or GpuSample(index=gpu.static.index, t_s=0.0)
    series = Series(strip.column(static.index), strip.label, strip.role, "line" if rows > 1 else "area")
    if series.column not in folded.rows:
        return []
    lines = traced((series,), folded, Scale(0.0, strip.most, ()), marks, columns, rows).lines()
    head = f" {strip.label:<5}{strip.text(static, now):>{_GUTTER - 8}} "[: _GUTTER - 1]
    heads = [head, *[" " * (_GUTTER - 1)] * (rows - 1)]
    return [((head, "text"), ("│", "rule"), *line) for head, line in zip(heads, lines, strict=True)]


def _short(name: str) -> str:
    return fmt.plain(name.removeprefix("AMD ").removeprefix("NVIDIA ").removeprefix("Instinct "))
