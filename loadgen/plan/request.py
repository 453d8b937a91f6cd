"""A plan that the operator wishes for from where the load stands: a ladder, a ramp, or a search.

It becomes a plan of the profile's own making, with its warm-up, its lengths of stages and its limits; what is sent and
whether the loop is open or closed stay as they are. What cannot be had is refused in words, and nothing has changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadgen.errors import ProfileError
from loadgen.metrics.journal import SearchResult
from loadgen.plan.fixed import listed, search_stage, stages_of
from loadgen.plan.knee_search import knee_search
from loadgen.plan.slo_search import slo_search
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.load import PlanSettings
from loadgen.profile.schema import Profile
from loadgen.profile.values import parse_duration_s

_KINDS = ("ladder", "ramp", "soak", "search")
_KEYS = {"ladder", "ramp", "start", "end", "over", "duration"}
_BELOW = 8  # A knee is seen from both sides: its search begins at this part of the present load
_RAMP = re.compile(r"(?P<to>\S+)\s+in\s+(?P<over>.+)")
_EACH = re.compile(r"(?P<loads>.+?)\s+each\s+(?P<duration>.+)")


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What shall follow; loads are streams held, or requests a second where the present loop is open."""

    kind: Literal["ladder", "ramp", "knee", "slo"]
    loads: tuple[float, ...] = ()  # of a ladder: each is a stage
    to: float | None = None  # of a ramp: where it ends
    over_s: float | None = None  # of a ramp: from its beginning to its end
    duration_s: float | None = None  # of each stage of a ladder; None: as the profile says

    @property
    def words(self) -> str:
        """What it is, for an event."""
        match self.kind:
            case "ladder":
                each = f", {self.duration_s:g} s each" if self.duration_s is not None else ""
                return f"ladder {', '.join(f'{load:g}' for load in self.loads)}{each}"
            case "ramp":
                return f"ramp to {self.to or 0:g} in {self.over_s or 0:g} s"
            case "knee":
                return "search for the knee"
            case "slo":
                return "search for the highest load within the limits"


class Following(msgspec.Struct, frozen=True):
    """A plan from where the load stands."""

    plan: Plan
    stages: int | None  # how many there will be; None for a search, which decides as it goes


def parse_wish(text: str) -> PlanRequest:
    """A ladder, `8, 16, 32` or `8, 16, 32 each 30s`, or a ramp, `64 in 60s`; raises `ProfileError`."""
    try:
        ramp = _RAMP.fullmatch(text.strip())
        if ramp is not None:
            return PlanRequest("ramp", to=_positive(ramp["to"]), over_s=parse_duration_s(ramp["over"]))
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
        raise ValueError(f"{text.strip() or 'nothing'}: not a number") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"{text.strip()}: not a load; expected a number above 0")
    return value


def following(wish: PlanRequest, profile: Profile, present: Stage) -> Following:
    """The plan that a wish becomes from the present stage; raises `ProfileError` for one that cannot be had."""
    if wish.duration_s is not None and wish.duration_s <= 0:
        raise ProfileError(f"each {wish.duration_s:g} s: a stage lasts longer than that")
    if wish.kind == "slo" and not profile.slo.asks:
        raise ProfileError('there is no limit to search for: the profile has no [slo], such as ttft_p99 = "2s"')
    wished = _wished(wish, profile, present)
    if wished.plan.search is None:
        stages = [_as_now(stage, present) for stage in stages_of(wished)]
        return Following(listed(stages), len(stages))
    plan = partial(_next_as_now, _search(wished, present), present)
    # What is wrong with a probe shows before the present stage is over.
    plan([])
    return Following(plan, None)


def _wished(wish: PlanRequest, profile: Profile, present: Stage) -> Profile:
    """The profile with the plan that is wished for, and with nothing in it that would make another."""
    # What is sent is taken over from the present stage.
    changes: dict[str, Any] = {"isl": present.isl, "osl": present.osl, "shapes": [], "passes": 1}
    changes |= {"data": None, "prefix": None, "turns": None}
    changes |= {"rate": [], "rate_points": [], "arrival": "poisson"}
    if wish.duration_s is not None:
        changes |= {"requests": None, "duration": wish.duration_s}
    load = profile.load.model_copy(update=changes)
    return profile.model_copy(update={"plan": _settings(wish, profile.plan, present), "load": load, "stages": []})


def _settings(wish: PlanRequest, before: PlanSettings, present: Stage) -> PlanSettings:
    by = "concurrency" if present.rate is None else "rate"
    if before.by != by:
        before = before.model_copy(update={name: PlanSettings.model_fields[name].default for name in ("least", "most")})
    changes = {"by": by, **dict.fromkeys(_KINDS), **_own_settings(wish, before, present.load)}
    if before.settle is None and changes["search"] is None:
        changes["completed"] = None
    try:
        return PlanSettings.model_validate(before.model_dump() | changes)
    except ValidationError as error:
        raise ProfileError(_words(error.errors()[-1])) from None


def _own_settings(wish: PlanRequest, before: PlanSettings, load: float) -> dict[str, Any]:
    match wish.kind:
        case "ladder":
            return {"ladder": list(wish.loads)}
        case "ramp":
            return {"ramp": {"start": load, "end": wish.to, "over": wish.over_s}}
        case "knee":
            return {"search": "knee", "least": max(1.0, load // _BELOW), "most": max(before.most, load)}
        case "slo":
            return {"search": "slo", "least": min(before.least, load), "most": max(before.most, load)}


def _words(details: ErrorDetails) -> str:
    message = details["msg"].removeprefix("Value error, ")
    key = ".".join(str(part) for part in details["loc"] if isinstance(part, str) and part in _KEYS)
    return f"{key}: {message[:1].lower()}{message[1:]}" if key else message


def _search(wished: Profile, present: Stage) -> Plan:
    probe = partial(search_stage, wished)
    if wished.plan.search == "knee":
        return knee_search(wished.plan, probe)
    return slo_search(wished.plan, present.load, probe)


def _next_as_now(plan: Plan, present: Stage, done: Sequence[Measured]) -> Stage | SearchResult | None:
    following = plan(done)
    return _as_now(following, present) if isinstance(following, Stage) else following


def _as_now(stage: Stage, present: Stage) -> Stage:
    """The same with what is sent now, at times of its own."""
    now = present.by_hand(rate=present.rate)
    return msgspec.structs.replace(stage, isl=now.isl, osl=now.osl, work=now.work, arrival=now.arrival)
