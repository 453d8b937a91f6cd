"""Stages, and the plan of a profile: the list of stages to come.

A stage is a stretch of a run under one load setting: closed loop at a concurrency, or open loop at a rate, with one
ISL/OSL shape. Stages are values; changing the load means beginning another one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loadgen.errors import ProfileError
from loadgen.profile import Load, Profile, StageSettings

REQUESTS_A_STREAM = 10
"""Requests per concurrent stream where nothing bounds a stage: the published recommendation of 10 x concurrency."""
OPEN_LOOP_S = 30.0
"""Length of an open-loop stage that nothing bounds."""


class Stage(msgspec.Struct, frozen=True):
    """One load setting and how long it holds; exactly one of `concurrency` and `rate` is set."""

    concurrency: int | None
    rate: float | None
    isl: int
    osl: int
    arrival: Literal["poisson", "constant"] = "poisson"
    requests: int | None = None
    """Measured requests, warm-up not counted."""
    duration_s: float | None = None
    """Measured time, warm-up not counted. With `requests` too, whichever comes first; with neither, until told."""
    warmup_requests: int = 0
    warmup_s: float = 0.0
    label: str = ""

    @property
    def title(self) -> str:
        """The label, or the load in words."""
        if self.label:
            return self.label
        return f"conc {self.concurrency}" if self.rate is None else f"rate {self.rate:g}/s"


def plan_of(profile: Profile) -> list[Stage]:
    """The stages of a profile: its `[[stages]]`, or each shape of `[load]` with each of its concurrencies or rates."""
    load = profile.load
    if profile.stages:
        return [_stage(load, settings) for settings in profile.stages]
    return [
        _stage(load, StageSettings(isl=isl, osl=osl, **setting))
        for isl, osl in load.shapes or [(load.isl, load.osl)]
        for setting in _settings(load)
    ]


def _settings(load: Load) -> list[dict[str, Any]]:
    if load.rate:
        return [{"rate": rate} for rate in load.rate]
    return [{"concurrency": concurrency} for concurrency in load.concurrency]


def _stage(load: Load, own: StageSettings) -> Stage:
    rate, concurrency = own.rate, own.concurrency
    if rate is None and concurrency is None:
        rate = load.rate[0] if load.rate else None
        concurrency = None if load.rate else load.concurrency[0]
    requests = own.requests if own.requests is not None or own.duration is not None else load.requests
    duration_s = own.duration if own.requests is not None or own.duration is not None else load.duration
    if requests is None and duration_s is None:
        requests = None if concurrency is None else REQUESTS_A_STREAM * concurrency
        duration_s = OPEN_LOOP_S if concurrency is None else None
    warmup = own.warmup if own.warmup is not None else load.warmup
    return Stage(
        concurrency=concurrency,
        rate=rate,
        arrival=own.arrival or load.arrival,
        isl=own.isl or load.isl,
        osl=own.osl or load.osl,
        requests=requests,
        duration_s=duration_s,
        warmup_requests=warmup if isinstance(warmup, int) else 0,
        warmup_s=0.0 if isinstance(warmup, int) else float(warmup.removesuffix("s")),
        label=own.label or "",
    )


def check_lengths(plan: list[Stage], max_model_len: int | None, *, where: str) -> None:
    """Refuse a plan with a stage longer than the served model takes; raises `ProfileError`."""
    if max_model_len is None:
        return
    for number, stage in enumerate(plan, start=1):
        if stage.isl + stage.osl > max_model_len:
            raise ProfileError(
                f"{where}: stage {number}: isl {stage.isl} + osl {stage.osl} = {stage.isl + stage.osl} tokens, but the "
                f"server's max_model_len is {max_model_len}; shorten isl or osl, or raise max-model-len"
            )
