"""Samples of several servers as one, as if they were engines of one server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from loadgen.server.vllm.engine_metrics import EngineHistogram, EngineSample


def sum_of(samples: Sequence[EngineSample | None]) -> EngineSample | None:
    """All samples added, of the use of the KV cache the fullest; None if one is missing, a metric if one lacks it."""
    known = [sample for sample in samples if sample is not None]
    if len(known) < len(samples) or not known:
        return None
    if len(known) == 1:
        return known[0]
    # Engines are kept apart within their server only: elsewhere the same label means another.
    names = [field.name for field in fields(EngineSample) if field.name != "engines"]
    return EngineSample(**{name: _sum(name, [getattr(sample, name) for sample in known]) for name in names})


def _sum(name: str, values: list[Any]) -> Any:  # noqa: ANN401 - a number, a mapping or a histogram, as the field is
    if None in values:
        return None
    if isinstance(values[0], Mapping):
        return {key: sum(value.get(key, 0.0) for value in values) for key in sorted({*chain(*values)})}
    if isinstance(values[0], EngineHistogram):
        return _histogram(values)
    return max(values) if name == "kv_usage" else sum(values)


def _histogram(parts: Iterable[EngineHistogram]) -> EngineHistogram:
    sum_s, count = 0.0, 0.0
    buckets: dict[float, float] = {}
    for part in parts:
        sum_s, count = sum_s + part.sum_s, count + part.count
        for bound, below in part.buckets:
            buckets[bound] = buckets.get(bound, 0.0) + below
    return EngineHistogram(sum_s, count, tuple(sorted(buckets.items())))
