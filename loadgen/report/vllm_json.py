"""A stage as `vllm bench serve --save-result` would have written it, for tools that read those files.

Keys, order and units are those of vLLM 0.32. A value that consumers convert to a float is a number or missing: a metric
without measurements has no keys (InferenceX divides by every value whose key contains `tpot`), so a stage in which
nothing completed keeps its counts and has no latencies. What vLLM does not have is in one object, `vramp`. Two lists
differ: `latencies` come from the histogram, ascending and with three significant digits, and `queue_times` is empty,
since a result does not keep single streams; the records of a run do, see `with_requests`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from loadgen.grouping import by_key
from loadgen.metrics.histogram import Histogram
from loadgen.record.subject import known_time, model_of
from loadgen.report.bench_table import SERVE_METRICS
from loadgen.report.notes import has_numbers, latencies, stage_notes
from loadgen.schema.deltas import Summary
from loadgen.schema.result import SCHEMA, Result, StageResult
from loadgen.store.rows import KeptRow

_BACKENDS = {"completions": "openai", "chat": "openai-chat", "responses": "openai-responses"}
_STATISTICS = {"mean": "mean", "p50": "median", "stddev": "std"}  # our names and vLLM's
_STATISTICS |= {"p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9"}
_REQUESTS = ("scheduled", "unsent", "unfinished", "cancelled", "carried_over", "carried_in", "lost")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def vllm_documents(result: Result) -> list[dict[str, Any]]:
    """A document per stage in which requests were sent or answered."""
    return [_document(result, stage) for stage in result.stages if can_be_written(result, stage)]


def can_be_written(result: Result, stage: StageResult) -> bool:
    """Whether a stage has requests to write; rows of another tool without a duration do not say how many."""
    known = result.measured_by is None or stage.duration_s > 0
    return known and (stage.requests.sent > 0 or has_numbers(stage))


def with_requests(documents: Sequence[dict[str, Any]], rows: Iterable[KeptRow]) -> list[dict[str, Any]]:
    """The documents with the values of single requests that `--save-detailed` adds, from a run's records.

    Of each stage the requests that its latencies are of, in the order in which they ended, and those that failed, whose
    times are 0 as in vLLM. Gaps between tokens and texts are not recorded: `itls` and `generated_texts` are missing.
    """
    kept = by_key(
        (row.stage, row)
        for row in rows
        if not row.warmup and (row.outcome.startswith("failed") or (row.outcome == "completed" and not row.first_wave))
    )
    return [document | _of_requests(kept.get(document["vramp"]["stage"] - 1, [])) for document in documents]


def _of_requests(rows: Sequence[KeptRow]) -> dict[str, list[Any]]:
    done = [row.outcome == "completed" for row in rows]
    return {
        "latencies": [(row.e2e_ms or 0.0) / 1000 if good else 0.0 for row, good in zip(rows, done, strict=True)],
        "successes": done,
        "input_lens": [row.input_tokens or 0 for row in rows],
        "output_lens": [row.output_tokens if good else 0 for row, good in zip(rows, done, strict=True)],
        "ttfts": [(row.ttft_ms or 0.0) / 1000 if good else 0.0 for row, good in zip(rows, done, strict=True)],
        "start_times": [row.sent_unix_s or 0.0 for row in rows],
        "errors": ["" if good else row.outcome for row, good in zip(rows, done, strict=True)],
    }


def vllm_file_names(documents: Sequence[dict[str, Any]]) -> list[str]:
    """vLLM's names for such files; a name that is taken gets a number."""
    names: list[str] = []
    for document in documents:
        concurrency = document["max_concurrency"]
        at_most = f"-concurrency{concurrency}" if concurrency is not None else ""
        model = document["model_id"].rpartition("/")[2]
        name = safe_file_name(
            f"{document['backend']}-{document['request_rate']}qps{at_most}-{model}-{document['date'] or 'no-date'}"
        )
        taken = sum(other == name or other.startswith(f"{name}-") for other in names)
        names.append(f"{name}-{taken + 1}" if taken else name)
    return [f"{name}.json" for name in names]


def safe_file_name(text: str) -> str:
    """A text of a result as part of a file's name, which stays in its folder."""
    return _UNSAFE.sub("_", text)


