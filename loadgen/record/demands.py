"""What a profile demands of a box, as criteria: nothing is measured yet.

They come from four places: what must never happen; limits in `[slo]` and figures in `[reference]`; rows of `[accept]`,
which replace those for the same figure, load and direction; and boxes that passed, whose own spread makes the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, variance

import msgspec

from loadgen.criteria import EXACT_MATCH, PHASES, Direction, PhaseName, figure_kind
from loadgen.errors import ProfileError
from loadgen.metrics.acceptance import FALSE_FAIL, MIN_STARTS, RESOLUTION, prediction_limit, requests_needed
from loadgen.profile.accept import Accept, AcceptCriterion
from loadgen.profile.schema import Profile
from loadgen.profile.values import per_stream_limits_ms, stage_limits_ms
from loadgen.record.figures import LoadShape
from loadgen.schema.certificate import Demand, Spread

_UNDER_LOAD: tuple[PhaseName, ...] = ("output", "performance", "burn-in")
NEVER: dict[str, tuple[PhaseName, ...]] = {
    "blocking_findings": ("box",),
    "probe_failures": ("silicon",),
    "start_differences": ("start",),
    "output_faults": ("output",),
    "ecc_uncorrectable": _UNDER_LOAD,
    "xids": _UNDER_LOAD,
    "gpu_resets": ("burn-in",),
    "server_restarts": _UNDER_LOAD,
    "links_lost": _UNDER_LOAD,
    "stalls": _UNDER_LOAD,
    "failed_requests": ("burn-in",),
}
"""Figures of which not one event is tolerated, and the phases that watch them."""
_STEADY = {"ttft": 10.0, "tpot": 10.0, "server_memory": 5.0, "hbm": 5.0}
"""By how many percent a figure may rise during the burn-in, as for the verdict `rising`."""
LIKE_FIGURES: dict[str, Direction] = {
    "output_tokens_per_s": "at_least",
    "ttft_p50_ms": "at_most",
    "ttft_p99_ms": "at_most",
    "tpot_p50_ms": "at_most",
    "tpot_p99_ms": "at_most",
    "kv_cache_tokens": "at_least",
}
"""Figures that other boxes make bounds for, and from which side."""
BoxValues = Mapping[tuple[str, str], Sequence[Sequence[float]]]
"""What other boxes measured, by figure and load: each box's values at its starts, for boxes that have the figure."""


def criteria_of(
    profile: Profile, loads: Sequence[LoadShape], like: BoxValues, *, sent: Mapping[str, int]
) -> tuple[tuple[Demand, ...], tuple[str, ...]]:
    """All criteria of the phases that are asked for, and what is not tested; raises `ProfileError`.

    `like` is of boxes that passed, `loads` are those under which the performance phase measures, and `sent` how
    many requests a start has at each whose number is fixed: a published figure that takes more is not tested, any
    other is refused.
    """
    accept = profile.accept or Accept()
    steady = [
        demand_of(f"{figure}_rise_percent", "at_most", percent, "steady under a steady load")
        for figure, percent in _STEADY.items()
    ]
    published = list(_published(profile, loads, accept))
    few = {_key(demand): why for demand in published if (why := _too_few(demand, sent))}
    shown = [demand for demand in published if _key(demand) not in few]
    automatic = [*_never(profile), *steady, *_limits(profile, loads), *shown]
    own = _own(accept, loads)
    demanded = [*(demand for demand in automatic if _key(demand) not in own), *own.values()]
    for why in filter(None, (_too_few(demand, sent) for demand in demanded if demand.phase in accept.phases)):
        raise ProfileError(f"{profile.name}: accept: {why}: give that load more requests, or a duration")
    spreads = {key: _spread(values) for key, values in like.items()}
    found = [demand for demand in (*demanded, *_like(like)) if demand.phase in accept.phases]
    kept = [_with_spread(demand, accept, spreads) for demand in found]
    is_measured = any(demand.phase == "performance" and demand.direction != "none_of" for demand in kept)
    if "performance" in accept.phases and not is_measured:
        raise ProfileError(
            f"{profile.name}: accept: nothing says how fast the box must be: give limits in [slo], published figures "
            'in [reference], rows in [[accept.criteria]] or --like FOLDER, or leave "performance" out of accept.phases'
        )
    order = list(PHASES)
    kept.sort(key=lambda demand: order.index(demand.phase))

    untested = [f"{phase}: not asked for" for phase in PHASES if phase not in accept.phases]
    if "output" in accept.phases and not any(one.figure == EXACT_MATCH for one in kept):
        untested.append(f"output: no share of right answers is demanded ({EXACT_MATCH})")
    if "performance" in accept.phases:
        untested += [why for key, why in few.items() if key not in own]
    return tuple(kept), tuple(untested)


def _too_few(demand: Demand, sent: Mapping[str, int]) -> str:
    """Why a fixed number of requests cannot show a figure; empty if it can, or is not fixed."""
    if demand.rule != "mean" or demand.load not in sent:
        return ""
    count, needed = sent[demand.load], requests_needed(demand.figure, edge_of(demand))
    return f"{demand.figure} at {demand.load}: of {count:,} requests, and takes {needed:,}" if count < needed else ""


def _key(demand: Demand) -> tuple[str, str, str]:
    return demand.figure, demand.load, demand.direction


def demand_of(
    figure: str, direction: Direction, bound: float | str | None, source: str, *, load: str = "", share: float = 0.0
) -> Demand:
    """A criterion by its figure's row; `share` is its margin as a share of the bound."""
    kind = figure_kind(figure)
    assert kind is not None
    return Demand(
        phase=kind.phase,
        figure=figure,
        unit=kind.unit,
        rule=kind.rule,
        load=load,
        direction=direction,
        bound=bound,
        margin=0.0 if isinstance(bound, str) or bound is None else abs(bound) * share,
        source=source,
    )


