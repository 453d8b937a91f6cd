"""Several runs as one file: their frontiers in one figure, efficiency figures, and every difference.

The figure shows everything that was measured, also at loads of a single run; differences with their evidence are shown
for loads that a run shares with the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from operator import itemgetter
from typing import Any

from loadgen.grouping import by_key
from loadgen.metrics.frontier import price_of
from loadgen.record.subject import engine_of, hardware_of, known_time, model_of
from loadgen.report.assessment import titles
from loadgen.report.columns import EFFICIENCY, columns, known
from loadgen.report.compare import RunComparison
from loadgen.report.compare_document import compare_sections
from loadgen.report.html import charts
from loadgen.report.html.charts import PALE_NOTE, RUN_COLOURS, ColouredStages, axes_of, frontier_figure
from loadgen.report.html.page import Figures, grid, opening, page, placed, rendered, section
from loadgen.report.tabular import Column, html_table
from loadgen.schema.result import Result, StageResult

Named = tuple[str, Result]
_Row = tuple[str, str, StageResult]  # of a run, its load in words


def compare_page(runs: Sequence[Named], comparisons: Sequence[RunComparison]) -> str:
    """All runs; each but the first has a comparison with the first."""
    figures: Figures = {}
    names = short_names([name for name, _ in runs])
    runs = [(name, result) for name, (_, result) in zip(names, runs, strict=True)]
    differences: list[str] = []
    for comparison, name in zip(comparisons, names[1:], strict=True):
        first, *others = compare_sections(comparison)
        differences += map(rendered, [first._replace(title=f"{name} against {names[0]}"), *others])
    models = ", ".join(dict.fromkeys(model_of(result) for _, result in runs))
    head = opening("vramp compare", models, f"{len(runs)} runs", html_table(_RUN, runs))
    parts = [head, _frontiers(runs, figures), _stages(runs), *differences]
    return page(f"{', '.join(names)} \N{MIDDLE DOT} vramp compare", parts, figures)


def short_names(names: Sequence[str]) -> list[str]:
    """Names without common leading and trailing folders: `quick.json` from `runs/x/quick.json`."""
    parts = [name.split("/") for name in names]
    for end in (0, -1):
        while all(len(each) > 1 for each in parts) and len({each[end] for each in parts}) == 1:
            for each in parts:
                each.pop(end)
    return ["/".join(each) for each in parts]


_RUN: tuple[Column[Named], ...] = (
    Column("run", lambda run: run[0], words=True),
    Column("hardware", lambda run: hardware_of(run[1]), words=True),
    Column("engine", lambda run: engine_of(run[1]), words=True),
    Column("started", lambda run: (known_time(run[1].started_at) or "")[:16].replace("T", " "), words=True),
    Column("state", lambda run: run[1].state.replace("_", " "), words=True),
    Column("$ per GPU and hour", lambda run: price_of(run[1].profile).gpu_hour),
)


def _frontiers(runs: Sequence[Named], figures: Figures) -> str:
    """A figure per shape, since tokens of long and short prompts are not comparable."""
    shapes = by_key(
        ((one.stages[0].isl, one.stages[0].osl), ColouredStages(name, colour, one.stages))
        for (name, result), colour in zip(runs, cycle(RUN_COLOURS), strict=False)
        for one in charts.series_by_shape(result)
    )
    places = []
    for (isl, osl), series in sorted(shapes.items()):
        title = f"{axes_of(series).title()}, {isl} tokens in and {osl} out"
        places.append(placed(figures, f"frontier-{isl}-{osl}", frontier_figure(series), title))
    note = f"One point a load, named by it: {PALE_NOTE} An open point missed a limit, or the client was limited."
    return section("The frontier", grid(*places, columns=2), note=note)


def _stages(runs: Sequence[Named]) -> str:
    rows = [
        (name, titles(result.stages)[stage.index], stage) for name, result in runs for stage in charts.drawn(result)
    ]
    shown = known(_SHOWN, [stage for _, _, stage in rows])
    named: list[Column[_Row]] = [
        Column("run", itemgetter(0), words=True),
        Column("ISL/OSL", lambda row: f"{row[2].isl}/{row[2].osl}"),
        Column("load", itemgetter(1)),
    ]
    table = html_table([*named, *map(_of_stage, shown)], rows)
    return section("Tokens by user, GPU, power and money", table)


_SHOWN = [*EFFICIENCY, *columns("ttft_p50_ms ttft_p99_ms met_limits")]


def _of_stage(column: Column[Any]) -> Column[_Row]:
    return replace(column, value=lambda row: column.value(row[2]))
