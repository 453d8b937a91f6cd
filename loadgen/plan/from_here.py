"""Turns a plan that the operator asks for during a run into one that starts from the present load.

The plan is made as from the profile, with the profile's warm-up, stage lengths and limits; prompts, and whether the
loop is open or closed, stay as they are. An impossible plan is refused with a message, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import ValidationError

from loadgen.errors import ProfileError
from loadgen.plan.from_profile import listed, search_plan, stages_of
from loadgen.plan.request import PlanRequest
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.load import PlanSettings
from loadgen.profile.schema import Profile
from loadgen.schema.shared import SearchResult
from loadgen.searches import PLAN_KEYS, SEARCHES

_KEYS = {"ladder", "ramp", "start", "end", "over", "duration"}
_BELOW = 8  # a knee must be seen from both sides: the search begins at the present load divided by this


def plan_from_here(requested: PlanRequest, profile: Profile, present: Stage) -> tuple[Plan, int]:
    """The plan for a request, starting from the present stage, and its number of stages (0 for a search).

    Raises `ProfileError` for a plan that is impossible.
    """
    if requested.duration_s is not None and requested.duration_s <= 0:
        raise ProfileError(f"each {requested.duration_s:g} s: too short for a stage")
    if requested.kind in SEARCHES and SEARCHES[requested.kind].needs_limits and not profile.has_limits:
        raise ProfileError('search = "slo" needs a limit: the profile has no [slo] table, such as ttft_p99 = "2s"')
    planned = _profile_with(requested, profile, present)
    if planned.plan.search is None:
        stages = [_as_now(stage, present) for stage in stages_of(planned)]
        return listed(stages), len(stages)
    search = search_plan(planned, _load_of(present))
    # An invalid probe must show now, not once the present stage is over.
    search([])

    def following(done: Sequence[Measured]) -> Stage | SearchResult | None:
        found = search(done)
        return _as_now(found, present) if isinstance(found, Stage) else found

    return following, 0


def _profile_with(requested: PlanRequest, profile: Profile, present: Stage) -> Profile:
    """The profile with the requested plan, and without any other plan."""
    # Prompts are taken over from the present stage.
    changes: dict[str, Any] = {"isl": present.isl, "osl": present.osl, "shapes": [], "passes": 1}
    changes |= {"data": None, "data_format": None, "trace": None, "sessions": None}
    changes |= {"prefix": None, "turns": None, "rate": [], "rate_points": [], "arrival": "poisson"}
    if requested.duration_s is not None:
        changes |= {"requests": None, "duration": requested.duration_s}
    load = profile.load.model_copy(update=changes)
    return profile.model_copy(update={"plan": _settings(requested, profile.plan, present), "load": load, "stages": []})


def _settings(requested: PlanRequest, before: PlanSettings, present: Stage) -> PlanSettings:
    by = "concurrency" if present.rate is None else "rate"
    if before.by != by:
        before = before.model_copy(update={name: PlanSettings.model_fields[name].default for name in ("least", "most")})
    changes = {
        "by": by,
        "every": None,
        **dict.fromkeys(PLAN_KEYS),
        **_own_settings(requested, before, _load_of(present)),
    }
    if before.settle is None and changes["search"] is None:
        changes["completed"] = None
    try:
        return PlanSettings.model_validate(before.model_dump() | changes)
    except ValidationError as error:
        details = error.errors()[-1]
        message = details["msg"].removeprefix("Value error, ")
        key = ".".join(str(part) for part in details["loc"] if part in _KEYS)
        raise ProfileError(f"{key}: {message[:1].lower()}{message[1:]}" if key else message) from None


def _load_of(present: Stage) -> float:
    """The load from which a plan starts; one stream if there is no load."""
    return max(1.0, present.load) if present.no_load else present.load


def _own_settings(requested: PlanRequest, before: PlanSettings, load: float) -> dict[str, Any]:
    match requested.kind:
        case "ladder":
            return {"ladder": list(requested.loads)}
        case "ramp":
            return {"ramp": {"start": requested.start or load, "end": requested.to, "over": requested.over_s}}
        case search:
            least = max(1.0, load // _BELOW) if SEARCHES[search].from_below else min(before.least, load)
            return {"search": search, "least": least, "most": max(before.most, load)}


def _as_now(stage: Stage, present: Stage) -> Stage:
    """The stage with the present one's requests and kind of arrivals, which is Poisson instead of a replay."""
    now = present.by_hand(rate=present.rate)
    return msgspec.structs.replace(stage, isl=now.isl, osl=now.osl, work=now.work, arrival=now.arrival)
