"""An engine's figures for the screen and for a stage, computed from its samples in the units of the result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from loadgen.schema.engine import EngineLatencyMs, EngineStage, EngineView, SpecDecode
from loadgen.server.engines.names import GAUGES, LATENCIES, RATES, Counters, EngineHistogram, EngineSample
from loadgen.server.engines.window import delta, engine_doubts, intervals_s

_MIN_SPAN_S = 0.5  # for a rate: a stage boundary may be read right after a poll, and one step is no rate
_SUCCESS = ("1", "2", "3")  # first digits of statuses that are not errors


def view_of(
    before: EngineSample | None, sample: EngineSample | None, span_s: float, *, apart: bool = False
) -> EngineView | None:
    """The engine now, with rates since a sample `span_s` earlier; `apart`: it is one of several, without latencies."""
    if sample is None:
        return None
    change = (delta(before, sample) if before is not None else None) or Counters()
    known = before.engines if before is not None else {}
    span_s = span_s if span_s >= _MIN_SPAN_S else 0.0

    def rate(count: float | None) -> float | None:
        return None if count is None or not span_s else round(count / span_s, 1)

    shown: dict[str, Any] = {name: getattr(sample, name) for name in GAUGES}
    shown |= {f"{name}_per_s": rate(getattr(change, name)) for name in RATES}
    return EngineView(
        **shown,
        waiting_by_reason=_positive(sample.waiting_by_reason),
        prefix_hit_rate=change.prefix_hit_rate,
        engines={
            name: view
            for name, one in sample.engines.items()
            if (view := view_of(known.get(name), one, span_s, apart=True))
        },
        latency_ms={} if apart else _latencies(change),
        since_start={} if apart else _latencies(sample),
        requests_per_s=rate(_ended(change, before, sample)),
        **_shared(change, sample, span_s, apart=apart),
    )


def stage_of(
    before: EngineSample | None,
    after: EngineSample | None,
    *,
    between_s: tuple[float, float],
    oldest_s: float | None,
    restarts: int = 0,
    apart: bool = False,
) -> EngineStage | None:
    """What the engine did between two moments; no open request began more than `oldest_s` before the end.

    `restarts` is how often the server was restarted in between.
    """
    if before is None or after is None:
        return None
    change = delta(before, after)
    if change is None:
        doubts = {"all": "its counters went back"}
        return EngineStage(doubts=doubts, kind=after.kind, between_s=between_s, restarts=restarts)
    span_s = between_s[1] - between_s[0]
    doubts = engine_doubts(before, after, span_s=span_s, oldest_s=oldest_s)
    latency = _latencies(change, doubts)
    idle = (before.is_idle, after.is_idle)
    means: dict[str, Any] = {f"{name}_mean_ms": known.mean for name, known in latency.items()}
    engine_of = partial(stage_of, between_s=between_s, oldest_s=oldest_s, restarts=restarts, apart=True)
    engines = {name: engine_of(before.engines.get(name), one) for name, one in after.engines.items()}
    return EngineStage(
        **means,
        ttft_count=None if change.ttft is None else int(change.ttft.count),
        prompt_tokens=_whole(change.prompt_tokens),
        generation_tokens=_whole(change.generation_tokens),
        preemptions=_whole(change.preemptions),
        prefix_hit_rate=None if "prefix_hit_rate" in doubts else change.prefix_hit_rate,
        admission_rejections=_whole(change.admission_rejections),
        latency_ms=latency,
        engines={name: engine for name, engine in engines.items() if engine is not None},
        idle_around=None if None in idle else all(idle),
        doubts=doubts,
        between_s=between_s,
        requests=_whole(_ended(change, before, after)),
        restarts=restarts,
        **_shared(change, after, span_s, apart=apart),
    )


def _shared(change: Counters, sample: EngineSample, span_s: float, *, apart: bool) -> dict[str, Any]:
    """The figures that a view and a stage share."""
    read, written = change.read_bytes_per_gpu, change.write_bytes_per_gpu
    hbm_bytes = None if read is None or written is None else read + written
    answers = _counts(change.errors).items()
    offloaded = {"load": change.offload_load_bytes or 0.0, "store": change.offload_store_bytes or 0.0}
    return {
        "kind": sample.kind,
        "unavailable": {} if apart else dict(sample.unavailable),
        "finished": _counts(change.finished),
        "errors": {status: count for status, count in answers if not status.startswith(_SUCCESS)},
        "spec": _spec(change, sample),
        "external_prefix_hit_rate": change.external_prefix_hit_rate,
        "prompt_tokens_by_source": _counts(change.prompt_tokens_by_source),
        "tflops_per_gpu": _per_gpu(change.flops_per_gpu, span_s, 1e12),
        "hbm_bytes_per_s": _per_gpu(hbm_bytes, span_s),
        "kv_offload_bytes": _counts(offloaded),
    }


def _per_gpu(counted: float | None, span_s: float, unit: float = 1.0) -> float | None:
    """A rate per GPU; None if the count is 0, because an engine that does not count leaves its counter at 0."""
    return None if not counted or not span_s else counted / span_s / unit


def _ended(change: Counters, before: EngineSample | None, after: EngineSample) -> float | None:
    """The number of requests that ended, from the count of end-to-end latencies."""
    if change.e2e is not None:
        return change.e2e.count
    return None if before is None or before.e2e is None or after.e2e is None else 0.0


def _latencies(counters: Counters, doubts: Mapping[str, str] | None = None) -> dict[str, EngineLatencyMs]:
    found = {}
    for name in LATENCIES:
        histogram: EngineHistogram | None = getattr(counters, name)
        if histogram is None or not histogram.count or name in (doubts or {}):
            continue
        within = {
            percentile: (_ms(low_s), None if high_s is None else _ms(high_s))
            for percentile, (low_s, high_s) in intervals_s(histogram).items()
        }
        found[name] = EngineLatencyMs(int(histogram.count), _ms(histogram.mean_s), within)
    return found


def _ms(seconds: float) -> float:
    """Milliseconds rounded to the microsecond, to keep the journal small."""
    return round(seconds * 1000, 3)


def _spec(change: Counters, sample: EngineSample) -> SpecDecode | None:
    """Speculative decoding, from the window's counters, or from the engine's gauges where it lacks counters."""
    drafts, drafted, accepted = change.drafts, change.drafted_tokens, change.accepted_tokens
    steps = drafts if drafts is not None else drafted
    # TGI counts every step, whether it speculates or not.
    if not (sample.spec_length if steps is None else steps) or (drafted is None and sample.accepted_tokens == 0):
        return None
    by_position = change.accepted_by_position or {}
    positions = sorted(by_position, key=lambda position: (len(position), position))
    counted = accepted / drafted if accepted is not None and drafted else None
    return SpecDecode(
        drafts=_whole(drafts),
        drafted_tokens=_whole(drafted),
        accepted_tokens=_whole(accepted),
        acceptance=sample.spec_acceptance if drafted is None else counted,
        mean_accepted_length=1 + accepted / drafts if drafts and accepted is not None else sample.spec_length,
        acceptance_by_position=tuple(by_position[position] / drafts for position in positions) if drafts else (),
    )


def _counts(parts: Mapping[str, float] | None) -> dict[str, int]:
    return {name: int(count) for name, count in _positive(parts).items()}


def _positive(parts: Mapping[str, float] | None) -> dict[str, float]:
    return {name: count for name, count in (parts or {}).items() if count > 0}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
