"""What the engine says of itself on `/metrics`: one sample, what happened between two, and which of it cannot be.

Every metric is optional: names differ between versions (vLLM 0.6 to 0.32 are known), and a missing one is None, never
0. Several engines in one server (data parallel) are summed and kept apart in `engines`; of the use of the KV cache the
fullest counts, of what each GPU computed the mean. If any counter went down, the server was restarted in between, and
nothing can be said about the window. Gauges that older versions computed over a span of their own are not read.

Servers are wrong too, so the figures of a window must fit each other, the engine's own counts and the clock. Seen: sums
of TTFT beyond all measure at thousands of streams, and more hits in the prefix cache than look-ups, or more look-ups
than there were tokens, because a request that waited was counted each time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Generic, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from loadgen.errors import ServerError
from loadgen.format import harmless

# The newest name first; the first one that is there is used, so that a version with both is not counted twice.
_GAUGES = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
_COUNTERS = {
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "admission_rejections": ("vllm:admission_rejections_total",),
    "flops_per_gpu": ("vllm:estimated_flops_per_gpu_total",),  # stays 0 without --enable-mfu-metrics
}
_HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "queue": ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests"),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "decode": ("vllm:request_decode_time_seconds",),
}
_Latency = TypeVar("_Latency")
LATENCIES = tuple(_HISTOGRAMS)
_WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
_PROMPT_TOKENS_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
"""Both begin with the name of another metric, so that `_FAMILIES` has them."""
_FROM_CACHE = "local_cache_hit"
_ROUNDING_S = 1e-6
_STALE_S = 1.0  # gauges are those of the last step: something may have come since
_SOURCES = "prompt_tokens_by_source"
_FAMILIES = tuple(
    name.removesuffix("_total")
    for table in (_GAUGES, _COUNTERS, _HISTOGRAMS)
    for names in table.values()
    for name in names
)


@dataclass(frozen=True, slots=True)
class EngineHistogram:
    """A histogram since the server started, in seconds; `buckets` are (upper bound, count up to it)."""

    sum_s: float
    count: float
    buckets: tuple[tuple[float, float], ...]

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count


@dataclass(frozen=True, slots=True)
class _Figures(Generic[_Latency]):
    """What a sample has since the server started, and a window since its beginning."""

    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prompt_tokens_by_source: Mapping[str, float] | None = None
    """`local_compute`, `local_cache_hit`, `external_kv_transfer`; counted once for each prompt."""
    admission_rejections: float | None = None
    flops_per_gpu: float | None = None
    ttft: _Latency | None = None
    itl: _Latency | None = None
    tpot: _Latency | None = None
    e2e: _Latency | None = None
    queue: _Latency | None = None
    prefill: _Latency | None = None
    decode: _Latency | None = None


@dataclass(frozen=True, slots=True)
class EngineSample(_Figures[EngineHistogram]):
    """One reading of `/metrics`; the counters and histograms are since the server started."""

    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_usage: float | None = None  # 0 to 1, of the fullest engine
    engines: Mapping[str, EngineSample] = field(default_factory=dict)
    """Each engine by the value of its label, where there are several."""


@dataclass(frozen=True, slots=True)
class EngineLatency:
    """A latency over a window, as the engine saw it; percentiles are interpolated within coarse buckets.

    None is a percentile in the first bucket or beyond the last bound: of a queue time below 0.3 s, vLLM's buckets say
    no more than that.
    """

    count: float
    mean_s: float
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class EngineDelta(_Figures[EngineLatency]):
    """What happened between two samples; a latency without an observation in the window is None."""

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of the prompts' tokens that the prefix cache had; None without any, or where it cannot be.

        Hits over look-ups only where there is nothing better: before mid-2026 vLLM counts a request that waits again
        each time that it is looked at.
        """
        if self.prompt_tokens_by_source is not None:
            tokens = sum(self.prompt_tokens_by_source.values())
            return self.prompt_tokens_by_source.get(_FROM_CACHE, 0.0) / tokens if tokens else None
        if not self.prefix_queries or self.prefix_hits is None or self.prefix_hits > self.prefix_queries:
            return None
        return self.prefix_hits / self.prefix_queries


