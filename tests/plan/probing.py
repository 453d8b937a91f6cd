"""Driving a plan without a run: a model answers for the server."""

from collections.abc import Callable

from loadgen.plan.from_profile import next_stages
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.schema.shared import SearchResult


def profile(**parts: object) -> Profile:
    return build_profile({"server": {"engine": "simulator"}, **parts}, where="test")


def play(plan: Plan, measure: Callable[[Stage], Measured]) -> tuple[SearchResult | None, list[Stage]]:
    """Ask for stage after stage until the plan has no more; the end must come."""
    done: list[Measured] = []
    for _ in range(200):
        following = plan(done)
        if not isinstance(following, Stage):
            return following, [point.stage for point in done]
        done.append(measure(following))
    raise AssertionError("the plan does not end")


def search(measure: Callable[[Stage], Measured], **parts: object) -> tuple[SearchResult, list[float]]:
    """What a search finds, and the loads that it went through."""
    found, stages = play(next_stages(profile(**parts)), measure)
    assert found is not None
    return found, [stage.load for stage in stages]
