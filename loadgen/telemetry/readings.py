"""What a vendor's library or a file of the kernel says, as a number in our unit or as the reason why there is none.

Libraries have a dozen ways of saying "not available": the text "N/A", all bits set at the width of the source (which
leaks through wider fields), negative numbers, NaN, a status. All of them end here as `Missing`, never as a number.
Invariants: pure; a reading is finite and not negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_ALL_BITS_SET = {bits: (1 << bits) - 1 for bits in (16, 32, 64)}
_MICRO_FROM = 1e4  # no socket draws or is capped at 10 kW: a larger figure is in microwatts


@dataclass(frozen=True, slots=True)
class Missing:
    """A value that is not there."""

    reason: str


Measured = float | Missing  # a finite number that is not negative, or why there is none; an `int` stays one


def number(raw: object, *, wide: bool = False) -> Measured:
    """The number, unless it says "not available"; `wide` for what can truly be 65535 (amounts, counters)."""
    if isinstance(raw, Missing):
        return raw
    if raw is None or raw == "" or raw == "N/A":
        return Missing("not available")
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return Missing(f"not a number: {str(raw)[:40]!r}")
    if not math.isfinite(raw):
        return Missing("not a finite number")
    if raw in _ALL_BITS_SET.values() and not (wide and raw == _ALL_BITS_SET[16]):
        return Missing("not available")
    return Missing(f"negative: {raw}") if raw < 0 else raw


def percent(raw: object) -> Measured:
    """A share from 0 to 100; what is above was never a percentage."""
    value = number(raw)
    return Missing(f"not a percentage: {value}") if not isinstance(value, Missing) and value > 100 else value


def amount(raw: object, unit: int = 1) -> Measured:
    """A counter or an amount in whole units, as the number of ones: 3 with a unit of 1024**2 is 3145728."""
    value = number(raw, wide=True)
    return value if isinstance(value, Missing) else int(value) * unit


def divided(raw: object, by: float, *, wide: bool = True) -> Measured:
    """An amount in a larger unit: 78000 in thousandths, divided by 1000, is 78.0; divided, so that it is exact."""
    value = number(raw, wide=wide)
    return value if isinstance(value, Missing) else value / by


def watts(raw: object) -> Measured:
    """Watts from watts or microwatts: which of the two a field has depends on the version of the library."""
    value = number(raw)
    return value if isinstance(value, Missing) or value <= _MICRO_FROM else value / 1e6


def text(raw: object) -> str | None:
    """The text, unless it is empty or says "not available"."""
    return raw if isinstance(raw, str) and raw.strip() not in ("", "N/A") else None


def total(readings: Iterable[Measured]) -> Measured:
    """The sum of those that are there; missing only if none is."""
    every = list(readings)
    values = [reading for reading in every if not isinstance(reading, Missing)]
    return sum(values) if values else first(*every, Missing("not available"))


def mean(readings: Iterable[Measured]) -> Measured:
    """The mean of those that are there; missing only if none is."""
    every = list(readings)
    known = [reading for reading in every if not isinstance(reading, Missing)]
    return sum(known) / len(known) if known else total(every)


def first(*readings: Measured) -> Measured:
    """The first that is there; if none is, the reason of the first."""
    return next((reading for reading in readings if not isinstance(reading, Missing)), readings[0])


def value_of(reading: Measured) -> Any:  # noqa: ANN401 - int or float, as the field of the schema wants it
    return None if isinstance(reading, Missing) else reading


def split(readings: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that are there, and the reasons for those that are not."""
    values = {name: reading for name, reading in readings.items() if not isinstance(reading, Missing)}
    reasons = {name: reading.reason for name, reading in readings.items() if isinstance(reading, Missing)}
    return values, reasons
