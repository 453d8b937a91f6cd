"""One row: what a publication measured with this recipe, else the baseline, and how far from it the stage is."""

from __future__ import annotations

from loadgen.metrics.snapshot import Comparison
from tui import format as fmt
from tui.paint import Row, Word, cropped
from tui.panels.baseline import baseline_row
from tui.view import View

_NAMES = {
    "ttft_p50_ms": "TTFT p50",
    "ttft_mean_ms": "TTFT mean",
    "tpot_p50_ms": "TPOT p50",
    "tpot_mean_ms": "TPOT mean",
    "output_tokens_per_s": "out tok/s",
    "total_tokens_per_s": "tok/s",
    "requests_per_min": "req/min",
    "requests_per_s": "req/s",
    "ttft_p99_ms": "TTFT p99",
    "tpot_p99_ms": "TPOT p99",
    "e2e_p50_ms": "E2E p50",
    "e2e_mean_ms": "E2E mean",
    "normalized_mean_ms": "normalized",
}
"""In the order in which they are shown, as many as fit."""


def published(view: View, width: int) -> Row:
    """The publication's figures and the differences, else the baseline's; empty where there is neither."""
    found = view.snapshot.reference
    first = found[0].of if found else ""
    shown = {comparison.figure: comparison for comparison in found if comparison.of == first}
    if not shown:
        return baseline_row(view, width)
    row: list[Word] = [(f"published{f' {fmt.plain(first)}' if first else ''}", "title")]
    for figure, name in _NAMES.items():
        if figure in shown:
            row += _figure(name, shown[figure])
    return cropped(tuple(row), width)


def _figure(name: str, comparison: Comparison) -> list[Word]:
    value = fmt.number(comparison.published)
    if comparison.difference_percent is None:
        return [(f"  {name} ", "dim"), (value, "text")]
    return [(f"  {name} ", "dim"), (value, "text"), (f" ({comparison.difference_percent:+.1f}%)", "strong")]
