"""The views of the cockpit: which key shows which panels in the place of charts and tables, and what they copy.

All panels are composed once; a view shows by CSS class. The overview is what the screen is without any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from textual.containers import Grid, Vertical
from textual.widget import Widget

from tui.charts.definitions import ENGINE_CHARTS
from tui.keys import OVERVIEW
from tui.panels import (
    comparison,
    curve,
    gpus,
    health,
    latency,
    load,
    loads,
    messages,
    results,
    startup,
)
from tui.panels.frame import Frame, Paint, Panel, of_chart
from tui.screens import tables
from tui.screens.log import LogBook, LogView

COPIES: Mapping[str, Callable[[Frame], str]] = {
    OVERVIEW: tables.stages,
    "curve": tables.loads,
    "latency": tables.percentiles,
    "gpus": tables.gpus,
    "engine": tables.engine,
    "log": tables.log,
    "errors": tables.errors,
    "events": tables.events,
    "verdicts": tables.verdicts,
    "results": tables.stages,
}
"""What goes to the clipboard from each view."""

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

_FEW_GPUS, _SOME_GPUS = 2, 4  # up to this many leave room to the stages


def compose(book: LogBook) -> Iterator[Widget]:
    yield _page("curve", _board(curve.curve, "curve"), _board(loads.loads, "curve-stages"))
    yield _page("latency", _board(latency.distribution, "distribution"))
    yield _page("gpus", _board(gpus.grid, "gpu-grid"))
    charts = [_board(of_chart(chart), name) for name, chart in ENGINE_CHARTS.items()]
    yield _page("engine", Grid(*charts, id="engine-charts"), _board(health.engine, "engine-table"))
    yield _page("log", LogView(book, id="log-view"))
    yield _page("errors", _board(messages.failures, "failures"))
    yield _page("events", _board(messages.chronicle, "chronicle"))
    yield _page(
        "verdicts",
        _board(health.verdicts, "all-verdicts"),
        _board(comparison.baseline, "all-baseline"),
        _board(startup.findings, "all-findings"),
    )
    yield _page("results", _board(results.results, "results"))


def _page(name: str, *panels: Widget) -> Vertical:
    return Vertical(*panels, id=f"page-{name}", classes="page")


def _board(paint: Paint, name: str) -> Panel:
    return Panel(paint, id=name)


def arrangement(view: Frame, page: str, *, full: bool, width: int) -> Mapping[str, bool]:
    """Class to whether it is set; one that is already set costs nothing."""
    snapshot = view.snapshot
    checking = snapshot.phase in ("checking", "blocked")
    starting = checking or snapshot.phase in ("starting", "restarting", "probing", "failed")
    classes = {
        "-paged": page != OVERVIEW,
        "-full": full,
        "-startup": starting or snapshot.server.state == "died",
        "-findings": checking,
        "-empty": starting and not snapshot.stages,
        "-baseline": snapshot.baseline is not None,
        "-errors": bool(snapshot.errors),
        "-notice": bool(load.notice(view, width, 1)),
        "-stale": view.stale,
    }
    return classes | _of_gpus(view)


def _of_gpus(view: Frame) -> dict[str, bool]:
    """No more room than there are GPUs; a row that says why there are none, unless nobody wants to know."""
    count = len(view.snapshot.gpus)
    return {
        "-gpus": count > 0,
        "-few-gpus": 0 < count <= _FEW_GPUS,
        "-some-gpus": _FEW_GPUS < count <= _SOME_GPUS,
        "-no-gpus": not count and view.snapshot.telemetry not in ("", "off"),
    }
