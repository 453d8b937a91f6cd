"""Under the load curve: its points as a table with their counts where the load moved or came up again, else the stages.

Where there are more points than rows, those around the load of now.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadgen import format as fmt
from loadgen.metrics.result import CurvePoint
from tui.panels.frame import Frame
from tui.panels.stages import stages
from tui.widgets.rows import Row, Rows, Word, titled

_HEADS = (
    ("load", 9, "dim"),
    ("held", 7, "held"),
    ("tok/s", 8, "throughput"),
    ("/user", 7, "dim"),
    ("TTFT p50", 10, "p50"),
    ("p99", 7, "p99"),
    ("of", 6, "dim"),
    ("ITL p50", 10, "p50"),
    ("p99", 7, "p99"),
    ("of", 6, "dim"),
)
_TITLED_FROM = 6


def loads(view: Frame, width: int, height: int) -> Rows:
    """A title where there is room for it, the heads, and the points."""
    points = view.snapshot.curve
    if not tells_more(view):
        return stages(view, width, height)
    heads: Row = tuple((f"{head:>{cells}}", role) for head, cells, role in _HEADS)
    title = titled("all that was measured at a load", ((f"{len(points)} loads", "dim"),), width)
    top = [heads] if height < _TITLED_FROM else [title, heads]
    room, now = max(1, height - len(top)), _now(view)
    first = max(0, min(len(points) - room, (now if now is not None else len(points)) - room // 2))
    shown = enumerate(points[first : first + room], first)
    return [*top, *(_row(point, marked=number == now) for number, point in shown)]


def tells_more(view: Frame) -> bool:
    """Whether the curve has another cut than the stages: a load that moves, or that came up several times."""
    held = [stage for stage in view.snapshot.stages if stage.rate is None and stage.output_tokens_per_s is not None]
    points = view.snapshot.curve
    return any(point.direction for point in points) or len(held) > len(points) > 0


def _now(view: Frame) -> int | None:
    """The point that the running stage adds to."""
    stage, points = view.stage, view.snapshot.curve
    if stage is None or not stage.running:
        return None
    start, end = stage.moves or (0.0, 0.0)
    direction = "up" if end > start else "down" if end < start else ""
    held = view.snapshot.load.held
    same = [
        (abs(point.load - held), number)
        for number, point in enumerate(points)
        if (point.isl, point.osl, point.direction) == (stage.isl, stage.osl, direction)
    ]
    return min(same)[1] if same else None


def _row(point: CurvePoint, *, marked: bool) -> Row:
    ttft, itl = point.ttft_ms, point.itl_ms
    values: Sequence[str] = (
        f"{fmt.setting(point.load)}{_ARROWS[point.direction]}",
        fmt.number(point.held),
        fmt.number(point.output_tokens_per_s),
        fmt.number(point.output_tokens_per_s_per_user),
        fmt.statistic(ttft, "p50"),
        fmt.statistic(ttft, "p99"),
        fmt.count(ttft.count),
        fmt.statistic(itl, "p50"),
        fmt.statistic(itl, "p99"),
        fmt.count(itl.count),
    )
    role = "strong" if marked else "text"
    cells: list[Word] = [(f"{value:>{width}}", role) for value, (_, width, _) in zip(values, _HEADS, strict=True)]
    return (("▸" if marked else " ", role), (cells[0][0][1:], role), *cells[1:])


_ARROWS = {"": "  ", "up": " ▲", "down": " ▼"}
