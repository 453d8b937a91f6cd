"""Stages, the measurements that plans need of them, the type of a plan, and the number of workers that a stage needs.

A plan is a pure function of what was measured so far: it returns the next stage, None at its end, or a search's result.
A fixed plan looks only at how many stages are done; a search looks at their figures. Neither knows a clock or a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from loadgen.distributions import REPLAY
from loadgen.errors import ProfileError
from loadgen.format import NO_LOAD, counted, setting
from loadgen.schema.journal import StageLoad, load_at
from loadgen.schema.result import Limits
from loadgen.schema.shared import LoadKind, SearchPoint, SearchResult, SloVerdict
from loadgen.system import usable_cores
from loadgen.workload.work import Work

SLOW_TOKEN_S = 0.05
"""Seconds per token under heavy load, to estimate an open loop's streams before anything is measured."""
_STREAMS_A_WORKER = 512
_TOKENS_A_WORKER = 25_000  # a second: half a core, at 10 to 25 us a token
_REQUESTS_A_WORKER = 500  # a second: each needs a prompt to be written, and to be sent on time


class Stage(StageLoad, frozen=True):
    """A load as a plan requests it: with the content of its requests, and when it ends."""

    first_wave: Literal["apart", "counted"] = "apart"
    rate_points: tuple[tuple[float, float], ...] = ()  # the rate over time, with `rate` its mean
    work: Work = Work()  # what is sent, beyond its lengths
    max_duration_s: float = 0.0  # the most measured time of a settled stage that waits for streams to complete
    ends_saturated: bool = True
    """Whether it ends when the queue of its open loop grows without bound; if not, that is only noted."""
    limits_ms: dict[str, float] = msgspec.field(default_factory=dict)  # for each stream, by metric
    judged: Limits | None = None  # a probe of a search ends as soon as its verdict on these limits is sure
    certain: bool = False  # it runs past its duration until that is so

    def by_hand(self, **changes: object) -> Stage:
        """The stage with a load that the operator sets; a new shape means synthetic prompts of just these lengths."""
        endless: dict[str, object] = {"requests": None, "duration_s": None, "warmup_requests": 0, "warmup_s": 0.0}
        endless |= {"label": "", "settle_s": 0.0, "min_completed": 0, "max_duration_s": 0.0, "steps": ()}
        endless |= {"judged": None, "certain": False, "rate_points": (), "pass_number": None}
        endless["arrival"] = "poisson" if self.arrival == REPLAY else self.arrival
        if "isl" in changes or "osl" in changes:
            work = Work()
        else:
            work = self.work.by_hand(in_conversations=changes.get("rate") is None)
        return msgspec.structs.replace(self, **endless | {"work": work} | changes)

    @property
    def title(self) -> str:
        """The label, or the load in words."""
        if self.label:
            return self.label
        if self.no_load:
            return NO_LOAD
        if self.rate is None:
            return counted(self.concurrency or 0, "session") if self.work.sessions else f"conc {self.concurrency}"
        return f"replay {setting(self.rate)}/s" if self.arrival == REPLAY else f"rate {self.rate:g}/s"

    def at(self, measured_s: float) -> Stage:
        """The stage with the load that a moving one has at a moment, held constant."""
        if not self.steps:
            return self
        load = load_at(self.steps, measured_s)
        if self.concurrency is None:
            return msgspec.structs.replace(self, steps=(), rate_points=(), rate=load)
        return msgspec.structs.replace(self, steps=(), concurrency=int(load))

    @property
    def most_streams(self) -> int | None:
        """The most streams that it ever holds; None for an open loop without a limit."""
        if self.concurrency is None:
            return self.max_concurrency
        return max([self.concurrency, *(int(load) for _, load in self.steps)])

    @property
    def load(self) -> float:
        return self.rate if self.rate is not None else float(self.concurrency or 0)


