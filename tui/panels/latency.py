"""Percentiles: the running stage beside the last seconds, so that a drift shows as a difference between neighbours."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.metrics.histogram import Summary
from loadgen.metrics.snapshot import RECENT_S, StageView
from tui import format as fmt
from tui.paint import Row, Rows, Word
from tui.panels.published import published
from tui.view import View

_METRICS = (("TTFT", "ttft", "ms"), ("TPOT", "tpot", "ms"), ("ITL", "itl", "ms"), ("E2E", "e2e", "s"))
_COLUMNS = (
    ("mean", "mean", "dim"),
    ("p50", "p50", "p50"),
    ("p90", "p90", "dim"),
    ("p99", "p99", "p99"),
    ("p99.9", "p999", "dim"),
    ("max", "max", "dim"),
)
_CELL = 6
_LABEL = 7
_HALF = _CELL * len(_COLUMNS)


def latency(view: View, width: int, height: int) -> Rows:
    """Two tables of one height, their names as the panel's title; below them what was published."""
    stage, recent = view.stage, view.snapshot.recent
    whole = stage.latency if stage else {}
    return [_title(stage, recent), _heads(), *_body(whole, recent), published(view, width)]


def _title(stage: StageView | None, recent: Mapping[str, Summary]) -> Row:
    left = _extent(f"stage {stage.number}", stage) if stage else "stage -"
    right = f"last {RECENT_S:.0f} s: {fmt.count(recent['e2e'].count if 'e2e' in recent else 0)} done"
    rule = "─" * max(0, _HALF - len(left) - 2)
    tail = "─" * max(0, _HALF - len(right) - 2)
    return (
        ("latency", "title"),
        (f" {left[: _HALF - 2]} ", "text"),
        (rule, "rule"),
        ("┬", "rule"),
        (f" {right[: _HALF - 2]} ", "text"),
        (tail, "rule"),
    )


def _extent(name: str, stage: StageView) -> str:
    return f"{name}: {fmt.duration(stage.elapsed_s)}, {fmt.count(stage.completed)} done"


def _heads() -> Row:
    heads: list[Word] = [(f"{head:>{_CELL}}", role) for head, _, role in _COLUMNS]
    return ((" " * _LABEL, "text"), *heads, ("│", "rule"), *heads)


def _body(stage: Mapping[str, Summary], recent: Mapping[str, Summary]) -> Rows:
    return [
        (
            (f"{label:<4}", "text"),
            (f"{unit:>3}", "dim"),
            *_cells(stage.get(name), unit),
            ("│", "rule"),
            *_cells(recent.get(name), unit),
        )
        for label, name, unit in _METRICS
    ]


def _cells(summary: Summary | None, unit: str) -> list[Word]:
    return [(f"{_value(summary, field, unit):>{_CELL}}", "text") for _, field, _ in _COLUMNS]


def _value(summary: Summary | None, field: str, unit: str) -> str:
    value: float | None = getattr(summary, field) if summary else None
    return fmt.number(value / 1000 if value is not None and unit == "s" else value)
