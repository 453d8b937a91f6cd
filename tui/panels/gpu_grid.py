"""The GPUs with their history: a cell for each, a strip for each figure, all on the time axis of the charts.

Every strip has a fixed range, so that cells can be compared by eye: percent of time, of the power cap and of the
memory, and 0 to 110 C. Where the cells have no room, the table of the overview says it.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen import format as fmt
from loadgen.metrics.samples import GpuSample
from loadgen.metrics.snapshot import GpuView
from tui.charts.chart import MarkColumns, Series, axis_row, mark_columns, traced_rows
from tui.charts.history import Folded
from tui.charts.scale import Scale
from tui.panels.frame import Frame
from tui.panels.gpus import energy, gpus
from tui.widgets.rows import GAP, Row, Rows, beside, cropped, titled, widths_of

_LEAST_WIDTH, _MOST_COLUMNS = 36, 4
_LEAST_ROWS, _ROOMY = 2, 5  # A title and a strip; a title and all strips
_HOTTEST_C = 110.0
_GUTTER = 18


@dataclass(frozen=True, slots=True)
class _Strip:
    label: str
    figure: str
    role: str
    scale: Scale


_HUNDRED = Scale(0.0, 100.0, ())
_STRIPS = (
    _Strip("busy", "busy", "busy", _HUNDRED),
    _Strip("power", "power", "power", _HUNDRED),
    _Strip("hot", "heat", "heat", Scale(0.0, _HOTTEST_C, ())),
    _Strip("HBM", "hbm", "hbm", _HUNDRED),
)
"""The most needed first."""


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
    folded = frame.timeline.gpus.folded(frame.span.start_s, frame.span.end_s, (each - _GUTTER) * 2)
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
    strips = _STRIPS[: height - 1]
    tall = max(1, (height - 1) // len(strips))
    legend: Row = ((fmt.plain("; ".join(gpu.flags)), "bad"),) if gpu.flags else ()
    rows: Rows = [titled(f"{gpu.static.index} {_short(gpu.static.name)}", cropped(legend, width - 8), width)]
    for strip in strips:
        rows += _strip_rows(gpu, strip, folded, marks, width - _GUTTER, tall)
    return rows


def _strip_rows(gpu: GpuView, strip: _Strip, folded: Folded, marks: MarkColumns, columns: int, rows: int) -> Rows:
    series = Series(f"{gpu.static.index} {strip.figure}", strip.label, strip.role, "line" if rows > 1 else "area")
    if series.column not in folded.rows:
        return []
    plot = traced_rows((series,), folded, strip.scale, marks, columns, rows)
    value = _value(gpu, strip.figure)
    head = f" {strip.label:<5}{value:>{_GUTTER - 8}} "
    blank: Row = ((" " * (_GUTTER - 1), "text"), ("│", "rule"))
    first: Row = ((head[: _GUTTER - 1], "text"), ("│", "rule"))
    return [(*(first if row == 0 else blank), *plot[row]) for row in range(rows)]


def _value(gpu: GpuView, figure: str) -> str:
    now = gpu.sample or GpuSample(index=gpu.static.index, t_s=0.0)
    match figure:
        case "busy":
            return f"{fmt.count(now.gfx_percent)} %"
        case "power":
            return f"{_of(now.power_w, now.power_cap_w)} W"
        case "heat":
            return f"{fmt.count(now.temperature_hotspot_c)} C"
        case _:
            return f"{_of(fmt.gib(now.hbm_used_bytes), fmt.gib(gpu.static.hbm_total_bytes))} G"


def _of(value: float | None, most: float | None) -> str:
    return fmt.count(value) if most is None else f"{fmt.count(value)}/{fmt.count(most)}"


def _short(name: str) -> str:
    return fmt.plain(name.removeprefix("AMD ").removeprefix("NVIDIA ").removeprefix("Instinct "))
