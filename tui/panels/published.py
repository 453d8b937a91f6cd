"""What a publication measured with this recipe, and how far from it a stage is: the one that shows, or each."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen import format as fmt
from loadgen.metrics.result import Comparison
from loadgen.metrics.snapshot import StageView
from tui.panels.baseline import baseline_row
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, cropped, titled

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


def published(frame: Frame, width: int) -> Row:
    """The publication's figures and the differences, else the baseline's; empty where there is neither."""
    stage = frame.stage
    found = [one for one in frame.snapshot.reference if stage is not None and one.stage == stage.number - 1]
    if not found:
        return baseline_row(frame, width)
    of = found[0].of
    return cropped(((f"published{f' {fmt.plain(of)}' if of else ''}", "title"), *_figures(found, of)), width)


def published_stages(frame: Frame, width: int, height: int) -> Rows:
    """A row for each stage that a publication has figures of, under their title; empty where there is none."""
    by_stage: dict[int, list[Comparison]] = {}
    for one in frame.timeline.published.values():
        by_stage.setdefault(one.stage, []).append(one)
    of = next((found[0].of for found in by_stage.values()), "")
    measured = [stage for stage in frame.snapshot.stages if stage.number - 1 in by_stage]
    rows = [cropped((_name(stage), *_figures(by_stage[stage.number - 1], of)), width) for stage in measured]
    left_out = len(rows) - max(1, height - 1)
    legend: Row = ((f"the last {len(rows) - left_out} of {len(rows)} stages", "dim"),) if left_out > 0 else ()
    title = titled(f"published{f' {fmt.plain(of)}' if of else ''}, and how far from it each stage is", legend, width)
    return [title, *rows[max(0, left_out) :]] if rows else []


def _name(stage: StageView) -> Word:
    return (f"{stage.number:>4} {fmt.target(stage.concurrency, stage.rate):<12}", "text")


def _figures(found: Sequence[Comparison], of: str) -> Row:
    shown = {one.figure: one for one in found if one.of == of}
    return tuple(word for figure, name in _NAMES.items() if figure in shown for word in _figure(name, shown[figure]))


def _figure(name: str, comparison: Comparison) -> list[Word]:
    value = fmt.number(comparison.published)
    if comparison.difference_percent is None:
        return [(f"  {name} ", "dim"), (value, "text")]
    return [(f"  {name} ", "dim"), (value, "text"), (f" ({comparison.difference_percent:+.1f}%)", "strong")]
