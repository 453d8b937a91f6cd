"""The stages of results as CSV for spreadsheets and pandas: a row per stage, one header, units in the names.

A stage whose load moves has neither load nor latencies in its own row: a row per step follows, whose `step` counts from
1 and whose `direction` is `up` or `down`; `step` is empty in a stage's own row.

Columns are only ever added at the end, so that scripts may use positions; unknown values are empty cells. Latencies
are `<name>_<statistic>_ms` for the names of a result and mean, stddev, min, p50, p90, p95, p99, p999, max, or fewer
for those that not every load has. Of those that have them, `<name>_lower_bounds` names the statistics that are only
lower bounds, and `<name>_censored` counts the streams, or sessions, whose time was not over. `engine_` columns are the
engine's own figures, `others_` the part of other clients in them, `gpu_` columns means over the server's GPUs, or
over all where those are unknown; `met_limits` is `true`, `false`, or empty if there is no limit. Texts that a
spreadsheet would take for a formula begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from loadgen.errors import ResultError
from loadgen.format import Statistic, harmless
from loadgen.record.subject import engine_of, hardware_of, known_time, model_of
from loadgen.record.summary import gpu_mean
from loadgen.report.columns import Measured, columns
from loadgen.report.notes import failed_words, latencies, took_part
from loadgen.report.served import watched
from loadgen.report.tabular import Column, Value
from loadgen.schema.deltas import LATENCIES, OPTIONAL_LATENCIES, Summary
from loadgen.schema.result import Result, StageResult

_STATISTICS = ("mean", "stddev", "min", "p50", "p90", "p95", "p99", "p999", "max")
_OF_STAGE = (
    *("run_id", "started_at", "state", "model", "engine", "hardware"),
    *("stage", "label", "arrival", "isl", "osl", "tokens_source", "client_limited"),
)
"""The columns that a step takes from its stage."""

Cells = dict[str, Value]
Source = str | Column[Measured] | Callable[[StageResult], Value]
"""How to get a column's value from a stage: a path of attributes, a column of other tables, or a function."""


def csv_report(results: Sequence[Result]) -> str:
    """The stages that sent requests or watched those of others; raises `ResultError` if there are none."""
    stages = [(result, stage) for result in results for stage in result.stages if took_part(stage) or watched([stage])]
    rows = [row for result, stage in stages for row in _rows(result, stage)]
    if not rows:
        raise ResultError("no stage sent requests or watched those of others: there is no row to write")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_written(cell) for cell in row.values()] for row in rows)
    return file.getvalue()


def _rows(result: Result, stage: StageResult) -> Iterator[Cells]:
    run: Cells = {
        "run_id": result.run_id,
        "started_at": known_time(stage.started_at),
        "state": result.state,
        "model": model_of(result),
        "engine": engine_of(result),
        "hardware": hardware_of(result),
    }
    cells = run | {name: _value(stage, source) for name, source in _COLUMNS.items()}
    yield cells
    for number, point in enumerate(stage.curve, 1):
        step: Cells = dict.fromkeys(cells) | {name: cells[name] for name in _OF_STAGE}
        step |= {name: source.value(point) for name, source in _COLUMNS.items() if isinstance(source, Column)}
        step |= {"rate_per_s": point.load} if stage.target.rate is not None else {"concurrency": round(point.load)}
        yield step | {"step": number, "direction": point.direction or None}


def _value(stage: StageResult, source: Source) -> Value:
    if isinstance(source, Column):
        return source.value(stage)
    if callable(source):
        return source(stage)
    found: Value = stage  # type: ignore[assignment]  # the end of the path is a value
    for name in source.split("."):
        found = getattr(found, name) if found is not None else None
    return found


def _standing(name: str) -> Source:
    """A setting of the stage's load; unknown for a moving load."""
    return lambda stage: None if stage.curve else getattr(stage.target, name)


def _part(part: str, names: str, prefix: str = "") -> dict[str, Source]:
    return {f"{prefix}{name}": f"{part}.{name}" for name in names.split()}


def _measured(names: str) -> dict[str, Source]:
    """Columns shared with other tables."""
    return dict(zip(names.split(), columns(names), strict=True))


def _engine_bounds(latency: str, percentile: str) -> dict[str, Source]:
    """The bounds of one of the engine's percentiles; the upper one is empty beyond its last bucket."""

    def bound(end: int, stage: StageResult) -> Value:
        known = stage.engine.latency_ms.get(latency) if stage.engine is not None else None
        return known.within.get(percentile, (None, None))[end] if known is not None else None

    ends = {"at_least": 0, "at_most": 1}
    return {f"engine_{latency}_{percentile}_{end}_ms": partial(bound, place) for end, place in ends.items()}


