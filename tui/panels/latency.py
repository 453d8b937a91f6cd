"""Percentiles: the running stage beside the last seconds, so that a drift shows as a difference between neighbours."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen import format as fmt
from loadgen.metrics.deltas import Summary
from loadgen.metrics.snapshot import RECENT_S, StageView
from tui.panels.frame import Frame
from tui.panels.published import published
from tui.widgets.rows import Row, Rows, Word

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


def latency(frame: Frame, width: int, height: int) -> Rows:
    """Two tables of one height, their names as the panel's title; below them what was published."""
    stage, recent = frame.stage, frame.snapshot.recent
    whole = stage.latency if stage else {}
    needs_s = (stage.e2e_needs_s or 0.0) if stage else 0.0
    return [_title(stage, recent), _heads(), *_body(whole, recent, needs_s), published(frame, width)]


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


def _body(stage: Mapping[str, Summary], recent: Mapping[str, Summary], e2e_needs_s: float) -> Rows:
    needs: Row = ((f" needs {e2e_needs_s:.0f} s more to be known".ljust(_HALF), "dim"),)
    return [
        (
            (f"{label:<4}", "text"),
            (f"{unit:>3}", "dim"),
            *(needs if name == "e2e" and e2e_needs_s else _cells(stage.get(name), unit)),
            ("│", "rule"),
            *_cells(recent.get(name), unit),
        )
        for label, name, unit in _METRICS
    ]


def _cells(summary: Summary | None, unit: str) -> list[Word]:
    per = 1000.0 if unit == "s" else 1.0
    return [(f"{fmt.statistic(summary, field, per=per):>{_CELL}}", "text") for _, field, _ in _COLUMNS]