def parse_engine_metrics(text: str) -> EngineSample:
    """Read the text of `/metrics`; raises `ServerError` if it is not in the Prometheus format."""
    try:
        series = _series(text)
        engines = _by_engine(series)
        whole = _sample(series)
        return replace(whole, engines={name: _sample(one) for name, one in engines.items()}) if engines else whole
    except (ValueError, IndexError, KeyError) as error:
        raise ServerError(f"the server's /metrics is not in the Prometheus format: {error}") from None


def delta(before: EngineSample, after: EngineSample) -> EngineDelta | None:
    """What happened from one sample to the next; None if the server was restarted in between."""
    if any(_fell(getattr(before, name), getattr(after, name)) for name in (*_COUNTERS, *_HISTOGRAMS, _SOURCES)):
        return None
    values: dict[str, Any] = {name: _growth(before, after, name) for name in _COUNTERS}
    values |= {name: _latency(_grown(before, after, name)) for name in _HISTOGRAMS}
    earlier, later = before.prompt_tokens_by_source, after.prompt_tokens_by_source
    if earlier is not None and later is not None:
        values[_SOURCES] = {name: value - earlier.get(name, 0.0) for name, value in later.items()}
    return EngineDelta(**values)


_Series = dict[str, list[tuple[Mapping[str, str], float]]]  # labels and value, by name
_Counted = float | EngineHistogram | Mapping[str, float] | None


def _series(text: str) -> _Series:
    # Parsing is slow, and most of the page is about Python and HTTP: only our lines are parsed.
    ours = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(_FAMILIES))
    found: _Series = {}
    for family in text_string_to_metric_families(ours):
        for sample in family.samples:
            if math.isfinite(sample.value):
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def _by_engine(series: _Series) -> dict[str, _Series]:
    """The series of each engine; empty unless there are several."""
    found: dict[str, _Series] = {}
    for name, samples in series.items():
        for labels, value in samples:
            if "engine" in labels:
                found.setdefault(harmless(labels["engine"]), {}).setdefault(name, []).append((labels, value))
    return found if len(found) > 1 else {}


def _sample(series: _Series) -> EngineSample:
    values: dict[str, Any] = {name: _combined(series, names, name) for name, names in (_GAUGES | _COUNTERS).items()}
    values |= {name: _histogram(series, names) for name, names in _HISTOGRAMS.items()}
    sources = _by_label(series.get(_PROMPT_TOKENS_BY_SOURCE, ()), "source")
    return EngineSample(
        **values,
        waiting_by_reason=_by_label(series.get(_WAITING_BY_REASON, ()), "reason"),
        prompt_tokens_by_source=sources or None,
    )


