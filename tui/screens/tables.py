"""The tables of the views as Markdown for the clipboard, with units in the heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from loadgen import format as fmt
from loadgen.report.columns import CURVE
from loadgen.report.tabular import Column
from loadgen.schema.deltas import Summary
from tui.panels.frame import METRICS, Frame
from tui.panels.gpus import sample_of
from tui.panels.health import ENGINE, engines
from tui.panels.latency import HEADS, statistics_of, stretches, unit_of
from tui.panels.messages import happened, seen
from tui.panels.sessions import COLUMNS
from tui.panels.stages import STAGE, has_more_than_stages, stage_columns

_Row = TypeVar("_Row")


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in GitHub's Markdown; a `|` in a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def _copied(columns: Sequence[Column[_Row]], rows: Iterable[_Row]) -> str:
    heads = [f"{column.label} {column.unit}".rstrip() for column in columns]
    return markdown(heads, ([column.compact(row) for column in columns] for row in rows))


def stages(frame: Frame) -> str:
    number, load = STAGE
    target = replace(load, value=attrgetter("load_words"))
    found = frame.snapshot.stages
    return _copied([number, target, *stage_columns(found)], found)


def loads(frame: Frame) -> str:
    """Copy the load curve, or the stages if it says no more than they do."""
    return _copied(CURVE, frame.snapshot.curve) if has_more_than_stages(frame) else stages(frame)


def percentiles(frame: Frame) -> str:
    rows = []
    for name in METRICS:
        for stretch, latencies in stretches(frame.snapshot):
            summary = latencies.get(name, Summary(count=0))
            head = (f"{name} {unit_of(name)}", stretch, fmt.count(summary.count))
            rows.append((*head, *statistics_of(summary, name)))
    return markdown(("latency", "of", "count", *HEADS), rows)


def gpus(frame: Frame) -> str:
    rows = []
    for gpu in frame.snapshot.gpus:
        now = sample_of(gpu)
        hbm, hot = fmt.gib(now.hbm_used_bytes), now.temperature_hotspot_c
        cells = map(fmt.count, (now.gfx_percent, hbm, now.power_w, hot, now.gfx_clock_mhz))
        rows.append((str(gpu.static.index), fmt.plain(gpu.static.name), *cells, fmt.plain("; ".join(gpu.flags))))
    return markdown(("gpu", "name", "busy %", "HBM GiB", "power W", "hot C", "MHz", "flags"), rows)


def engine(frame: Frame) -> str:
    rows = [(fmt.plain(name), *(figure(each) for figure in ENGINE.values())) for name, each in engines(frame)]
    return markdown(("engine", *ENGINE), rows)


def sessions(frame: Frame) -> str:
    now = frame.snapshot.sessions
    return _copied(COLUMNS, now.rows if now is not None else [])


def log(frame: Frame) -> str:
    """Copy the lines of the log that pass the filter, as they are."""
    wanted = frame.log_filter.casefold()
    lines = [fmt.plain(line) for line in frame.snapshot.server.log_tail if wanted in line.casefold()]
    return "\n".join(lines) + "\n"


def errors(frame: Frame) -> str:
    now = frame.snapshot
    rows = [
        (fmt.plain(kind), str(count), seen(frame, kind), fmt.plain(next(iter(now.messages(kind)), "")))
        for kind, count in now.errors.items()
    ]
    return markdown(("kind", "count", "seen", "message"), rows)


def events(frame: Frame) -> str:
    rows = [(fmt.clock(one.t_s), one.kind, fmt.plain(one.text)) for one in happened(frame)]
    return markdown(("time", "kind", "event"), rows)


def verdicts(frame: Frame) -> str:
    found = frame.snapshot.findings
    rows = [(one.subject, "bad" if one.bad else "info", fmt.plain(one.text)) for one in frame.snapshot.verdicts]
    rows += [("preflight", one.severity, fmt.plain(f"{one.seen}: {one.why}; {one.fix}")) for one in found]
    return markdown(("of", "weight", "what"), rows)
