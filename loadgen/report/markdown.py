"""The tables of a result as GitHub Markdown, to paste into an issue: a row per stage.

Every text of the result is escaped: a model's name can neither hide a link nor break out of its cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadgen.format import grouped
from loadgen.report.assessment import assessment, titles
from loadgen.report.columns import (
    CURVE,
    EFFICIENCY,
    LIMITS_MET,
    MARKDOWN_COLUMNS,
    SHAPE,
    columns,
    known,
    load_column,
    moving_points,
    outcome_columns,
    published_columns,
)
from loadgen.report.configuration import engine_of, hardware_of, model_of
from loadgen.report.notes import (
    failed_words,
    foreign_notes,
    latency_titles,
    published_nowhere,
    reference_notes,
    stage_notes,
    took_part,
)
from loadgen.report.served import MORE, NO_LOAD_NOTE, SERVED, watched, watched_notes
from loadgen.report.tabular import Column, escaped, markdown_table
from loadgen.schema.result import Result, StageResult

_STATISTICS = ("mean", "p50", "p90", "p99")
_ABOVE = ("Successful requests", "Failed requests")  # already in the first table


def markdown_report(result: Result) -> str:
    """Heading, answers, throughput, latency, published figures, and whether to trust them."""
    stages = [stage for stage in result.stages if took_part(stage)]
    points = moving_points(result)
    blocks = [
        f"### {escaped(model_of(result))} on {escaped(hardware_of(result))}",
        _facts(result),
        "\n".join(f"- **{one.question}** {escaped(one.text)}" for one in assessment(result)),
        _throughput(stages),
        _efficiency(stages),
        _watched(result),
        _requests(stages),
        _latency(stages),
        _notes(stages),
        markdown_table([*SHAPE, *CURVE], points, short=True),
        _published(result) if stages else "",
        _trust(result),
    ]
    return "\n\n".join(block for block in blocks if block)


def _facts(result: Result) -> str:
    stopped = "" if result.state == "complete" else f", {result.state.replace('_', ' ')}"
    words = f"{engine_of(result)}, run {result.run_id}, started {result.started_at}{stopped}"
    data = f", sent {result.data.words}" if result.data is not None else ""
    return f"{escaped(words)}, measured with vramp {escaped(result.vramp_version)}{escaped(data)}"


def _throughput(stages: Sequence[StageResult]) -> str:
    return markdown_table([load_column(stages), *MARKDOWN_COLUMNS, *known(LIMITS_MET, stages)], stages)


def _efficiency(stages: Sequence[StageResult]) -> str:
    shown = known(EFFICIENCY, stages)
    return markdown_table([load_column(stages), *shown], stages) if shown else ""


def _watched(result: Result) -> str:
    """The stages without load: the engine's own figures for what others sent."""
    stages, names = watched(result.stages), titles(result.stages)
    notes = [
        f"- {escaped(names[index])}: {escaped('; '.join(str(note) for note in told))}"
        for index, told in watched_notes(result.stages).items()
        if told
    ]
    table = markdown_table([load_column(stages), *SERVED, *MORE], stages)
    return "\n\n".join([NO_LOAD_NOTE, table, "\n".join(notes)]) if stages else ""


def _requests(stages: Sequence[StageResult]) -> str:
    """Requests that did not succeed, a column per outcome that occurred."""
    outcomes = [replace(one, label=one.label.lower()) for one in outcome_columns(stages) if one.label not in _ABOVE]
    errors = any(stage.requests.errors for stage in stages)
    failed = Column[StageResult]("failed with", lambda stage: failed_words(stage.requests.errors) or None)
    shown = [*outcomes, *([failed] if errors else [])]
    return markdown_table([load_column(stages), *shown], stages) if shown else ""


def _notes(stages: Sequence[StageResult]) -> str:
    names = titles(stages)
    return "\n".join(
        f"- {escaped(names[stage.index])}: {escaped('; '.join(str(note) for note in notes))}"
        for stage in stages
        if (notes := stage_notes(stage))
    )


def _latency(stages: Sequence[StageResult]) -> str:
    names = " ".join(f"{latency}_{name}_ms" for latency in latency_titles(stages) for name in _STATISTICS)
    load = replace(load_column(stages), label="ms")
    return markdown_table([load, *columns(names, decimals=2)], [stage for stage in stages if not stage.curve])


def _published(result: Result) -> str:
    reference = result.reference
    if reference is None:
        return ""
    source = f"Published: {escaped(reference.source)}"
    table = markdown_table(published_columns(result.stages), reference.comparisons)
    notes = "\n".join(f"- {escaped(note)}" for note in (*reference_notes(reference), published_nowhere(result)) if note)
    return "\n\n".join(block for block in (source, table, notes) if block)


def _trust(result: Result) -> str:
    foreign = foreign_notes(result)
    if foreign:
        return "\n".join(f"- **{escaped(note.subject)}:** {escaped(note.text)}" for note in foreign)
    if result.kind == "monitor":
        return "vramp sent nothing."
    client = result.client
    lag = grouped(client.read_lag_ms.p99, 2)
    stamps = f"{client.timestamps or 'no'} timestamps, read lag p99 {lag} ms, {client.workers} workers"
    limited = f"**The client was limited**: {escaped(client.why or '')}" if client.limited else "The client kept up"
    return f"{limited} ({stamps})."
