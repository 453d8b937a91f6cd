"""`[slo]`: limits on a statistic over a stage (`ttft_p97`), on a metric of each stream, and on failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_serializer
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from loadgen.profile.values import Milliseconds, Share

_OVER_STAGE = re.compile(r"(ttft|ttft_from_intended|tpot|itl|e2e)_(mean|p([1-9][0-9]?|9[0-9]{2,3}))")
_PER_STREAM = ("ttft", "tpot", "itl", "e2e")


class Slo(BaseModel):
    """What a run must keep to; every key but `failed` is a limit of its own name, in milliseconds."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Milliseconds] = Field(init=False)
    failed: Share = 0.0
    """The share of the scheduled requests that may fail or stay unsent."""

    @property
    def limits_ms(self) -> dict[str, float]:
        """The limits on latencies, by name."""
        return dict(self.__pydantic_extra__)

    @property
    def asks(self) -> bool:
        """Whether there is anything to search for."""
        return bool(self.limits_ms or self.failed)

    @model_serializer(mode="wrap")
    def _as_it_is_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name != "failed" or value}


def slo_problem(name: str) -> str | None:
    """Why a name is not a limit that can be measured; None when it is."""
    if name in _PER_STREAM or _OVER_STAGE.fullmatch(name) is not None:
        return None
    return (
        f"slo.{name}: expected a metric and a statistic, such as ttft_p99 or tpot_mean, "
        f"or {', '.join(_PER_STREAM)} alone for a limit that each stream must meet"
    )


def limit_of(name: str) -> tuple[str, float | None]:
    """The metric and the percent of a limit over a stage, None for its mean: `ttft_p999` is ("ttft", 99.9)."""
    metric, _, statistic = name.rpartition("_")
    if statistic == "mean":
        return metric, None
    digits = statistic.removeprefix("p")
    return metric, float(f"{digits[:2]}.{digits[2:] or 0}")


def per_stream_limits_ms(slo: Mapping[str, float]) -> dict[str, float]:
    """The limits that each stream must meet by itself, by metric."""
    return {name: limit_ms for name, limit_ms in slo.items() if name in _PER_STREAM}


def stage_limits_ms(slo: Mapping[str, float]) -> dict[str, float]:
    """The limits on statistics over a stage, by name."""
    return {name: limit_ms for name, limit_ms in slo.items() if name not in _PER_STREAM}
