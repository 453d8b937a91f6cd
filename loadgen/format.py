"""Numbers and texts as the screen shows them: pure functions, tested as tables.

Invariants: a number takes at most five cells (three significant digits, thousands as k) and an unknown one is `-`,
never 0; no text that leaves `plain` can move the cursor, hide itself or change the direction of writing.
"""

from __future__ import annotations

import math
import re
import unicodedata

from loadgen.metrics.deltas import Summary

UNKNOWN = "-"
AT_LEAST = "≥"  # one cell, so that a lower bound takes the room of a number and no more than one of the blank before it

_UNITS = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
_WIDENS = "\ufe0f"
# CSI and OSC sequences, then any other escape together with the byte that it introduces.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")


def number(value: float | None) -> str:
    """Three significant digits, thousands as k: 0.834, 15.9, 2.09k."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    for unit, suffix in _UNITS:
        digits = _three_digits(abs(value) / unit)
        if digits is not None:
            return f"{sign}{digits}{suffix}"
    return f"{sign}huge"


def _three_digits(value: float) -> str | None:
    """At most four characters, or None when the value needs the next unit."""
    for limit, decimals in ((0.9995, 3), (9.995, 2), (99.95, 1), (999.5, 0)):
        if value < limit:
            return f"{value:.{decimals}f}"
    return None


def statistic(summary: Summary | None, name: str, *, per: float = 1.0) -> str:
    """A statistic of a latency in `per` milliseconds; with a sign where it is only known to be at least that."""
    value: float | None = getattr(summary, name) if summary is not None else None
    if summary is None or value is None:
        return UNKNOWN
    return f"{AT_LEAST if name in summary.lower_bounds else ''}{number(value / per)}"


def count(value: float | None) -> str:
    """A whole number, exact below ten thousand."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return str(round(value)) if abs(value) < 9_999.5 else number(value)


def counted(number: int, noun: str) -> str:
    """How many of something: 1 line, 2 lines."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def setting(value: float | None) -> str:
    """A load setting as the operator would type it: whole numbers without decimals."""
    if value is not None and math.isfinite(value) and value == round(value):
        return count(value)
    return number(value)


def percent(share: float | None) -> str:
    """A share of 1 as a percentage; small ones keep a decimal."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    hundredths = share * 100
    return f"{hundredths:.1f}%" if 0 < abs(hundredths) < 9.95 else f"{hundredths:.0f}%"


def clock(seconds: float | None) -> str:
    """Time since a beginning: 12:41 or 1:02:03."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float | None) -> str:
    """A span: seconds up to two minutes, then as a clock."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{max(0.0, seconds):.0f} s" if seconds < 119.5 else clock(seconds)


def target(concurrency: int | None, rate: float | None) -> str:
    """The load in two words: `conc 64`, `rate 2.5/s`."""
    if rate is not None:
        return f"rate {setting(rate)}/s"
    return f"conc {count(concurrency)}"


def plain(text: str) -> str:
    """A text of unknown origin as one harmless line: escape sequences dropped, what cannot be seen as a dot.

    Each character takes the cells that are its own: what would make the one before it wider is dropped.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _SEQUENCES.sub("", text).replace("\t", "    ").replace(_WIDENS, "")
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "C" or category in ("Zl", "Zp"):
        return "·"
    return " " if category == "Zs" else character
