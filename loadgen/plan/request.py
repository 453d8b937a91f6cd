"""A plan that the operator asks for during a run: a ladder, a ramp, or a search from the present load."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from loadgen.errors import ProfileError
from loadgen.profile.values import MAX_RATE, parse_duration_s
from loadgen.searches import SEARCHES, SearchName

_RAMP = re.compile(r"(?:(?P<start>\S+)\s+to\s+)?(?P<to>\S+)\s+in\s+(?P<over>.+)")
_EACH = re.compile(r"(?P<loads>.+?)\s+each\s+(?P<duration>.+)")


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The plan to follow; loads are streams, or requests a second if the present loop is open."""

    kind: Literal["ladder", "ramp"] | SearchName
    loads: tuple[float, ...] = ()  # of a ladder: one stage each
    start: float | None = None  # of a ramp: its first load; None: the present one
    to: float | None = None  # of a ramp: its last load
    over_s: float | None = None  # of a ramp: its length
    duration_s: float | None = None  # of each stage of a ladder; None: as in the profile

    @property
    def words(self) -> str:
        """The plan in words, for an event."""
        match self.kind:
            case "ladder":
                each = f", {self.duration_s:g} s each" if self.duration_s is not None else ""
                return f"ladder {', '.join(f'{load:g}' for load in self.loads)}{each}"
            case "ramp":
                start = f"from {self.start:g} " if self.start is not None else ""
                return f"ramp {start}to {self.to or 0:g} in {self.over_s or 0:g} s"
            case search:
                return f"search for the {SEARCHES[search].label}"


def parse_plan(text: str) -> PlanRequest:
    """A ladder, `8, 16, 32` or `8, 16, 32 each 30s`, or a ramp, `64 in 60s` or `4 to 24 in 15s`.

    Raises `ProfileError`.
    """
    try:
        ramp = _RAMP.fullmatch(text.strip())
        if ramp is not None:
            over_s = parse_duration_s(ramp["over"])
            if over_s <= 0:
                raise ValueError(f"{ramp['over'].strip()}: too short for a ramp")
            start = _positive(ramp["start"]) if ramp["start"] is not None else None
            return PlanRequest("ramp", start=start, to=_positive(ramp["to"]), over_s=over_s)
        ladder = _EACH.fullmatch(text.strip())
        loads, duration = (ladder["loads"], ladder["duration"]) if ladder is not None else (text, None)
        values = tuple(_positive(part) for part in loads.split(","))
        return PlanRequest("ladder", loads=values, duration_s=parse_duration_s(duration) if duration else None)
    except ValueError as error:
        raise ProfileError(str(error)) from None


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        wrong = f"{text.strip()}: not a number" if text.strip() else "a load is missing"
        raise ValueError(f"{wrong}; type loads, such as 8, 16, 32") from None
    if not 0 < value <= MAX_RATE:
        raise ValueError(f"{text.strip()}: not a load; expected a number above 0, up to {MAX_RATE:,.0f}")
    return value
