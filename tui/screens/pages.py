"""The views of the cockpit: the panels that each shows in place of charts and tables, and what each copies.

All panels are composed once; a view is shown by CSS class. The overview is the screen without any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from textual.containers import Container
from textual.widget import Widget

from loadgen import format as fmt
from loadgen.report.columns import CURVE
from loadgen.report.tabular import Column
from loadgen.schema.deltas import Summary
from tui.charts.definitions import ENGINE_CHARTS, SESSION_CHARTS
from tui.keys import OVERVIEW
from tui.panels import comparison, curve, details, gpus, health, latency, load, messages, results, stages, startup
from tui.panels.frame import METRICS, Frame, Paint, Panel, chart_panels, panels
from tui.panels.latency import statistics_of, unit_of
from tui.screens.log import LogBook, LogView

_Row = TypeVar("_Row")
_DETAILS_WIDTH, _DETAILS_ROWS = 100, 200


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
    "curve": {"curve": curve.curve, "curve-stages": stages.loads},
    "latency": {"distribution": latency.distribution},
    "gpus": {"gpu-grid": gpus.grid},
    "errors": {"failures": messages.failures},
    "events": {"all-events": messages.all_events},
    "verdicts": {
        "all-verdicts": health.verdicts,
        "all-hosts": health.hosts,
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
        "sessions": [played, Panel(load.sessions, id="session-table")],
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


# What each view copies to the clipboard: its table as Markdown, with units in the heads.


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in GitHub's Markdown; a `|` in a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def _table(columns: Sequence[Column[_Row]], rows: Iterable[_Row]) -> str:
    heads = [f"{column.label} {column.unit}".rstrip() for column in columns]
    return markdown(heads, ([column.compact(row) for column in columns] for row in rows))


def copied_stages(frame: Frame) -> str:
    number, load_column = stages.STAGE
    target = replace(load_column, value=attrgetter("load_words"))
    found = frame.snapshot.stages
    return _table([number, target, *stages.stage_columns(found)], found)


def copied_loads(frame: Frame) -> str:
    """Copy the load curve, or the stages if it says no more than they do."""
    return _table(CURVE, frame.snapshot.curve) if stages.has_more_than_stages(frame) else copied_stages(frame)


def copied_percentiles(frame: Frame) -> str:
    rows = []
    for name in METRICS:
        for stretch, found in latency.stretches(frame.snapshot):
            summary = found.get(name, Summary(count=0))
            head = (f"{name} {unit_of(name)}", stretch, fmt.count(summary.count))
            rows.append((*head, *statistics_of(summary, name)))
    return markdown(("latency", "of", "count", *latency.HEADS), rows)


def copied_gpus(frame: Frame) -> str:
    rows = []
    for gpu in frame.snapshot.gpus:
        now = gpus.sample_of(gpu)
        hbm, hot = fmt.gib(now.hbm_used_bytes), now.temperature_hotspot_c
        cells = map(fmt.count, (now.gfx_percent, hbm, now.power_w, hot, now.gfx_clock_mhz))
        rows.append((str(gpu.static.index), fmt.plain(gpu.static.name), *cells, fmt.plain("; ".join(gpu.flags))))
    return markdown(("gpu", "name", "busy %", "HBM GiB", "power W", "hot C", "MHz", "flags"), rows)


def copied_engine(frame: Frame) -> str:
    rows = [
        (fmt.plain(name), *(figure(each) for figure in health.ENGINE.values())) for name, each in health.engines(frame)
    ]
    return markdown(("engine", *health.ENGINE), rows)


def copied_sessions(frame: Frame) -> str:
    now = frame.snapshot.sessions
    return _table(load.SESSION_COLUMNS, now.rows if now is not None else [])


def copied_log(frame: Frame) -> str:
    """Copy the lines of the log that pass the filter, as they are."""
    wanted = frame.log_filter.casefold()
    lines = [fmt.plain(line) for line in frame.snapshot.server.log_tail if wanted in line.casefold()]
    return "\n".join(lines) + "\n"


def copied_errors(frame: Frame) -> str:
    now = frame.snapshot
    rows = [
        (fmt.plain(kind), str(count), messages.seen(frame, kind), fmt.plain(next(iter(now.messages(kind)), "")))
        for kind, count in now.errors.items()
    ]
    return markdown(("kind", "count", "seen", "message"), rows)


def copied_events(frame: Frame) -> str:
    rows = [(fmt.clock(one.t_s), one.kind, fmt.plain(one.text)) for one in messages.happened(frame)]
    return markdown(("time", "kind", "event"), rows)


def copied_verdicts(frame: Frame) -> str:
    found = frame.snapshot.findings
    rows = [(one.subject, "bad" if one.bad else "info", fmt.plain(one.text)) for one in frame.snapshot.verdicts]
    for one in found:
        words = "; ".join(filter(None, (f"{one.seen}: {one.why}", one.fix)))
        rows.append(("preflight", one.severity, fmt.plain(words)))
    return markdown(("of", "weight", "what"), rows)


def copied_details(frame: Frame) -> str:
    """Copy the rows as they are drawn, each in one cell."""
    rows = details.details(frame, _DETAILS_WIDTH, _DETAILS_ROWS)
    lines = ["".join(text for text, _ in row).rstrip() for row in rows[1:]]
    return markdown((fmt.plain(details.chosen(frame)),), [(line,) for line in lines if line])


COPIES: Mapping[str, Callable[[Frame], str]] = {
    OVERVIEW: copied_stages,
    "curve": copied_loads,
    "latency": copied_percentiles,
    "gpus": copied_gpus,
    "engine": copied_engine,
    "sessions": copied_sessions,
    "log": copied_log,
    "errors": copied_errors,
    "events": copied_events,
    "verdicts": copied_verdicts,
    "details": copied_details,
    "results": copied_stages,
}
