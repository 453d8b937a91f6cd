"""The published tables of a result for GitHub: good to paste into an issue, one row a stage.

Every text of the result is escaped: a model's name can neither make a link nor break out of its cell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadgen.format import UNKNOWN, grouped, harmless, signed_percent
from loadgen.metrics.deltas import Summary
from loadgen.metrics.result import Comparison, CurvePoint, Result, StageResult
from loadgen.metrics.slo import met_limits
from loadgen.report.assessment import assessment, titles
from loadgen.report.cells import engine_of, hardware_of, model_of, published_name, statistic
from loadgen.report.load_curve import HEADS, curve_cells, moving_points, shape_of
from loadgen.report.notes import failed_words, latency_titles, request_counts, stage_notes, took_part

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#$@&!])")
_STATISTICS = ("mean", "p50", "p90", "p99")
_ABOVE = ("Successful requests", "Failed requests")  # what the first table has

Row = Sequence[str]


def markdown_report(result: Result) -> str:
    """Heading, answers, throughput, latency, what was published, and whether to trust it."""
    stages = [stage for stage in result.stages if took_part(stage)]
    blocks = [
        f"### {escaped(model_of(result))} on {escaped(hardware_of(result))}",
        _facts(result),
        "\n".join(f"- **{one.question}** {escaped(one.text)}" for one in assessment(result)),
        *([_throughput(stages), *_requests(stages), *_latency(stages), *_notes(stages)] if stages else []),
        *_curve(moving_points(result)),
        *(_published(result) if stages else []),
        _trust(result),
    ]
    return "\n\n".join(blocks)


def escaped(text: str) -> str:
    """A text as one line of Markdown that shows exactly this."""
    return _SPECIAL.sub(r"\\\1", harmless(text).replace("\n", " "))


def _facts(result: Result) -> str:
    stopped = "" if result.state == "complete" else f", {result.state.replace('_', ' ')}"
    words = f"{engine_of(result)}, run {result.run_id}, started {result.started_at}{stopped}"
    return f"{escaped(words)}, measured with vramp {escaped(result.vramp_version)}"


def _throughput(stages: Sequence[StageResult]) -> str:
    names = titles(stages)
    head = ("load", "ISL/OSL", "completed", "failed", "duration s", "req/s", "output tok/s", "total tok/s")
    optional = {
        "tok/s per user": [stage.throughput.output_tokens_per_s_per_user for stage in stages],
        "J/token": [stage.energy.joules_per_output_token if stage.energy else None for stage in stages],
    }
    shown = {title: values for title, values in optional.items() if any(value is not None for value in values)}
    judged = any(met_limits(stage) is not None for stage in stages)
    rows = [
        [
            *_throughput_row(stage, names[stage.index]),
            *(grouped(values[number], 2) for values in shown.values()),
            *([_limits_word(stage)] if judged else []),
        ]
        for number, stage in enumerate(stages)
    ]
    return _table([*head, *shown, *(["limits"] if judged else [])], rows, texts=2)


def _throughput_row(stage: StageResult, name: str) -> Row:
    requests, rate = stage.requests, stage.throughput
    return (
        escaped(name),
        f"{stage.isl}/{stage.osl}",
        grouped(requests.completed),
        grouped(requests.failed),
        grouped(stage.measured_s, 2),
        grouped(rate.requests_per_s, 2),
        grouped(rate.output_tokens_per_s, 2),
        grouped(rate.total_tokens_per_s, 2),
    )


def _requests(stages: Sequence[StageResult]) -> list[str]:
    """What became of the requests that did not succeed, a column for each outcome that occurred."""
    names, found = titles(stages), [{one.name: one for one in request_counts(stage.requests)} for stage in stages]
    columns = [name for name in dict.fromkeys(name for counts in found for name in counts) if name not in _ABOVE]
    errors = any(stage.requests.errors for stage in stages)
    rows = [
        [
            escaped(names[stage.index]),
            *(escaped(counts[name].words) if name in counts else "0" for name in columns),
            *([escaped(failed_words(stage.requests.errors)) or UNKNOWN] if errors else []),
        ]
        for stage, counts in zip(stages, found, strict=True)
    ]
    head = ["load", *(name.lower() for name in columns), *(["failed with"] if errors else [])]
    return [_table(head, rows, texts=1)] if len(head) > 1 else []


def _notes(stages: Sequence[StageResult]) -> list[str]:
    names = titles(stages)
    lines = [
        f"- {escaped(names[stage.index])}: {escaped('; '.join(str(note) for note in notes))}"
        for stage in stages
        if (notes := stage_notes(stage))
    ]
    return ["\n".join(lines)] if lines else []


def _limits_word(stage: StageResult) -> str:
    return {True: "met", False: "**missed**", None: UNKNOWN}[met_limits(stage)]


def _latency(stages: Sequence[StageResult]) -> list[str]:
    names, shown = titles(stages), latency_titles(stages)
    head = ["ms", *(f"{title} {name}" for title in shown.values() for name in _STATISTICS)]
    empty = Summary(count=0)
    rows = [
        [
            escaped(names[stage.index]),
            *(escaped(statistic(stage.latency_ms.get(key, empty), name, 2)) for key in shown for name in _STATISTICS),
        ]
        for stage in stages
        if not stage.curve
    ]
    return [_table(head, rows, texts=1)] if rows else []


def _curve(points: Sequence[CurvePoint]) -> list[str]:
    rows = [[shape_of(point), *map(escaped, curve_cells(point))] for point in points]
    return [_table(["ISL/OSL", *HEADS], rows, texts=2)] if rows else []


def _published(result: Result) -> list[str]:
    reference = result.reference
    if reference is None:
        return []
    source = f"Published: {escaped(reference.source)}"
    notes = [f"- {escaped(note)}" for note in reference.notes]
    if not reference.comparisons:
        return ["\n".join([source, "", *notes, "- no stage of this run has the load of a published figure"])]
    names = titles(result.stages)
    rows = [_compared(one, names[one.stage]) for one in reference.comparisons]
    table = _table(["load", "figure", "published", "measured", "difference"], rows, texts=2)
    return [source, table, *(["\n".join(notes)] if notes else [])]


def _compared(one: Comparison, name: str) -> Row:
    difference = signed_percent(one.difference_percent)
    return escaped(name), escaped(published_name(one)), grouped(one.published, 2), grouped(one.measured, 2), difference


def _trust(result: Result) -> str:
    client = result.client
    lag = grouped(client.read_lag_ms.p99, 2)
    stamps = f"{client.timestamps or 'no'} timestamps, read lag p99 {lag} ms, {client.workers} workers"
    limited = f"**The client was limited**: {escaped(client.why or '')}" if client.limited else "The client kept up"
    return f"{limited} ({stamps})."


def _table(head: Sequence[str], rows: Sequence[Row], *, texts: int) -> str:
    """A table whose first `texts` columns are words and the others numbers."""
    rule = [":--"] * texts + ["--:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])
