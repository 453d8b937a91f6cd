"""Differences of the stages from a publication's figures for this recipe, and from a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen import format as fmt
from loadgen.record.figures import FIGURES
from loadgen.schema.comparison import Compared, Comparison
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, titled

_PUBLISHED = {
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
    "prefix_hit_percent": "prefix hits %",
}
"""Shown in this order, as many as fit."""
_IN_A_ROW = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "output_tok_s", "req_s", "e2e_p50", "e2e_p99")
"""Shown in this order, as many as fit."""
_ROLES = {"better": "good", "worse": "bad", "no evidence": "dim"}
_SIGNS = {"better": " better", "worse": " worse", "no evidence": ""}


def published(frame: Frame) -> Row:
    """Return the publication's figures and the differences, else the baseline's; empty if there is neither."""
    stage = frame.stage
    found = [one for one in frame.snapshot.reference if stage is not None and one.stage == stage.index]
    if not found:
        return baseline_row(frame)
    of = found[0].of
    return ((_title(frame, of), "title"), *_figures(found, of))


def published_stages(frame: Frame, width: int, height: int) -> Rows:
    """Return a row for each stage with published figures, under a title; empty if there are none."""
    by_stage: dict[int, list[Comparison]] = {}
    for one in frame.timeline.published.values():
        by_stage.setdefault(one.stage, []).append(one)
    of = next((found[0].of for found in by_stage.values()), "")
    measured = [stage for stage in frame.snapshot.stages if stage.index in by_stage]
    rows: Rows = []
    for stage in measured:
        name = f"{stage.number:>4} {stage.load_words:<12}"
        rows.append(((name, "text"), *_figures(by_stage[stage.index], of)))
    left_out = len(rows) - max(1, height - 1)
    legend: Row = ((f"the last {len(rows) - left_out} of {len(rows)} stages", "dim"),) if left_out > 0 else ()
    title = titled(f"{_title(frame, of)}, and each stage's difference", legend, width)
    return [title, *rows[max(0, left_out) :]] if rows else []


def _title(frame: Frame, of: str) -> str:
    differing = ", ".join(frame.snapshot.not_as_published)
    other = f" (with other {fmt.plain(differing)})" if differing else ""
    return f"published{f' {fmt.plain(of)}' if of else ''}{other}"


def _figures(found: Sequence[Comparison], of: str) -> Row:
    words: list[Word] = []
    shown = {one.figure: one for one in found if one.of == of}
    for figure, name in _PUBLISHED.items():
        if figure in shown:
            difference = shown[figure].difference_percent
            words += [(f"  {name} ", "dim"), (fmt.number(shown[figure].published), "text")]
            words += [] if difference is None else [(f" ({difference:+.1f}%)", "strong")]
    return tuple(words)


def baseline_row(frame: Frame) -> Row:
    """Return the baseline's figures and the stage's differences from them; empty without a baseline."""
    found = frame.snapshot.baseline
    if found is None:
        return ()
    row: list[Word] = [(f"baseline {fmt.plain(found.name)}", "title")]
    if not found.figures:
        row.append((f"  {fmt.plain(found.verdict)}", "dim"))
    known = {one.figure: one for one in found.figures if one.a is not None}
    for name in _IN_A_ROW:
        if name in known:
            one, difference = known[name], known[name].difference
            row += [(f"  {FIGURES[name].title} ", "dim"), (_values(one)[0], "text")]
            if difference is not None and difference.percent is not None:
                role = _ROLES[difference.word] if difference.word != "no evidence" else "strong"
                row.append((f" ({_bound(one)}{difference.percent:+.1f}%{_SIGNS[difference.word]})", role))
    return tuple(row)


def baseline(frame: Frame, width: int, height: int) -> Rows:
    """Return all figures and the baseline's, with each difference, its interval and verdict; needs 80 columns."""
    found = frame.snapshot.baseline
    if found is None:
        return [titled("baseline", (), width), ((" none; --baseline RUN names one", "dim"),)]
    legend: Row = ((fmt.plain(found.load or ""), "dim"),)
    rows: Rows = [
        titled(f"baseline {fmt.plain(found.name)}", legend, width),
        ((f" {fmt.plain(found.verdict)}", "bad" if found.bad else "text"),),
    ]
    if found.figures:
        head = f" {'':<20}{'baseline':>10}{'now':>10}{'difference':>12}{'99% interval':>20}"
        rows.append(((head, "dim"),))
    return [*rows, *(_long(one) for one in found.figures)]


def _values(one: Compared) -> tuple[str, str]:
    a, b = (fmt.AT_LEAST if bound else "" for bound in (one.a_at_least, one.b_at_least))
    return f"{a}{fmt.number(one.a)}", f"{b}{fmt.number(one.b)}"


def _bound(one: Compared) -> str:
    """Return the sign of a difference in which one side, or both, is only a lower bound."""
    if one.a_at_least and one.b_at_least:
        return "?"
    return "≤" if one.a_at_least else fmt.AT_LEAST if one.b_at_least else ""


def _long(one: Compared) -> Row:
    figure, found = FIGURES[one.figure], one.difference
    title = f"{figure.title}, {figure.unit}" if figure.unit in ("ms", "%") else figure.title
    a, b = _values(one)
    row: Row = ((f" {title:<20}", "dim"), (f"{a:>10}{b:>10}", "text"))
    if found is None or found.percent is None:
        return (*row, (f"{fmt.UNKNOWN:>12}", "dim"))
    bounded = found.low_percent is not None or found.high_percent is not None
    low, high = ("?" if end is None else f"{end:+.1f}" for end in (found.low_percent, found.high_percent))
    interval = f"{low} to {high}" if bounded else figure.no_interval
    return (
        *row,
        (f"{f'{_bound(one)}{found.percent:+.1f}%':>12}", "strong"),
        (f"{interval:>20}", "dim"),
        (_SIGNS[found.word], _ROLES[found.word]),
    )
