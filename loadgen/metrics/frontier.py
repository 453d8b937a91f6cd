"""Figures for comparing boxes: tokens per GPU against tokens per user, and the cost of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from loadgen.schema.result import CostResult, Throughput

_GPUS_UNKNOWN = "the server's GPUs are unknown; set cost.gpus to their number"

LOGARITHMIC_FROM = 12.0
"""An axis of values that are further apart than this factor is logarithmic."""
Point = tuple[float, float]


def frontier(points: Iterable[Point]) -> set[Point]:
    """The points that no other dominates: at least as good on both axes, where more is better, and better on one."""
    best: set[Point] = set()
    highest = float("-inf")
    for x, y in sorted(points, reverse=True):
        if y > highest:
            best.add((x, y))
            highest = y
    return best


class Price(msgspec.Struct, frozen=True):
    """The cost of GPUs according to a profile."""

    gpu_hour: float | None = None  # dollars for an hour of one GPU
    gpus: int | None = None  # instead of the number that was detected


def price_of(profile: Mapping[str, Any]) -> Price:
    """The price in a profile, as stored in the journal."""
    return msgspec.convert(profile.get("cost") or {}, Price)


def cost_of(throughput: Throughput, price: Price) -> CostResult | None:
    """The cost of tokens at this throughput; None without a price."""
    if price.gpu_hour is None:
        return None
    output, total = throughput.output_tokens_per_s_per_gpu, throughput.total_tokens_per_s_per_gpu
    return CostResult(
        gpu_hour_usd=price.gpu_hour,
        usd_per_million_output_tokens=_usd_per_million(price.gpu_hour, output),
        usd_per_million_total_tokens=_usd_per_million(price.gpu_hour, total),
        why=_GPUS_UNKNOWN if output is None and throughput.output_tokens_per_s else "",
    )


def _usd_per_million(gpu_hour_usd: float, tokens_per_s: float | None) -> float | None:
    return 1e6 * gpu_hour_usd / (3600 * tokens_per_s) if tokens_per_s else None
