"""The load curve as a table: a row for each stage, or for each load if loads moved or were repeated.

Of a long plan, the last stages that fit are shown; of many loads, those around the present one. The cost of a token in
energy, GPUs and money gets columns once it is known, if there is room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from loadgen import format as fmt
from loadgen.report.columns import COCKPIT_COLUMNS, COCKPIT_GIVE_WAY, COCKPIT_IF_ROOM, CURVE, Measured, columns, known
from loadgen.report.served import SERVED
from loadgen.report.tabular import Column
from loadgen.schema.result import CurvePoint, StageResult
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, cropped, padded, target, titled

_Row = TypeVar("_Row")
_TITLED_FROM = 6  # rows; with fewer there is no title
_LOAD = 9  # cells of a load with its direction
_NAME = 13  # cells of a label in the table of others' traffic
_ARROWS = {"": "  ", "up": " ▲", "down": " ▼"}


def _load(stage: StageResult) -> str:
    requested = stage.target
    if requested.moves is not None:
        ends = "→".join(fmt.setting(load) for load in requested.moves)
        return ends if len(ends) < 7 else f"→{fmt.setting(requested.moves[1])}"
    return requested.words


STAGE: tuple[Column[StageResult], ...] = (
    Column("stage", lambda stage: stage.number, short="#", width=4),
    Column("load", _load, width=7),
)

DRAWN: tuple[Column[StageResult], ...] = (
    Column("time", lambda stage: fmt.duration(stage.duration_s), width=9),
    *(replace(column, width=9) for column in columns("energy_mean_w energy_kj")),
)


def stages(frame: Frame, width: int, height: int) -> Rows:
    found = frame.snapshot.stages
    if frame.no_load:
        return _watched(frame, width, height)
    figures = stage_columns(found, width)
    title = titled("stages: the load curve", ((f"{frame.snapshot.load.stages_planned} planned", "dim"),), width)
    heads: Row = (*head_words(STAGE), *head_words(figures))
    top = [heads] if height < _TITLED_FROM else [title, heads]
    return [*top, *(_row(stage, frame, figures) for stage in found[-max(1, height - len(top)) :])]


def _watched(frame: Frame, width: int, height: int) -> Rows:
    """The stages by all that the engine served in them; without a server, by what the GPUs drew."""
    has_server = frame.snapshot.has_server
    title = titled(f"stages: what {'the engine served' if has_server else 'the GPUs drew'}", (), width)
    figures = SERVED if has_server else DRAWN
    top: Rows = [((f"{'#':>4} {'load':<{_NAME}}", "dim"), *head_words(figures))]
    top = top if height < _TITLED_FROM else [title, *top]
    rows: Rows = []
    for stage in frame.snapshot.stages[-max(1, height - len(top)) :]:
        role = "strong" if stage.running else "text"
        words: Word = (f"{stage.number:>4} {padded(fmt.plain(stage.label), _NAME)}", role)
        named = (target(f"stage {stage.number}"), *_marked([words], stage.running))
        rows.append((*named, *cell_words(figures, [stage], role)))
    return [cropped(row, width) for row in (*top, *rows)]


def stage_columns(found: Sequence[StageResult], width: float = math.inf) -> list[Column[Measured]]:
    """Return the columns to show: of the optional ones, those that have values and fit."""
    yielding = {column.label: column.width for column in COCKPIT_IF_ROOM}
    room = width - sum(column.width for column in STAGE)
    room -= sum(column.width for column in COCKPIT_COLUMNS) - sum(yielding.values())
    for column in known(COCKPIT_IF_ROOM, found):
        if column.width <= room:
            room -= yielding.pop(column.label)
    kept = [column for column in COCKPIT_COLUMNS if column.label not in yielding]
    return fitted(kept, width - sum(column.width for column in STAGE))


def fitted(shown: Sequence[Column[_Row]], width: float, gap: int = 0) -> list[Column[_Row]]:
    """As many columns as fit, each whole: the least important ones give way."""
    kept = list(shown)
    for label in (column.label for column in COCKPIT_GIVE_WAY):
        if sum(column.width + gap for column in kept) <= width:
            break
        kept = _headed([column for column in kept if column.label != label])
    return kept


def _headed(shown: Sequence[Column[_Row]]) -> list[Column[_Row]]:
    """A `p99` that stands behind no other column of its latency says of which it is."""
    before = ["", *(column.group for column in shown)]
    return [
        replace(column, short=column.label, width=len(column.label) + 1)
        if column.short and column.short == column.under and column.group != group
        else column
        for column, group in zip(shown, before, strict=False)
    ]


def _row(stage: StageResult, frame: Frame, figures: Sequence[Column[Measured]]) -> Row:
    role = "strong" if stage.running else "text"
    named = cell_words(STAGE, [stage], role)
    rows: list[Measured] = [stage] if stage.target.moves is None else _moving(stage, frame)
    return (target(f"stage {stage.number}"), *_marked(named, stage.running), *cell_words(figures, rows, role))


def _moving(stage: StageResult, frame: Frame) -> list[Measured]:
    """Return the sources of a moving stage's cells: while it runs, the step at the present load; then the stage."""
    load = frame.snapshot.load
    if not stage.running or not stage.curve:
        return [stage]
    wanted = load.rate if load.rate is not None else float(load.concurrency or 0)
    step = min(stage.curve, key=lambda point: abs(point.load - wanted))
    return [msgspec.structs.replace(step, held=float(load.held)), stage]


