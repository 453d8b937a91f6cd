"""The views of the cockpit: the panels that each shows in place of charts and tables, and what each copies.

All panels are composed once; a view is shown by CSS class. The overview is the screen without any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from textual.containers import Container
from textual.widget import Widget

from loadgen import format as fmt
from tui.charts.definitions import ENGINE_CHARTS, SESSION_CHARTS
from tui.keys import OVERVIEW
from tui.panels import (
    comparison,
    curve,
    details,
    gpus,
    health,
    hosts,
    latency,
    load,
    messages,
    results,
    sessions,
    startup,
)
from tui.panels.frame import Frame, Paint, Panel, chart_panels, panels
from tui.panels.stages import loads
from tui.screens import tables
from tui.screens.log import LogBook, LogView

_DETAILS_WIDTH, _DETAILS_ROWS = 100, 200


def copied_details(frame: Frame) -> str:
    """Copy the rows as they are drawn, each in one cell."""
    rows = details.details(frame, _DETAILS_WIDTH, _DETAILS_ROWS)
    lines = ["".join(text for text, _ in row).rstrip() for row in rows[1:]]
    return tables.markdown((fmt.plain(details.chosen(frame)),), [(line,) for line in lines if line])


COPIES: Mapping[str, Callable[[Frame], str]] = {
    OVERVIEW: tables.stages,
    "curve": tables.loads,
    "latency": tables.percentiles,
    "gpus": tables.gpus,
    "engine": tables.engine,
    "sessions": tables.sessions,
    "log": tables.log,
    "errors": tables.errors,
    "events": tables.events,
    "verdicts": tables.verdicts,
    "details": copied_details,
    "results": tables.stages,
}
"""What each view copies to the clipboard."""

PANEL_PAGES = {
    "stages": "curve",
    "latency": "latency",
    "latency-right": "latency",
    "gpus": "gpus",
    "server": "engine",
    "engine": "engine",
    "errors": "errors",
    "verdicts": "verdicts",
    "hosts": "verdicts",
    "events": "events",
    "log": "log",
    "startup-log": "log",
}
"""The view that a click on an overview panel shows; a click on a chart maximizes it instead."""

_PAINTS: Mapping[str, Mapping[str, Paint]] = {
    "curve": {"curve": curve.curve, "curve-stages": loads},
    "latency": {"distribution": latency.distribution},
    "gpus": {"gpu-grid": gpus.grid},
    "errors": {"failures": messages.failures},
    "events": {"all-events": messages.all_events},
    "verdicts": {
        "all-verdicts": health.verdicts,
        "all-hosts": hosts.hosts,
        "all-baseline": comparison.baseline,
        "all-findings": startup.findings,
    },
    "details": {"details": details.details},
    "results": {"results": results.results},
}
"""The panels of the views, by their ids; those of engine and log are more than panels."""

_FEW_GPUS, _SOME_GPUS = 2, 4  # up to this many leave room for the stages


def compose(book: LogBook) -> Iterator[Widget]:
    played = Container(*chart_panels(SESSION_CHARTS), id="session-charts")
    engine = Container(*chart_panels(ENGINE_CHARTS), id="engine-charts")
    special: dict[str, list[Widget]] = {
        "engine": [engine, Panel(health.engine, id="engine-table")],
        "sessions": [played, Panel(sessions.sessions, id="session-table")],
        "log": [LogView(book, id="log-view")],
    }
    for page, widgets in ({page: panels(paints) for page, paints in _PAINTS.items()} | special).items():
        yield Container(*widgets, id=f"page-{page}", classes="page")


def shown_classes(frame: Frame, page: str, *, full: bool, width: int) -> Mapping[str, bool]:
    """Return each class of the screen that the style sheet uses, and whether it is set."""
    snapshot = frame.snapshot
    checking = snapshot.phase in ("checking", "blocked")
    starting = checking or snapshot.phase in ("starting", "restarting", "probing", "failed")
    count = len(snapshot.gpus)
    return {
        "-paged": page != OVERVIEW,
        "-full": full,
        "-startup": starting or snapshot.server.state == "died",
        "-findings": checking,
        "-empty": starting and not snapshot.stages,
        "-box": not snapshot.has_server,
        "-baseline": snapshot.baseline is not None,
        "-errors": bool(snapshot.errors),
        "-notice": bool(load.notice(frame, width, 1)),
        "-hosts": bool(snapshot.hosts),
        # Only as much room as there are GPUs; a row that says why there are none, unless telemetry is off.
        "-gpus": count > 0,
        "-without-gpus": count == 0,
        "-few-gpus": 0 < count <= _FEW_GPUS,
        "-some-gpus": _FEW_GPUS < count <= _SOME_GPUS,
        "-no-gpus": not count and snapshot.telemetry not in ("", "off"),
    }
