"""Lists of runs and trends as documents: text, JSON, and the sections of the HTML page."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.format import UNKNOWN, counted, fixed
from loadgen.report.document import Section, Table
from loadgen.report.history import ListedRun, Trend, TrendPoint
from loadgen.report.notes import Note
from loadgen.report.tabular import Column, cut, figure_words, json_text, text_lines
from loadgen.report.text import sections_text

_WIDTH = 120
NamedRun = tuple[str, ListedRun]


RUNS: tuple[Column[NamedRun], ...] = (
    Column("started", lambda run: run[1].started_at[:16].replace("T", " "), words=True, width=16),
    Column("profile", lambda run: cut(run[1].profile, 28), words=True),
    Column("state", lambda run: run[1].state.replace("_", " "), words=True),
    Column("tok/s", lambda run: run[1].output_tokens_per_s, decimals=0),
    Column("at", lambda run: run[1].load, words=True),
    Column("model", lambda run: cut(run[1].model, 40), words=True),
    Column("box", lambda run: cut(run[1].box, 32), words=True),
    Column("engine", lambda run: cut(run[1].engine, 24), words=True),
    Column("run", lambda run: run[0], words=True),
)


def runs_text(runs: Sequence[NamedRun], left_out: int) -> str:
    """A line for each run, and how many more there are."""
    more = [f"{left_out:,} older ones: --last 0 lists all"] if left_out else []
    return "\n".join([*text_lines(RUNS, runs, fixed), *more])


def trend_text(found: Sequence[Trend]) -> str:
    return "\n\n".join(sections_text([trend_section(trend)], _WIDTH) for trend in found)


def runs_json(folder: str, runs: Sequence[NamedRun], found: Sequence[Trend]) -> str:
    """The runs newest first."""
    rows = [{"run": name} | msgspec.structs.asdict(summary) for name, summary in runs]
    return json_text({"schema": "vramp.runs/1", "folder": folder, "runs": rows, "trends": found})


def trend_section(trend: Trend) -> Section:
    left_out = sum(not point.counts for point in trend.points)
    not_counted = f"{counted(left_out, 'run')} in brackets not counted: {trend.why_not_counted}"
    notes = [Note("", not_counted)] if left_out else []
    return Section(
        f"{trend.title} at {trend.load}",
        [
            Table(
                [
                    Column("started", lambda point: point.started_at[:16].replace("T", " "), words=True, width=16),
                    Column("vLLM", lambda point: point.version or UNKNOWN, words=True),
                    Column(trend.title, _value),
                    Column(_interval_head(trend), lambda point: _interval(point.low, point.high), width=22),
                    Column("run", lambda point: point.run, words=True),
                ],
                trend.points,
            ),
            Table(
                [
                    Column("vLLM", lambda one: one.version, words=True, width=16),
                    Column("runs", lambda one: one.runs),
                    Column("mean", lambda one: figure_words(one.value)),
                    Column(_interval_head(trend), lambda one: _interval(one.low, one.high), width=22),
                    Column("since the one before", lambda one: one.difference_words),
                    Column(
                        "is",
                        lambda one: one.difference.word if one.difference is not None and not one.note else "",
                        words=True,
                    ),
                    Column("", lambda one: one.note, words=True),
                ],
                trend.versions,
            ),
        ],
        notes,
        about=f"{trend.profile}: {trend.model} on {trend.box}",
    )


def _value(point: TrendPoint) -> str:
    words = figure_words(point.value, at_least=point.at_least)
    return words if point.counts else f"({words})"


def _interval_head(trend: Trend) -> str:
    return f"{100 * trend.confidence:g} % interval"


def _interval(low: float | None, high: float | None) -> str:
    """From a low end to a high one; empty if nothing is known of either."""
    if low is None and high is None:
        return ""
    return f"{'?' if low is None else figure_words(low)} to {'?' if high is None else figure_words(high)}"
