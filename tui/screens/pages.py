"""The views of the cockpit: which key shows which panels in the place of charts and tables, and what they copy.

All panels are composed once; a view shows by CSS class. The overview is what the screen is without any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from textual.containers import Grid, Vertical
from textual.widget import Widget

from loadgen import format as fmt
from tui.charts.chart import Chart, Series
from tui.panels import (
    baseline,
    curve,
    distribution,
    engine,
    failures,
    findings,
    gpu_grid,
    health,
    loads,
    messages,
    results,
)
from tui.panels.frame import Frame, Paint, Panel, of_chart
from tui.screens import tables
from tui.screens.log import LogBook, LogView


@dataclass(frozen=True, slots=True)
class Page:
    """A view."""

    key: str
    name: str
    what: str  # for help and palette
    copies: Callable[[Frame], str]  # what goes to the clipboard


OVERVIEW = "overview"
PAGES = (
    Page("1", OVERVIEW, "Charts, percentiles, stages and what is the matter, on one screen", tables.stages),
    Page("2", "curve", "The load curve: TTFT, time per token and tok/s against the streams held", tables.loads),
    Page("3", "latency", "Every percentile of this stage over the one before it", tables.percentiles),
    Page("4", "gpus", "Each GPU with its history", tables.gpus),
    Page("5", "engine", "Queue, KV cache, tokens, prefix hits and preemptions over time", tables.engine),
    Page("6", "log", "The server's log: scroll, / filter, ctrl+f search, f follow", tables.log),
    Page("7", "errors", "Failures with their messages and what to do", tables.errors),
    Page("8", "events", "All that happened, and your notes", tables.events),
    Page("9", "verdicts", "What is the limit, what is wrong, and what the preflight found", tables.verdicts),
    Page("0", "results", "What came of the run, once it is done", tables.stages),
)
BY_NAME = {page.name: page for page in PAGES}

PANEL_PAGES = {
    "stages": "curve",
    "latency": "latency",
    "latency-beside": "latency",
    "gpus": "gpus",
    "server": "engine",
    "engine": "engine",
    "errors": "errors",
    "verdicts": "verdicts",
    "events": "events",
    "log": "log",
    "startup-log": "log",
}
"""What a click on a panel of the overview shows; on any other one it fills the screen."""

_STREAMS = (
    Series("engine_waiting", "waiting", "waiting", "area"),
    Series("engine_running", "running", "running", "dots"),
    Series("held", "held", "held"),
)
CHARTS = {
    "throughput": Chart("throughput tok/s", (Series("output_tokens_per_s", "out", "throughput"),)),
    "ttft": Chart(
        "TTFT ms", (Series("ttft_p99_ms", "p99", "p99", "dots"), Series("ttft_p50_ms", "p50", "p50")), log=True
    ),
    "tpot": Chart("TPOT ms", (Series("tpot_p99_ms", "p99", "p99", "dots"), Series("tpot_p50_ms", "p50", "p50"))),
    "engine": Chart("streams", _STREAMS, number=fmt.setting),
}
"""Of the overview; what has one role has one colour on all of them."""


def compose(book: LogBook) -> Iterator[Widget]:
    yield _page("curve", _board(curve.curve, "curve"), _board(loads.loads, "curve-stages"))
    yield _page("latency", _board(distribution.distribution, "distribution"))
    yield _page("gpus", _board(gpu_grid.grid, "gpu-grid"))
    charts = [_board(of_chart(chart), name) for name, chart in engine.CHARTS.items()]
    yield _page("engine", Grid(*charts, id="engine-charts"), _board(engine.engine, "engine-table"))
    yield _page("log", LogView(book, id="log-view"))
    yield _page("errors", _board(failures.failures, "failures"))
    yield _page("events", _board(messages.chronicle, "chronicle"))
    yield _page(
        "verdicts",
        _board(health.verdicts, "all-verdicts"),
        _board(baseline.baseline, "all-baseline"),
        _board(findings.findings, "all-findings"),
    )
    yield _page("results", _board(results.results, "results"))


def _page(name: str, *panels: Widget) -> Vertical:
    return Vertical(*panels, id=f"page-{name}", classes="page")


def _board(paint: Paint, name: str) -> Panel:
    return Panel(paint, id=name)
