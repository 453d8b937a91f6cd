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
from loadgen.schema.result import StageResult
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, padded, target, titled

_Row = TypeVar("_Row")
_TITLED_FROM = 6  # rows; with fewer there is no title
_LOAD = 9  # cells of a load with its direction
_NAME = 13  # cells of a label in the table of others' traffic
_ARROWS = {"": "  ", "up": " ▲", "down": " ▼"}


def _load(stage: StageResult) -> str:
    moves = stage.target.moves
    if moves is None:
        return stage.target.words
    ends = "→".join(map(fmt.setting, moves))
    return ends if len(ends) < 7 else f"→{fmt.setting(moves[1])}"


STAGE: tuple[Column[StageResult], ...] = (
    Column("stage", lambda stage: stage.number, short="#", width=4),
    Column("load", _load, width=7),
)
_STAGE_CELLS = sum(column.width for column in STAGE)
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
    rows = _top(title, (*head_words(STAGE), *head_words(figures)), height)
    load = frame.snapshot.load
    for stage in found[-max(1, height - len(rows)) :]:
        role = "strong" if stage.running else "text"
        measured: list[Measured] = [stage]
        if stage.running and stage.curve:
            # While a load moves, the step at the present load has its figures; the whole stage those of no single load.
            wanted = load.rate if load.rate is not None else float(load.concurrency or 0)
            step = min(stage.curve, key=lambda point: abs(point.load - wanted))
            measured.insert(0, msgspec.structs.replace(step, held=float(load.held)))
        named = _marked(cell_words(STAGE, [stage], role), stage.running)
        rows.append((target(f"stage {stage.number}"), *named, *cell_words(figures, measured, role)))
    return rows


def _top(title: Row, heads: Row, height: int) -> Rows:
    return [heads] if height < _TITLED_FROM else [title, heads]


def _watched(frame: Frame, width: int, height: int) -> Rows:
    """Return the stages by all that the engine served in them; without a server, by what the GPUs drew."""
    has_server = frame.snapshot.has_server
    title = titled(f"stages: what {'the engine served' if has_server else 'the GPUs drew'}", (), width)
    figures = SERVED if has_server else DRAWN
    rows = _top(title, ((f"{'#':>4} {'load':<{_NAME}}", "dim"), *head_words(figures)), height)
    for stage in frame.snapshot.stages[-max(1, height - len(rows)) :]:
        role = "strong" if stage.running else "text"
        name: Word = (f"{stage.number:>4} {padded(fmt.plain(stage.label), _NAME)}", role)
        marked = _marked([name], stage.running)
        rows.append((target(f"stage {stage.number}"), *marked, *cell_words(figures, [stage], role)))
    return rows


def stage_columns(found: Sequence[StageResult], width: float = math.inf) -> list[Column[Measured]]:
    """Return the columns to show: of the optional ones, those that have values and fit."""
    optional = {column.label: column.width for column in COCKPIT_IF_ROOM}
    room = width - _STAGE_CELLS - sum(column.width for column in COCKPIT_COLUMNS) + sum(optional.values())
    for column in known(COCKPIT_IF_ROOM, found):
        if column.width <= room:
            room -= optional.pop(column.label)
    return fitted([column for column in COCKPIT_COLUMNS if column.label not in optional], width - _STAGE_CELLS)


def fitted(shown: Sequence[Column[_Row]], width: float, gap: int = 0) -> list[Column[_Row]]:
    """Return as many columns as fit, each whole: the least important ones give way."""
    kept = list(shown)
    for label in (column.label for column in COCKPIT_GIVE_WAY):
        if sum(column.width + gap for column in kept) <= width:
            break
        kept = _headed([column for column in kept if column.label != label])
    return kept


def _headed(shown: Sequence[Column[_Row]]) -> list[Column[_Row]]:
    """Give a `p99` that has no other column of its latency before it the name of that latency."""
    before = ["", *(column.group for column in shown)]
    return [
        replace(column, short=column.label, width=len(column.label) + 1)
        if column.short and column.short == column.under and column.group != group
        else column
        for column, group in zip(shown, before, strict=False)
    ]


def loads(frame: Frame, width: int, height: int) -> Rows:
    """Draw the points of the load curve with their counts, or the stages if those say as much."""
    points = frame.snapshot.curve
    if not has_more_than_stages(frame):
        return stages(frame, width, height)
    figures = fitted(CURVE[1:], width - _LOAD, gap=1)
    title = titled("everything measured at each load", ((fmt.counted(len(points), "load"), "dim"),), width)
    top = _top(title, ((f"{'load':>{_LOAD}}", "dim"), *head_words(figures, gap=1)), height)
    room, now = max(1, height - len(top)), _present_point(frame)
    first = max(0, min(len(points) - room, (now if now is not None else len(points)) - room // 2))
    rows = top
    for number, point in enumerate(points[first : first + room], first):
        role = "strong" if number == now else "text"
        load = (f"{fmt.setting(point.load)}{_ARROWS[point.direction]}".rjust(_LOAD), role)
        rows.append((*_marked([load], number == now), *cell_words(figures, [point], role, gap=1)))
    return rows


def has_more_than_stages(frame: Frame) -> bool:
    """Whether the curve differs from the stages: a load that moved, or that came up several times."""
    held = [
        stage
        for stage in frame.snapshot.stages
        if stage.target.rate is None and stage.throughput.output_tokens_per_s is not None
    ]
    points = frame.snapshot.curve
    return any(point.direction for point in points) or len(held) > len(points) > 0


def _present_point(frame: Frame) -> int | None:
    """Return the index of the point that the running stage adds to."""
    stage = frame.stage
    if stage is None or not stage.running:
        return None
    start, end = stage.target.moves or (0.0, 0.0)
    direction = "up" if end > start else "down" if end < start else ""
    same = [
        (abs(point.load - frame.snapshot.load.held), number)
        for number, point in enumerate(frame.snapshot.curve)
        if (point.isl, point.osl, point.direction) == (stage.isl, stage.osl, direction)
    ]
    return min(same)[1] if same else None


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
        value, own = column.value(row), role
        if column.alarm:
            own = "bad" if value else "dim"
        elif isinstance(value, bool):
            own = "good" if value else "bad"
        elif column.words:
            own = "dim"
        words.append((f"{column.compact(row):>{column.width + gap}}", own))
    return words