class Measured(msgspec.Struct, frozen=True):
    """What a plan needs to know about a stage that is over."""

    stage: Stage
    held: float | None = None  # mean number of open streams
    output_tokens_per_s: float | None = None
    error_percent: float | None = None
    """The standard error of `output_tokens_per_s`; None if the stage was too short to estimate it."""
    verdict: SloVerdict = "unresolved"  # on the SLO, with 95 % confidence
    met: bool = False  # whether the figures as they are meet the SLO
    needs: str = ""  # what a sure verdict would take, in words
    tiers: tuple[tuple[bool, SloVerdict], ...] = ()  # `met` and `verdict` on each tier of the profile
    abandoned: bool = False  # the operator changed the load in the middle of it

    @property
    def point(self) -> SearchPoint:
        """The part that a search's result keeps."""
        return SearchPoint(self.stage.load, self.held, self.output_tokens_per_s, self.error_percent, self.verdict)

    @property
    def by(self) -> LoadKind:
        """What its load counts."""
        if self.stage.rate is not None:
            return "rate"
        return "concurrency" if self.stage.work.sessions is None else "sessions"

    def on_tier(self, number: int, limits: Limits) -> Measured:
        """As a search for a tier sees it; a probe of another tier ended when that one was sure."""
        met, verdict = self.tiers[number] if number < len(self.tiers) else (self.met, self.verdict)
        certain = self.stage.certain and self.stage.judged == limits
        return msgspec.structs.replace(
            self, stage=msgspec.structs.replace(self.stage, certain=certain), met=met, verdict=verdict
        )

    def after(self, *, saturated: bool, abandoned: bool) -> Measured:
        """The measurements for a stage that ended early; one whose queue grew without bound misses every limit."""
        if not saturated:
            return msgspec.structs.replace(self, abandoned=abandoned)
        tiers: tuple[tuple[bool, SloVerdict], ...] = ((False, "missed"),) * len(self.tiers)
        return msgspec.structs.replace(self, abandoned=abandoned, verdict="missed", met=False, tiers=tiers)


Plan = Callable[[Sequence[Measured]], Stage | SearchResult | None]
"""Maps the completed stages to the next one; at the end to None, or to a search's result."""


def check_lengths(plan: list[Stage], max_model_len: int | None, *, where: str) -> None:
    """Raise `ProfileError` for a plan with a stage whose requests exceed the served model's length."""
    if max_model_len is None:
        return
    for number, stage in enumerate(plan, start=1):
        longest = stage.work.longest(stage.isl, stage.osl)
        if longest > max_model_len:
            fixed = longest == stage.isl + stage.osl
            words = f"isl {stage.isl} + osl {stage.osl} =" if fixed else "prompt and answer have up to"
            shorten = "shorten isl or osl"
            if stage.work.data is not None and stage.work.data.form == "trace":
                shorten = f"leave longer rows out with load.trace.max_length = {max_model_len}"
            if stage.work.sessions is not None:
                shorten = f"end sessions before longer requests with load.sessions.max_context = {max_model_len}"
            raise ProfileError(
                f"{where}: stage {number}: {words} {longest} tokens, but the server's max_model_len is "
                f"{max_model_len}; {shorten}, or raise max-model-len"
            )


def streams_of(stage: Stage, token_s: float) -> int:
    """How many streams it has open at once, given the seconds per token of a stream (Little's law)."""
    if stage.rate is None:
        return stage.most_streams or 0
    bounds = [bound for bound in (stage.requests, stage.max_concurrency) if bound is not None]
    return min([round(_peak_rate(stage) * stage.osl * token_s), *bounds])


def workers_for(
    wanted: int | None,
    stages: Sequence[Stage],
    *,
    servers: int,
    cores: Sequence[float] = (),
    token_s: float | None = None,
) -> int:
    """How many workers the heaviest of these stages needs, equally many per server and per host.

    `cores` are those of each host, by default of this machine; `token_s` is the time per token if it was measured.
    A wanted number is taken as it is; otherwise at most `most_workers`.
    """
    needed = wanted or max((_needed(stage, token_s) for stage in stages), default=1)
    most = most_workers(wanted, servers=servers, cores=cores)
    return min(most, _for_each(servers, len(cores) or 1, workers=needed))


def most_workers(wanted: int | None, *, servers: int, cores: Sequence[float] = ()) -> int:
    """The most workers there may ever be: the wanted number, or enough for half of the usable cores of each host."""
    each = cores or (usable_cores(),)
    return _for_each(servers, len(each), workers=wanted or len(each) * max(1, int(min(each)) // 2))


def _needed(stage: Stage, token_s: float | None) -> int:
    streams, requests_per_s = streams_of(stage, token_s or SLOW_TOKEN_S), _peak_rate(stage)
    # If a cap holds streams back, the token rate is unknown before they have run.
    unheld_per_s = requests_per_s * stage.osl if stage.max_concurrency is None else 0.0
    tokens_per_s = streams / token_s if token_s else unheld_per_s
    return max(
        1,
        -(-streams // _STREAMS_A_WORKER),
        -int(-tokens_per_s // _TOKENS_A_WORKER),
        -int(-requests_per_s // _REQUESTS_A_WORKER),
    )


def _peak_rate(stage: Stage) -> float:
    return max((rate for _, rate in stage.rate_points), default=stage.rate or 0.0)


def _for_each(servers: int, hosts: int, *, workers: int) -> int:
    """At least `workers`, rounded up to equally many for each server and on each host."""
    each = math.lcm(servers, hosts)
    return -(-workers // each) * each