def _by_label(samples: Iterable[tuple[Mapping[str, str], float]], label: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for labels, value in samples:
        found[harmless(labels[label])] += value
    return dict(found)


def together(name: str, values: Sequence[float]) -> float:
    """A figure of several engines, or of several servers, as one."""
    if name == "kv_usage":
        return max(values)
    return fmean(values) if name == "flops_per_gpu" else sum(values)


def _combined(series: _Series, names: tuple[str, ...], name: str = "") -> float | None:
    for each in names:
        if each in series:
            return together(name, [value for _, value in series[each]])
    return None


def _histogram(series: _Series, names: tuple[str, ...]) -> EngineHistogram | None:
    for name in names:
        total, count = _combined(series, (f"{name}_sum",)), _combined(series, (f"{name}_count",))
        if total is None or count is None:
            continue
        buckets: dict[float, float] = defaultdict(float)
        for labels, value in series.get(f"{name}_bucket", ()):
            buckets[float(labels["le"])] += value
        return EngineHistogram(total, count, tuple(sorted(buckets.items())))
    return None


def _fell(before: _Counted, after: _Counted) -> bool:
    if isinstance(before, EngineHistogram) and isinstance(after, EngineHistogram):
        earlier = dict(before.buckets)
        return after.count < before.count or any(count < earlier.get(bound, 0.0) for bound, count in after.buckets)
    if isinstance(before, float | int) and isinstance(after, float | int):
        return after < before
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return any(after.get(name, 0.0) < value for name, value in before.items())
    return False


def _growth(before: EngineSample, after: EngineSample, name: str) -> float | None:
    earlier, later = getattr(before, name), getattr(after, name)
    return None if earlier is None or later is None else later - earlier


def _grown(before: EngineSample, after: EngineSample, name: str) -> EngineHistogram | None:
    """The observations of the window, None if there are none; without buckets if the bounds are not the same."""
    old, new = getattr(before, name), getattr(after, name)
    if old is None or new is None or new.count <= old.count:
        return None
    earlier = dict(old.buckets)
    same = earlier.keys() == dict(new.buckets).keys()
    buckets = tuple((bound, count - earlier[bound]) for bound, count in new.buckets) if same else ()
    return EngineHistogram(new.sum_s - old.sum_s, new.count - old.count, buckets)


def _latency(grown: EngineHistogram | None) -> EngineLatency | None:
    if grown is None or not grown.buckets:
        return None
    return EngineLatency(grown.count, grown.mean_s, *(_quantile(grown.buckets, share) for share in (0.5, 0.9, 0.99)))


def _quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """As Prometheus does, linear within a bucket; None in one that has no bound on either side."""
    rank = share * buckets[-1][1]
    for (lower_bound, lower_count), (bound, count) in pairwise(buckets):
        if lower_count < rank <= count and not math.isinf(bound):
            return lower_bound + (bound - lower_bound) * (rank - lower_count) / (count - lower_count)
    return None


def is_idle(sample: EngineSample) -> bool | None:
    """Nothing runs or waits; None where the server does not say."""
    open_requests = _open_requests(sample)
    return None if open_requests is None else open_requests == 0


def _open_requests(sample: EngineSample) -> float | None:
    return None if sample.running is None or sample.waiting is None else sample.running + sample.waiting


def engine_doubts(
    before: EngineSample, after: EngineSample, *, span_s: float, oldest_s: float | None = None
) -> dict[str, str]:
    """Which figures of a window of `span_s` cannot be, by name, and why.

    No request that was open in it had begun more than `oldest_s` before its end; None if that is not known.
    """
    hits = _hits_doubt(before, after)
    return dict(_latency_doubts(before, after, span_s, oldest_s)) | ({"prefix_hit_rate": hits} if hits else {})


def _latency_doubts(
    before: EngineSample, after: EngineSample, span_s: float, oldest_s: float | None
) -> Iterator[tuple[str, str]]:
    open_before = _open_requests(before)
    for name in LATENCIES:
        grown = _grown(before, after, name)
        if grown is None:
            continue
        count, mean_s = grown.count, grown.mean_s
        low_s, high_s = _mean_bounds(grown)
        if not low_s - _ROUNDING_S <= mean_s * (1 + _ROUNDING_S) <= high_s * (1 + _ROUNDING_S) + _ROUNDING_S:
            yield name, f"a mean of {mean_s:.3g} s is not of these buckets ({low_s:.3g} to {high_s:.3g} s)"
        elif oldest_s is not None:
            # Of each request that was open at the beginning, at most one observation had begun before.
            older = count if open_before is None else min(count, open_before)
            most_s = (older * oldest_s + (count - older) * span_s) / count + _STALE_S
            if mean_s > most_s:
                yield name, f"a mean of {mean_s:.3g} s, where no more than {most_s:.3g} s can have passed"


def _mean_bounds(grown: EngineHistogram) -> tuple[float, float]:
    """Between which means the buckets leave room."""
    buckets = [(0.0, 0.0), *grown.buckets]
    low_s = high_s = 0.0
    total = buckets[-1][1]
    for (lower_s, below), (bound_s, upto) in pairwise(buckets):
        if upto > below:
            low_s += lower_s * (upto - below) / total
            high_s += bound_s * (upto - below) / total
    return low_s, high_s if total else math.inf


def _hits_doubt(before: EngineSample, after: EngineSample) -> str | None:
    hits, queries, tokens = (
        _growth(before, after, name) for name in ("prefix_hits", "prefix_queries", "prompt_tokens")
    )
    if after.prompt_tokens_by_source is not None or hits is None or queries is None:
        return None
    if hits > queries:
        return f"{hits:.0f} hits in {queries:.0f} look-ups"
    if tokens is not None and is_idle(before) and is_idle(after) and queries > tokens:
        return f"{queries:.0f} tokens were looked up, and the prompts had {tokens:.0f}"
    return None