def edge_of(demand: Demand) -> float:
    """The bound with its margin: the last good value."""
    assert isinstance(demand.bound, int | float)
    return demand.bound + demand.margin if demand.direction == "at_most" else demand.bound - demand.margin


def _never(profile: Profile) -> Iterator[Demand]:
    source = "nothing of this kind is tolerated"
    for figure, phases in NEVER.items():
        for phase in phases:
            yield msgspec.structs.replace(demand_of(figure, "none_of", None, source), phase=phase)
    if not profile.slo.failed:
        yield demand_of("failed_requests", "none_of", None, "slo.failed is 0")


def _limits(profile: Profile, loads: Sequence[LoadShape]) -> Iterator[Demand]:
    slo = profile.slo
    for load in loads:
        for name, limit_ms in stage_limits_ms(slo.limits_ms).items():
            yield demand_of(f"{name}_ms", "at_most", limit_ms, f"slo.{name} of the profile", load=load.words)
        if per_stream_limits_ms(slo.limits_ms):
            wanted = 100 * profile.plan.goodput
            yield demand_of("goodput_percent", "at_least", wanted, "plan.goodput of the profile", load=load.words)
        if slo.failed:
            yield demand_of("failed_percent", "at_most", 100 * slo.failed, "slo.failed of the profile", load=load.words)


def _published(profile: Profile, loads: Sequence[LoadShape], accept: Accept) -> Iterator[Demand]:
    if profile.reference is None:
        return
    for point in profile.reference.points:
        wanted = point.concurrency, point.rate, point.isl, point.osl
        source = ", ".join(filter(None, (profile.reference.source, point.of)))
        for load in loads:
            if not _matches(wanted, load) or point.pass_number not in (None, load.pass_number):
                continue
            for name, value in _known_figures(point.figures):
                kind = figure_kind(name)
                assert kind is not None
                yield demand_of(name, kind.directions[0], value, source, load=load.words, share=accept.reference_margin)


def _known_figures(published: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The published figures that a criterion can be about; counts and durations of a benchmark are none."""
    for name, value in published.items():
        if name == "requests_per_min":
            yield "requests_per_s", value / 60
        elif (kind := figure_kind(name)) is not None and kind.phase == "performance":
            yield name, value


def _matches(wanted: tuple[object, ...], load: LoadShape) -> bool:
    have = load.concurrency, load.rate, load.isl, load.osl
    return all(want in (None, has) for want, has in zip(wanted, have, strict=True))


def _own(accept: Accept, loads: Sequence[LoadShape]) -> dict[tuple[str, str, str], Demand]:
    """The rows of `[accept]`: where several hold at a load, that which says most of the load."""
    found: dict[tuple[str, str, str], tuple[int, Demand]] = {}
    for one in accept.criteria:
        given = sum(part is not None for part in one.load)
        for demand in _of_row(one, loads):
            before, _ = found.get(_key(demand), (-1, None))
            if given == before:
                raise ProfileError(
                    f"accept.criteria: {demand.figure}: two rows hold at {demand.load}: give one of them more of "
                    "concurrency, rate, isl and osl"
                )
            if given > before:
                found[_key(demand)] = given, demand
    return {key: demand for key, (_, demand) in found.items()}


def _of_row(one: AcceptCriterion, loads: Sequence[LoadShape]) -> Iterator[Demand]:
    kind = figure_kind(one.figure)
    assert kind is not None
    words = dict.fromkeys(load.words for load in loads if _matches(one.load, load))
    at = words if kind.phase == "performance" else [""]
    if not at:
        has = "; ".join(load.words for load in loads) or "nothing"
        raise ProfileError(f"accept.criteria: {one.figure}: the profile has no such load, but {has}")
    for load in at:
        for direction, bound in one.bounds.items():
            yield demand_of(one.figure, direction, bound, one.source, load=load, share=one.margin)


def _like(boxes: BoxValues) -> Iterator[Demand]:
    """Bounds that one more box of the same kind is beyond, in any figure, with half the rate of false alarms."""
    enough = {key: values for key, values in boxes.items() if len(values) >= MIN_STARTS}
    for (figure, load), values in enough.items():
        means = [fmean(starts) for starts in values]
        direction = LIKE_FIGURES[figure]
        bound = prediction_limit(means, FALSE_FAIL / 2 / len(enough), upper=direction == "at_most")
        source = f"{len(means)} acceptances that passed, {min(means):.6g} to {max(means):.6g}"
        yield demand_of(figure, direction, bound, source, load=load)


def _spread(boxes: Sequence[Sequence[float]]) -> Spread | None:
    """How much starts of one box differ, over all boxes with several starts."""
    several = [starts for starts in boxes if len(starts) >= MIN_STARTS and fmean(starts) > 0]
    freedom = sum(len(starts) - 1 for starts in several)
    if not freedom:
        return None
    pooled = sum((len(starts) - 1) * variance(starts) / fmean(starts) ** 2 for starts in several) / freedom
    return Spread(max(RESOLUTION, math.sqrt(pooled)), freedom, f"the starts of {len(boxes)} acceptances that passed")


def _with_spread(demand: Demand, accept: Accept, known: Mapping[tuple[str, str], Spread | None]) -> Demand:
    if demand.rule != "mean":
        return demand
    stated = accept.start_spread
    spread = Spread(stated, None, accept.start_spread_source) if stated else known.get((demand.figure, demand.load))
    return msgspec.structs.replace(demand, spread=spread)