def _bounds(name: str) -> dict[str, Source]:
    def summary(stage: StageResult) -> Summary:
        return latencies(stage).get(name, Summary(count=0))

    return {
        f"{name}_censored": lambda stage: summary(stage).censored,
        f"{name}_lower_bounds": lambda stage: " ".join(summary(stage).lower_bounds),
    }


_COLUMNS: dict[str, Source] = {
    "stage": lambda stage: stage.index + 1,
    "label": "label",
    "concurrency": _standing("concurrency"),
    "rate_per_s": _standing("rate"),
    "arrival": "target.arrival",
    "isl": "isl",
    "osl": "osl",
    **_measured("measured_s"),
    "sent": "requests.sent",
    **_measured("completed failed"),
    **_part("requests", "unfinished cancelled"),
    **_measured("concurrency_mean"),
    "input_tokens": "tokens.input",
    "output_tokens": "tokens.output",
    "tokens_source": "tokens.source",
    **_measured("requests_per_s"),
    **_part("throughput", "input_tokens_per_s"),
    **_measured("output_tokens_per_s total_tokens_per_s output_tokens_per_s_per_user"),
    **_measured(" ".join(f"{latency}_{name}_ms" for latency in LATENCIES for name in _STATISTICS)),
    **_measured("met_limits"),
    **_part("goodput", "share requests_per_s", "goodput_"),
    **_part("engine", "ttft_mean_ms queue_mean_ms prefill_mean_ms preemptions prefix_hit_rate", "engine_"),
    **_part("engine", "prompt_tokens generation_tokens", "engine_"),
    "joules": "energy.joules",
    **_measured("joules_per_output_token"),
    "tokens_per_s_per_w": "energy.tokens_per_s_per_w",
    **{
        f"gpu_{name}": partial(gpu_mean, name)
        for name in ("gfx_percent", "memory_percent", "power_w", "temperature_hotspot_c", "gfx_clock_mhz")
    },
    "client_limited": "limited",
    "client_why": "why",
    "verdicts": lambda stage: "; ".join(verdict.text for verdict in stage.verdicts),
    **_part("requests", "scheduled unsent unsent_longest_wait_s carried_over carried_in carried_failed lost warmup"),
    "errors": lambda stage: failed_words(stage.requests.errors),
    "failures": "failures.count",
    "failures_allowed": "failures.allowed",
    **_bounds("ttft"),
    **_bounds("ttft_from_intended"),
    **{name: name for name in ("inconclusive", "e2e_inconclusive", "carried_share", "tpot_parts", "tail_share")},
    **_part("first_wave", "streams counted", "first_wave_"),
    "first_wave_ttft_p50_ms": "first_wave.ttft_ms.p50",
    "first_wave_ttft_p99_ms": "first_wave.ttft_ms.p99",
    "step": lambda stage: None,
    "direction": lambda stage: None,
    **_measured(" ".join(f"{latency}_count" for latency in LATENCIES)),
    **_measured("tflops_per_gpu mfu_percent"),
    "mfu_precision": "compute.precision",
    **_measured("interactivity_tokens_per_s output_tokens_per_s_per_gpu total_tokens_per_s_per_gpu"),
    **_measured("output_tokens_per_s_per_mw usd_per_million_output_tokens usd_per_million_total_tokens"),
    **_measured("hbm_gb_per_s_per_gpu"),
    **_part("engine", "requests requests_per_s prompt_tokens_per_s generation_tokens_per_s", "engine_"),
    **_part("others", "running requests_per_s prompt_tokens_per_s generation_tokens_per_s", "others_"),
    **_engine_bounds("ttft", "p50"),
    **_engine_bounds("ttft", "p99"),
    **_engine_bounds("tpot", "p50"),
    **_engine_bounds("tpot", "p99"),
    **_part("canary", "sent scores drift perplexity answers same agreement", "canary_"),
    **_measured("gpu_hbm_used_gib hbm_bandwidth_percent"),
    **_part("sessions", "live context_tokens begun finished cut over_context failed lost skipped_s", "sessions_"),
    **_measured("output_tokens_per_s_p25 sessions_e2e_interactivity"),
    **_part("hits", "measured engine infinite pool", "hits_"),
    **_measured("cached_input_tokens_per_s_per_gpu uncached_input_tokens_per_s_per_gpu"),
    **_measured(
        " ".join(
            f"{latency}_{name}" for latency in OPTIONAL_LATENCIES for name in ("count", "p50_ms", "p90_ms", "p99_ms")
        )
    ),
    **_bounds("answer_ttft"),
    **_bounds("ttft_first_turn"),
    **_bounds("ttft_later_turns"),
    **_bounds("session_time"),
}


def _written(cell: Value) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return str(cell).lower()
        case str():
            text = harmless(cell)
            return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
        case Statistic(value):
            return "" if value is None else repr(value)
        case _:
            return repr(cell)
