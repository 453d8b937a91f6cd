"""Turns a profile into its plan: listed stages, ladder, ramp, matrix and soak, and the probes of a search."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from loadgen.distributions import REPLAY
from loadgen.errors import ProfileError
from loadgen.metrics.difference import fewest_streams
from loadgen.plan.slo_search import tier_search
from loadgen.plan.stage import Plan, Stage
from loadgen.profile.load import Load, PlanSettings, Ramp, StageSettings
from loadgen.profile.schema import Profile
from loadgen.profile.values import mean_rate, per_stream_limits_ms
from loadgen.schema.result import Limits
from loadgen.searches import SEARCHES
from loadgen.workload.shape import shape_of
from loadgen.workload.work import Work

REQUESTS_A_STREAM = 10
"""Requests per concurrent stream where nothing bounds a stage: the commonly recommended 10 x concurrency."""
OPEN_LOOP_S = 30.0  # length of an open-loop stage that nothing bounds
SESSIONS_S = 120.0  # of one of live sessions: many of their pauses are shorter
SETTLED_S = 10.0  # measured time of a settled stage that nothing bounds
SEARCH_SETTLE_S = 30.0
SEARCH_COMPLETED = 50  # enough for a first estimate; the probes that bound the answer continue until they are sure
_MIN_S = 1.0
_MIN_PIECE_S = 0.001


def stages_of(profile: Profile) -> list[Stage]:
    """The stages of a fixed plan, each with its passes; for a search, its first and its largest possible probe."""
    passes = profile.load.passes
    once = _stages_once(profile)
    endless = any(stage.no_load and stage.duration_s is None for stage in once)
    if endless and len(once) * passes > 1:
        raise ProfileError("load.concurrency = 0: a stage that sends nothing needs a duration to end; set one")
    if passes == 1:
        return once
    if profile.plan.search is not None:
        raise ProfileError("load.passes: a search measures each probe once; remove load.passes")
    return [
        msgspec.structs.replace(
            stage, label=f"{stage.title}, pass {again}", work=stage.work.pass_of(number), pass_number=again
        )
        for number, stage in enumerate(once)
        for again in range(1, passes + 1)
    ]


def _stages_once(profile: Profile) -> list[Stage]:
    plan, load = profile.plan, profile.load
    if profile.stages:
        return [_stage(profile, settings) for settings in profile.stages]
    if plan.ramp is not None:
        return [_ramp_stage(profile, plan.ramp)]
    if plan.soak is not None:
        return [_stage(profile, StageSettings(**_settings(profile)[0], duration=plan.soak, label="soak"))]
    if plan.every is not None:
        # Cut into pieces; a stage without an end is one piece, repeated by its plan.
        stage = _stage(profile, StageSettings(concurrency=0))
        whole, rest_s = divmod(stage.duration_s or plan.every, plan.every)
        lengths = [plan.every] * int(whole) + ([rest_s] if rest_s > _MIN_PIECE_S else [])
        return [msgspec.structs.replace(stage, duration_s=length_s) for length_s in lengths]
    if plan.search is not None:
        return [search_stage(profile, value) for value in (search_start(profile), plan.most)]
    shapes: list[tuple[int | str, int | str]] = [*load.shapes] or [(load.isl, load.osl)]
    return [
        _stage(profile, StageSettings(isl=isl, osl=osl, **setting))
        for isl, osl in shapes
        for setting in _settings(profile)
    ]


def next_stages(profile: Profile) -> Plan:
    """The plan of a profile, as a function of what has been measured."""
    if profile.plan.search is not None:
        return search_plan(profile, search_start(profile))
    stages = stages_of(profile)
    if profile.plan.every is not None and profile.load.duration is None:
        return lambda done: stages[0]
    return listed(stages)


def search_plan(profile: Profile, start: float) -> Plan:
    assert profile.plan.search is not None
    maker = pkgutil.resolve_name(SEARCHES[profile.plan.search].maker)
    if SEARCHES[profile.plan.search].needs_limits and profile.tiers:
        of_tiers = [profile.model_copy(update={"slo": tier, "tiers": []}) for tier in profile.tiers]
        return tier_search([(_limits_of(one), search_plan(one, start)) for one in of_tiers])
    plan: Plan = maker(profile.plan, start, partial(search_stage, profile))
    return plan


def _limits_of(profile: Profile) -> Limits:
    return Limits(profile.slo.limits_ms, failed=profile.slo.failed, goodput=profile.plan.goodput)


def listed(stages: Sequence[Stage]) -> Plan:
    """A fixed sequence of stages, whatever they measure."""
    return lambda done: stages[len(done)] if len(done) < len(stages) else None


def ladder_loads(ladder: int | list[float]) -> list[float]:
    """A list as it is; for a number, its doublings: 1, 2, 4, ... and the number itself."""
    if isinstance(ladder, list):
        return ladder
    doublings = [float(2**power) for power in range(ladder.bit_length())]
    return doublings if doublings[-1] == ladder else [*doublings, float(ladder)]


def ramp_loads(ramp: Ramp, *, by: str) -> list[float]:
    """The load of each step, evenly spaced from start to end; repeated concurrencies are dropped."""
    loads = [ramp.start + (ramp.end - ramp.start) * step / (ramp.steps - 1) for step in range(ramp.steps)]
    return loads if by == "rate" else list(dict.fromkeys(float(round(load)) for load in loads))


def _ramp_stage(profile: Profile, ramp: Ramp) -> Stage:
    """One stage whose load moves in steps; its figures are kept per step."""
    by = profile.plan.by
    loads = ramp_loads(ramp, by=by)
    label = f"ramp {ramp.start:g} to {ramp.end:g}"
    own = StageSettings(**_setting(by, loads[0]), duration=ramp.over, warmup=0, label=label)
    stage = _stage(profile.model_copy(update={"plan": profile.plan.model_copy(update={"settle": None})}), own)
    bounds_s = [ramp.over * step / len(loads) for step in range(len(loads) + 1)]
    steps = tuple(zip(bounds_s, loads, strict=False))
    if by == "concurrency":
        return msgspec.structs.replace(stage, steps=steps)
    # Two points per step, so that arrivals follow the load with which the step's figures are labelled.
    points = tuple((at_s, load) for step, load in enumerate(loads) for at_s in bounds_s[step : step + 2])
    return msgspec.structs.replace(stage, steps=steps, rate_points=points, rate=mean_rate(points))


def search_start(profile: Profile) -> float:
    """The load at which a search begins: the profile's, within the search's bounds; for a knee, the lowest load."""
    plan, load = profile.plan, profile.load
    if plan.search is not None and SEARCHES[plan.search].from_below:
        return plan.least
    first = load.rate[0] if plan.by == "rate" and load.rate else float(load.concurrency[0])
    return min(plan.most, max(plan.least, first))


def search_stage(profile: Profile, load: float, *, certain: bool = False) -> Stage:
    """A probe of a search: settled, with a minimum of streams; if `certain`, it runs until its verdict is sure."""
    plan, judged = profile.plan, None
    if plan.search is not None and SEARCHES[plan.search].needs_limits:
        judged = _limits_of(profile)
    fewest = max(SEARCH_COMPLETED, fewest_streams(judged) if judged is not None and certain else 0)
    settled = plan.model_copy(update={"settle": plan.settle or SEARCH_SETTLE_S, "completed": plan.completed or fewest})
    stage = _stage(profile.model_copy(update={"plan": settled}), StageSettings(**_setting(plan.by, load)))
    return msgspec.structs.replace(stage, judged=judged, certain=certain)


def _setting(by: str, load: float) -> dict[str, Any]:
    return {"rate": load} if by == "rate" else {"concurrency": round(load)}


def _settings(profile: Profile) -> list[dict[str, Any]]:
    plan, load = profile.plan, profile.load
    if plan.ladder is not None:
        return [_setting(plan.by, value) for value in ladder_loads(plan.ladder)]
    if load.rate:
        return [{"rate": rate} for rate in load.rate]
    if load.rate_points or load.arrival == REPLAY:
        return [{}]
    return [{"concurrency": concurrency} for concurrency in load.concurrency]


def _stage(profile: Profile, own: StageSettings) -> Stage:
    load = profile.load
    points = tuple(own.rate_points or ([] if own.rate or own.concurrency is not None else load.rate_points))
    arrival = own.arrival or load.arrival
    replay = arrival == REPLAY and own.concurrency is None
    shape = shape_of(load, own.isl or load.isl, own.osl or load.osl, replay=replay)
    rate, concurrency = _rate(load, own, points, shape.work), own.concurrency
    if rate is not None and shape.work.sessions is not None:
        raise ProfileError("load.sessions: sessions need a concurrency, the number of live ones, not a rate")
    if rate is None and concurrency is None:
        concurrency = load.concurrency[0]
    if rate is not None and shape.work.turns > 1:
        raise ProfileError("load.turns: conversations need a concurrency, not a rate or the times of a trace")
    bounded = own.requests is not None or own.duration is not None
    requests, duration_s = (own.requests, own.duration) if bounded else (load.requests, load.duration)
    warmup = own.warmup if own.warmup is not None else load.warmup
    stage = Stage(
        concurrency=concurrency,
        rate=rate,
        arrival=arrival,
        rate_points=points,
        max_concurrency=load.max_concurrency if rate is not None or shape.work.sessions is not None else None,
        isl=shape.isl,
        osl=shape.osl,
        work=shape.work,
        requests=requests,
        duration_s=duration_s,
        warmup_requests=warmup if isinstance(warmup, int) else 0,
        warmup_s=0.0 if isinstance(warmup, int) else float(warmup.removesuffix("s")),
        label=own.label or "",
        ends_saturated=profile.plan.saturation == "end",
        first_wave=profile.first_wave,
        limits_ms=per_stream_limits_ms(profile.slo.limits_ms),
    )
    if stage.no_load:
        return msgspec.structs.replace(stage, requests=None, warmup_requests=0, warmup_s=0.0)
    return _bounded(stage) if profile.plan.settle is None else _settled(stage, profile.plan)


def _rate(load: Load, own: StageSettings, points: tuple[tuple[float, float], ...], work: Work) -> float | None:
    """Mean requests a second of an open loop, None in closed loop; raises `ProfileError` if given in two ways."""
    explicit = own.rate or (load.rate[0] if load.rate and own.concurrency is None and not own.rate_points else None)
    named = {"rate": explicit, "rate_points": points, f'arrival = "{REPLAY}"': work.replay}
    given = [name for name, value in named.items() if value]
    if load.rate and load.rate_points:
        given = ["rate", "rate_points"]
    if len(given) > 1:
        raise ProfileError(f"load: {' and '.join(given)} each set when requests come: keep one of them")
    if own.concurrency is not None or not given:
        return None
    if work.replay and work.data is not None:
        return work.data.records / max(work.data.span_s, 1e-3)
    return mean_rate(points) if points else explicit


def _bounded(stage: Stage) -> Stage:
    if stage.work.replay and stage.work.data is not None:
        return msgspec.structs.replace(stage, requests=min(stage.work.data.records, stage.requests or 1 << 62))
    if stage.requests is not None or stage.duration_s is not None:
        return stage
    if stage.rate_points:
        return msgspec.structs.replace(stage, duration_s=stage.rate_points[-1][0])
    if stage.concurrency is None:
        return msgspec.structs.replace(stage, duration_s=OPEN_LOOP_S)
    if stage.work.sessions is not None:
        return msgspec.structs.replace(stage, duration_s=SESSIONS_S)
    return msgspec.structs.replace(stage, requests=REQUESTS_A_STREAM * stage.concurrency)


def _settled(stage: Stage, plan: PlanSettings) -> Stage:
    """The stage bounded by time; its number of requests, if any, becomes the minimum to complete."""
    assert plan.settle is not None
    duration_s = stage.duration_s or (SETTLED_S if stage.requests is None else _MIN_S)
    return msgspec.structs.replace(
        stage,
        requests=None,
        duration_s=duration_s,
        warmup_requests=0,
        warmup_s=0.0,
        settle_s=plan.settle,
        min_completed=max(stage.requests or 0, plan.completed or 0),
        max_duration_s=max(plan.longest, duration_s),
    )