def _document(result: Result, stage: StageResult) -> dict[str, Any]:
    started_at = known_time(stage.started_at)
    began = datetime.fromisoformat(started_at).astimezone(UTC) if started_at is not None else None
    start_s = began.timestamp() if began is not None else None
    latency_ms = latencies(stage)
    found: dict[str, float | None] = {
        f"{theirs}_{metric}_ms": getattr(latency_ms[name], ours)
        for metric, (_, _, name) in SERVE_METRICS.items()
        for ours, theirs in _STATISTICS.items()
        if name in latency_ms
    }
    # The standard deviation of a single stream is 0, and consumers divide by any key that contains tpot.
    return {
        **_settings(result, stage, began),
        **_counts(result, stage),
        **{key: value for key, value in found.items() if value is not None and (value or "tpot" not in key)},
        # InferenceX adds these two to vLLM's keys, to find the run's power samples.
        "benchmark_start_time_unix": start_s,
        "benchmark_end_time_unix": start_s + stage.measured_s if start_s is not None else None,
        "vramp": _ours(result, stage),
    }


def _settings(result: Result, stage: StageResult, began: datetime | None) -> dict[str, Any]:
    load, target = result.profile.get("load") or {}, stage.target
    backend = _BACKENDS.get(load.get("endpoint", ""), "openai")
    # Of the gamma distribution; unknown to vLLM for other arrivals than these two.
    kind, _, shape = (target.arrival or "poisson").partition(":")
    burstiness = float(shape) if kind == "gamma" else 1.0 if kind == "poisson" else None
    return {
        "date": began.strftime("%Y%m%d-%H%M%S") if began is not None else None,
        "endpoint_type": backend,
        "backend": backend,
        "label": None,
        "model_id": model_of(result),
        "tokenizer_id": None,
        "num_prompts": stage.requests.sent,
        "request_rate": "inf" if target.rate is None else target.rate,
        "burstiness": burstiness,
        "max_concurrency": load.get("max_concurrency") if target.rate is not None else target.concurrency,
    }


def _counts(result: Result, stage: StageResult) -> dict[str, Any]:
    requests, rate, goodput = stage.requests, stage.throughput, stage.goodput
    e2e, e2e_s = latencies(stage).get("e2e"), list[float]()
    if e2e is not None and e2e.hdr is not None:
        histogram = Histogram.from_hdr(e2e.hdr)
        ranks = [100 * rank / histogram.count for rank in range(1, histogram.count + 1)]
        e2e_s = [value_us / 1e6 for value_us in histogram.percentile_us(*ranks)] if ranks else []
    return {
        "duration": stage.measured_s,
        "completed": requests.completed,
        "failed": requests.failed,
        "total_input_tokens": stage.tokens.input,
        "total_output_tokens": stage.tokens.output,
        "request_throughput": rate.requests_per_s or 0.0,
        "request_goodput": goodput.requests_per_s if goodput is not None else None,
        "output_throughput": rate.output_tokens_per_s or 0.0,
        "total_token_throughput": rate.total_tokens_per_s or 0.0,
        "latencies": e2e_s,
        "queue_times": [],
        "max_output_tokens_per_s": _peak_tokens_per_s(result, stage),
        "max_concurrent_requests": stage.concurrency.peak,
        "rtfx": 0.0,
    }


def _peak_tokens_per_s(result: Result, stage: StageResult) -> float:
    """The most tokens in one second of the stage, from the run's series."""
    began, run_began = map(datetime.fromisoformat, (stage.started_at, result.started_at))
    offset_s = (began - run_began).total_seconds()
    columns = result.series
    seconds = by_key(
        (int(t_s - offset_s), value)
        for t_s, value in zip(columns.get("t_s", []), columns.get("output_tokens_per_s", []), strict=False)
        if t_s is not None and value is not None and offset_s <= t_s <= offset_s + stage.duration_s
    )
    return max((sum(values) / len(values) for values in seconds.values()), default=0.0)


def _ours(result: Result, stage: StageResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": result.vramp_version,
        "measured_by": result.measured_by,
        "run_id": result.run_id,
        "state": result.state,
        "stage": stage.index + 1,
        "label": stage.label,
        "isl": stage.isl,
        "osl": stage.osl,
        "arrival": stage.target.arrival,
        **{name: getattr(stage.requests, name) for name in _REQUESTS},
        "lower_bounds": [
            f"{_STATISTICS[statistic]}_{metric}_ms"
            for metric, (_, _, name) in SERVE_METRICS.items()
            for statistic in latencies(stage).get(name, Summary(count=0)).lower_bounds
            if statistic in _STATISTICS
        ],
        "notes": [str(note) for note in stage_notes(stage)],
        "client_limited": stage.limited if result.measured_by is None else None,
        "why": stage.why,
    }
