"""What load is sent, one stage after another: plans that are known, and searches that decide as they go."""

from __future__ import annotations

from functools import partial

from loadgen.errors import ProfileError
from loadgen.plan.fixed import listed, search_stage, search_start, stages_of
from loadgen.plan.knee_search import knee_search
from loadgen.plan.slo_search import slo_search
from loadgen.plan.stage import Measured, Plan, Stage
from loadgen.profile.schema import Profile

__all__ = ["Measured", "Plan", "Stage", "check_lengths", "next_stages", "plan_of"]

plan_of = stages_of


def next_stages(profile: Profile) -> Plan:
    """The plan of a profile as a function of what has been measured."""
    if profile.plan.search == "slo":
        return slo_search(profile.plan, search_start(profile), partial(search_stage, profile))
    if profile.plan.search == "knee":
        return knee_search(profile.plan, partial(search_stage, profile))
    return listed(stages_of(profile))


def check_lengths(plan: list[Stage], max_model_len: int | None, *, where: str) -> None:
    """Refuse a plan with a stage longer than the served model takes; raises `ProfileError`."""
    if max_model_len is None:
        return
    for number, stage in enumerate(plan, start=1):
        longest = stage.work.longest(stage.isl, stage.osl)
        if longest > max_model_len:
            fixed = longest == stage.isl + stage.osl
            words = f"isl {stage.isl} + osl {stage.osl} =" if fixed else "prompt and answer have up to"
            raise ProfileError(
                f"{where}: stage {number}: {words} {longest} tokens, but the "
                f"server's max_model_len is {max_model_len}; shorten isl or osl, or raise max-model-len"
            )