def loads(frame: Frame, width: int, height: int) -> Rows:
    """Draw the points of the load curve with their counts, or the stages if those say as much."""
    points = frame.snapshot.curve
    if not tells_more(frame):
        return stages(frame, width, height)
    figures = fitted(CURVE[1:], width - _LOAD, gap=1)
    heads: Row = ((f"{'load':>{_LOAD}}", "dim"), *head_words(figures, gap=1))
    title = titled("everything measured at each load", ((f"{len(points)} loads", "dim"),), width)
    top = [heads] if height < _TITLED_FROM else [title, heads]
    room, now = max(1, height - len(top)), _now(frame)
    first = max(0, min(len(points) - room, (now if now is not None else len(points)) - room // 2))
    shown = enumerate(points[first : first + room], first)
    return [*top, *(_point_row(point, figures, marked=number == now) for number, point in shown)]


def tells_more(frame: Frame) -> bool:
    """Whether the curve differs from the stages: a load that moved, or that came up several times."""
    held = [
        stage
        for stage in frame.snapshot.stages
        if stage.target.rate is None and stage.throughput.output_tokens_per_s is not None
    ]
    points = frame.snapshot.curve
    return any(point.direction for point in points) or len(held) > len(points) > 0


def _now(frame: Frame) -> int | None:
    """Return the index of the point that the running stage adds to."""
    stage, points = frame.stage, frame.snapshot.curve
    if stage is None or not stage.running:
        return None
    start, end = stage.target.moves or (0.0, 0.0)
    direction = "up" if end > start else "down" if end < start else ""
    held = frame.snapshot.load.held
    same = [
        (abs(point.load - held), number)
        for number, point in enumerate(points)
        if (point.isl, point.osl, point.direction) == (stage.isl, stage.osl, direction)
    ]
    return min(same)[1] if same else None


def _point_row(point: CurvePoint, figures: Sequence[Column[CurvePoint]], *, marked: bool) -> Row:
    role = "strong" if marked else "text"
    load = (f"{fmt.setting(point.load)}{_ARROWS[point.direction]}".rjust(_LOAD), role)
    return (*_marked([load], marked), *cell_words(figures, [point], role, gap=1))


def _marked(words: Sequence[Word], marked: bool) -> Row:
    """Return a row whose first cell marks it as the present one, if it is."""
    (text, role), *others = words
    return ((f"{'▸' if marked else ' '}{text[1:]}", role), *others)


def head_words(shown: Sequence[Column[_Row]], gap: int = 0) -> list[Word]:
    return [(f"{column.short or column.label:>{column.width + gap}}", column.role) for column in shown]


def cell_words(shown: Sequence[Column[_Row]], rows: Sequence[_Row], role: str, gap: int = 0) -> list[Word]:
    """Return the cells of a row, each from the first of `rows` that has a value."""
    words = []
    for column in shown:
        row = next((row for row in rows if column.value(row) is not None), rows[-1])
        words.append((f"{column.compact(row):>{column.width + gap}}", _role(column, row, role)))
    return words


def _role(column: Column[_Row], row: _Row, role: str) -> str:
    value = column.value(row)
    if column.alarm:
        return "bad" if value else "dim"
    if isinstance(value, bool):
        return "good" if value else "bad"
    return "dim" if column.words else role
