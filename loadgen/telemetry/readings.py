"""Converts a value from a vendor's library or a kernel file to a number in our unit, or the reason why it is missing.

Libraries have many ways to say "not available": the text "N/A", all bits set at the width of the source (which leaks
through wider fields), negative numbers, NaN, a status. All become `Missing`, never a number. Invariants: pure; a
reading is finite and not negative.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ODD_FAILURES = (AttributeError, ctypes.ArgumentError, LookupError, OSError, TypeError, ValueError)
"""What a vendor's Python package raises besides its own errors: a missing symbol, a value or structure that it does not
know."""
_ALL_BITS_SET = {bits: (1 << bits) - 1 for bits in (16, 32, 64)}
_MICRO_FROM = 1e4  # no socket draws or is capped at 10 kW: a larger value is in microwatts


@dataclass(frozen=True, slots=True)
class Missing:
    reason: str


Measured = float | Missing  # a finite number, not negative (ints stay ints), or why there is none


def number(raw: object, *, wide: bool = False) -> Measured:
    """The number, unless it means "not available"; `wide` if 65535 can be a real value (amounts, counters)."""
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
    """A share from 0 to 100; anything above is not a percentage."""
    value = number(raw)
    return Missing(f"not a percentage: {value}") if not isinstance(value, Missing) and value > 100 else value


def amount(raw: object, unit: int = 1) -> Measured:
    """A counter or amount given in whole `unit`s, as a plain integer: 3 with a unit of 1024**2 is 3145728."""
    value = number(raw, wide=True)
    return value if isinstance(value, Missing) else int(value) * unit


def divided(raw: object, by: float, *, wide: bool = True) -> Measured:
    """An amount divided by a factor, which keeps results exact: 78000 thousandths, divided by 1000, are 78.0."""
    value = number(raw, wide=wide)
    return value if isinstance(value, Missing) else value / by


def watts(raw: object) -> Measured:
    """Watts from watts or microwatts: which one a field has depends on the library's version."""
    value = number(raw)
    return value if isinstance(value, Missing) or value <= _MICRO_FROM else value / 1e6


def text(raw: object) -> str | None:
    """The text, unless it is empty or means "not available"."""
    return raw if isinstance(raw, str) and raw.strip() not in ("", "N/A") else None


def total(readings: Iterable[Measured]) -> Measured:
    """The sum of the readings that exist; missing only if all are."""
    every = list(readings)
    values = [reading for reading in every if not isinstance(reading, Missing)]
    return sum(values) if values else first(*every, Missing("not available"))


def mean(readings: Iterable[Measured]) -> Measured:
    """The mean of the readings that exist; missing only if all are."""
    every = list(readings)
    known = [reading for reading in every if not isinstance(reading, Missing)]
    return sum(known) / len(known) if known else total(every)


def first(*readings: Measured) -> Measured:
    """The first reading that exists; if none does, the first one's reason."""
    return next((reading for reading in readings if not isinstance(reading, Missing)), readings[0])


def value_of(reading: Measured) -> Any:  # noqa: ANN401 - int or float, as the field of the schema wants it
    return None if isinstance(reading, Missing) else reading


def split(readings: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that exist, and the reasons for those that do not."""
    values = {name: reading for name, reading in readings.items() if not isinstance(reading, Missing)}
    reasons = {name: reading.reason for name, reading in readings.items() if isinstance(reading, Missing)}
    return values, reasons
