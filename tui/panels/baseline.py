"""The stage beside the one of the same load in the baseline: a row, and a panel of all figures."""

from __future__ import annotations

from loadgen import format as fmt
from loadgen.metrics.figures import FIGURES
from loadgen.metrics.result import Compared
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, cropped, titled

_IN_A_ROW = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "output_tok_s", "req_s", "e2e_p50", "e2e_p99")
"""As many as fit."""
_ROLES = {"better": "good", "worse": "bad", "no evidence": "dim"}
_SIGNS = {"better": " better", "worse": " worse", "no evidence": ""}


def baseline_row(frame: Frame, width: int) -> Row:
    """The baseline's figures and how far from them the stage is; empty without a baseline."""
    beside = frame.snapshot.baseline
    if beside is None:
        return ()
    row: list[Word] = [(f"baseline {fmt.plain(beside.name)}", "title")]
    if not beside.figures:
        row.append((f"  {fmt.plain(beside.verdict)}", "dim"))
    known = {one.figure: one for one in beside.figures if one.a is not None}
    for name in _IN_A_ROW:
        if name in known:
            row += _short(known[name])
    return cropped(tuple(row), width)


def baseline(frame: Frame, width: int, height: int) -> Rows:
    """All figures beside the baseline's, with the interval of each difference and what it says; at least 80 columns."""
    beside = frame.snapshot.baseline
    if beside is None:
        return [titled("baseline", (), width), ((" none; --baseline RUN names one", "dim"),)]
    legend: Row = ((fmt.plain(beside.load or ""), "dim"),)
    rows: Rows = [
        cropped(titled(f"baseline {fmt.plain(beside.name)}", legend, width), width),
        cropped(((f" {fmt.plain(beside.verdict)}", "bad" if beside.bad else "text"),), width),
    ]
    if beside.figures:
        head = f" {'':<20}{'baseline':>10}{'now':>10}{'difference':>12}{'99% interval':>20}"
        rows.append(cropped(((head, "dim"),), width))
    rows += [cropped(_long(one), width) for one in beside.figures]
    return rows[:height]


def _short(one: Compared) -> list[Word]:
    figure, difference = FIGURES[one.figure], one.difference
    words: list[Word] = [(f"  {figure.title} ", "dim"), (_values(one)[0], "text")]
    if difference is not None and difference.percent is not None:
        role = _ROLES[difference.word] if difference.word != "no evidence" else "strong"
        words.append((f" ({_bound(one)}{difference.percent:+.1f}%{_SIGNS[difference.word]})", role))
    return words


def _values(one: Compared) -> tuple[str, str]:
    """Of the baseline and of the stage."""
    a, b = (fmt.AT_LEAST if bound else "" for bound in (one.a_at_least, one.b_at_least))
    return f"{a}{fmt.number(one.a)}", f"{b}{fmt.number(one.b)}"


def _bound(one: Compared) -> str:
    """What a lower bound makes of the difference."""
    if one.a_at_least and one.b_at_least:
        return "?"
    return "≤" if one.a_at_least else fmt.AT_LEAST if one.b_at_least else ""


def _long(one: Compared) -> Row:
    figure, found = FIGURES[one.figure], one.difference
    title = f"{figure.title}, {figure.unit}" if figure.unit in ("ms", "%") else figure.title
    row: list[Word] = [
        (f" {title:<20}", "dim"),
        ("".join(f"{value:>10}" for value in _values(one)), "text"),
    ]
    if found is None or found.percent is None:
        return (*row, (f"{fmt.UNKNOWN:>12}", "dim"))
    bounded = found.low_percent is not None or found.high_percent is not None
    interval = f"{_end(found.low_percent)} to {_end(found.high_percent)}" if bounded else "too short to tell"
    return (
        *row,
        (f"{f'{_bound(one)}{found.percent:+.1f}%':>12}", "strong"),
        (f"{interval:>20}", "dim"),
        (_SIGNS[found.word], _ROLES[found.word]),
    )


def _end(percent: float | None) -> str:
    return "?" if percent is None else f"{percent:+.1f}"
