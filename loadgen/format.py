"""Numbers, units and texts as people read them: the only place that formats any of these.

Invariants: an unknown number is `-`, never 0. On the screen a number takes at most five cells (three significant
digits, thousands as k); in a report it has the decimals of its column. No text that leaves `plain` or `harmless` can
move the cursor, hide itself or change the direction of writing.
"""

from __future__ import annotations

import math
import pwd
import re
import signal
import unicodedata
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

UNKNOWN = "-"
NO_LOAD = "no load"  # what a load of concurrency 0 is called
AT_LEAST = "≥"  # one cell, so that a lower bound takes the room of a number and no more than one of the blank before it
GIB = 1024**3

_WIDENS = "\ufe0f"
# Control characters (C0 but for the newline, DEL, C1) and those that change the direction of writing.
_HARMFUL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
# CSI and OSC sequences, then any other escape together with the byte that it introduces.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")


def number(value: float | None) -> str:
    """Three significant digits, thousands as k: 0.834, 15.9, 2.09k."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    for unit, suffix in ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        scaled = abs(value) / unit
        for limit, decimals in ((0.9995, 3), (9.995, 2), (99.95, 1), (999.5, 0)):
            if scaled < limit:
                return f"{sign}{scaled:.{decimals}f}{suffix}"
    return f"{sign}huge"


class Bounded(Protocol):
    """A summary of statistics, some of which may only be lower bounds."""

    @property
    def lower_bounds(self) -> tuple[str, ...]:
        """The names of the statistics that are lower bounds."""


class Statistic(NamedTuple):
    """One statistic, which may be a lower bound."""

    value: float | None
    at_least: bool = False

    @classmethod
    def of(cls, summary: Bounded | None, name: str) -> Statistic:
        """A statistic by its name; unknown where there is no summary."""
        return cls(None) if summary is None else cls(getattr(summary, name), name in summary.lower_bounds)


def statistic(summary: Bounded | None, name: str, *, per: float = 1.0) -> str:
    """A statistic on the screen, in `per` of its unit; with a sign where it is a lower bound."""
    return bounded_number(Statistic.of(summary, name), per=per)


def bounded_number(one: Statistic, *, per: float = 1.0) -> str:
    """A number on the screen; with a sign where it is a lower bound."""
    if one.value is None:
        return UNKNOWN
    return f"{AT_LEAST if one.at_least else ''}{number(one.value / per)}"


def count(value: float | None) -> str:
    """A whole number, exact below ten thousand."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return str(round(value)) if abs(value) < 9_999.5 else number(value)


def setting(value: float | None) -> str:
    """A load setting as the operator would type it: whole numbers without decimals."""
    if value is not None and math.isfinite(value) and value == round(value):
        return count(value)
    return number(value)


def interval(bounds: tuple[float, float | None] | None) -> str:
    """Between which bounds something lies: 80-100, <10 in the first bucket, >640 beyond the last bound."""
    if bounds is None:
        return UNKNOWN
    low, high = bounds
    if high is None:
        return f">{_bound(low)}"
    return f"{_bound(low)}-{_bound(high)}" if low else f"<{_bound(high)}"


def _bound(value: float) -> str:
    """As round as it was chosen: 0.8, 37.5, 2500."""
    return f"{value:.4g}" if value < 9_999.5 else number(value)


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


def iso_time(unix_s: float) -> str:
    """A moment in UTC: 2025-01-31T12:00:00.000Z."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float | None) -> str:
    """A span: seconds up to two minutes, then as a clock."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{max(0.0, seconds):.0f} s" if seconds < 119.5 else clock(seconds)


def target(concurrency: int | None, rate: float | None, *, in_sessions: bool = False) -> str:
    """The load in two words: `conc 64`, `64 sessions`, `rate 2.5/s`."""
    if rate is not None:
        return f"rate {setting(rate)}/s"
    if in_sessions and concurrency:
        return counted(concurrency, "session")
    return NO_LOAD if concurrency == 0 else f"conc {count(concurrency)}"


def gib(count_bytes: float | None) -> float | None:
    """Bytes in GiB."""
    return None if count_bytes is None else count_bytes / GIB


def mb(count_bytes: float | None) -> float | None:
    """Bytes in megabytes."""
    return None if count_bytes is None else count_bytes / 1e6


def memory(count_bytes: float) -> str:
    """An amount of memory in words: 1.5 GiB."""
    return f"{count_bytes / GIB:.1f} GiB"


def scale(most: float, unit: str) -> tuple[float, str]:
    """What to divide values up to `most` by, and their unit then: 123,456,789 J are 123 MJ, 8,000,000 B 7.63 MiB."""
    step, prefixes = (
        (1024.0, ("", "Ki", "Mi", "Gi", "Ti", "Pi")) if unit[0] == "B" else (1e3, ("", "k", "M", "G", "T", "P"))
    )
    power = 0
    while abs(most) / step**power >= step and power < len(prefixes) - 1:
        power += 1
    return step**power, prefixes[power] + unit


def ranges(numbers: Iterable[int]) -> str:
    """0-3, 5 for 0, 1, 2, 3, 5."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def user_name(number: int) -> str:
    """A user by name; by number where there is no name, as for a user of another machine or container."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def signal_name(number: int) -> str:
    """SIGKILL for 9; `signal 37` for a real-time signal, which has only a number."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def counted(number: int, noun: str) -> str:
    """How many of something: 1 line, 2 lines."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def fixed(value: float | None, decimals: int = 2) -> str:
    """A number in the tables that scripts read: 2394.07, no thousands."""
    return UNKNOWN if value is None else f"{value:z.{decimals}f}"


def grouped(value: float | None, decimals: int = 0) -> str:
    """A number in a report, with as many decimals as its column has: 2,394.07."""
    return UNKNOWN if value is None else f"{value:z,.{decimals}f}"


def significant(value: float | None) -> str:
    """A number that stands alone, with three digits at least: 2.25, 16.7, 2,574."""
    if value is None:
        return UNKNOWN
    return grouped(value, 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0)


def exact(value: float | None) -> str:
    """A limit or what is held against it, with the decimals that tell them apart: 6.2, 6.203, 1,234,567."""
    if value is None or 0 < abs(value) < 0.001:
        return UNKNOWN if value is None else f"{value:g}"
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def exact_percent(share: float | None) -> str:
    """The same for a share of 1: 99.94%."""
    return UNKNOWN if share is None else f"{exact(100 * share)}%"


def bounded(one: Statistic, form: Callable[[float | None], str] = significant) -> str:
    """A statistic in a report; `>= 2,310` where it is a lower bound."""
    return f">= {significant(one.value)}" if one.at_least and one.value is not None else form(one.value)


def signed_percent(percent: float | None) -> str:
    """A difference: +2.1 %."""
    return UNKNOWN if percent is None else f"{percent:+.1f} %"


def harmless(text: str) -> str:
    """A text from outside for a terminal, every run of control characters a visible mark; newlines stay."""
    return _HARMFUL.sub("\N{SYMBOL FOR SUBSTITUTE FORM TWO}", text)


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
