"""What the rules judge: profile, plan, model and box in one value, under the names that the rules need."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from loadgen.plan import Stage
from loadgen.profile import Profile
from loadgen.server.preflight.flags import normal_args
from loadgen.server.preflight.model_facts import ModelFacts

Platform = Literal["rocm", "cuda", "cpu"]

MANY_STREAMS = 64  # from here on a plan is after throughput: the concurrency at which the publications speak of scale
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a rule may look at; None is unknown, and then the rules that need it stay silent."""

    args: Mapping[str, Any] = {}  # flags by their long names, as `flags.normal_args` makes them
    env: Mapping[str, str] = {}  # the whole environment of the server
    platform: Platform | None = None
    model: ModelFacts | None = None
    hbm_bytes: int | None = None  # memory of one GPU
    gpus: int | None = None  # GPUs of the box
    instances: int = 1
    peak_streams: int | None = None  # the highest concurrency of the plan; None if it is all open loop
    longest_prompt: int = 0
    longest_stream: int = 0  # tokens of prompt and answer together
    random_prompts: bool = True

    def number(self, flag: str, default: int | None = None) -> int | None:
        """The value of a flag in whole numbers (`8192`, `"8k"`); the default if it is unset or a word such as auto."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", str(self.args.get(flag, "")))
        return int(float(match[1]) * _UNITS[match[2]]) if match is not None else default

    def fraction(self, flag: str, default: float) -> float:
        """The value of a flag that is a share of one."""
        value = self.args.get(flag, default)
        return float(value) if isinstance(value, int | float) or re.fullmatch(r"\d*\.?\d+", str(value)) else default

    def on(self, variable: str) -> bool:
        """Whether a variable is set to what vLLM takes for true."""
        return self.env.get(variable, "").lower() in ("1", "true")

    @property
    def aiter(self) -> bool:
        """AITER's kernels are switched on, where they can be."""
        return self.platform == "rocm" and self.on("VLLM_ROCM_USE_AITER")

    @property
    def tensor_parallel(self) -> int:
        """GPUs over which each layer is split."""
        return self.number("tensor-parallel-size") or 1

    @property
    def goal(self) -> Literal["throughput", "latency"] | None:
        """What the plan is after: many streams want throughput, a single one latency."""
        if self.peak_streams is None:
            return None
        if self.peak_streams >= MANY_STREAMS:
            return "throughput"
        return "latency" if self.peak_streams == 1 else None


def facts_of(
    profile: Profile,
    plan: Sequence[Stage],
    *,
    platform: Platform | None,
    model: ModelFacts | None,
    hbm_bytes: int | None,
    gpus: int | None = None,
) -> Facts:
    """The facts of a run that is planned."""
    server = profile.server
    # A container gets the variables of the profile only.
    inherited = {} if server.engine == "docker" else os.environ
    return Facts(
        args=normal_args(server.args),
        env={**inherited, **server.env},
        platform=platform,
        model=model,
        hbm_bytes=hbm_bytes,
        gpus=gpus,
        instances=server.instances,
        peak_streams=max((stage.concurrency for stage in plan if stage.concurrency is not None), default=None),
        longest_prompt=max((stage.isl for stage in plan), default=0),
        longest_stream=max((stage.work.longest(stage.isl, stage.osl) for stage in plan), default=0),
    )
