"""The tables: what was measured, what was published, GPUs and energy, engine and client, and what was run on what."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from loadgen.format import UNKNOWN, fixed, gib, grouped
from loadgen.metrics.deltas import Summary
from loadgen.metrics.journal import Finding, by_severity
from loadgen.metrics.result import EnergyResult, Result, RunEvent, StageResult, TruthCheck
from loadgen.metrics.samples import GpuFigure, GpuStage
from loadgen.report.assessment import best_stage, titles
from loadgen.report.columns import (
    CURVE,
    PAGE_COLUMNS,
    SHAPE,
    NamedSummary,
    instance_columns,
    load_column,
    moving_points,
    outcome_columns,
    published_columns,
    statistic_columns,
)
from loadgen.report.configuration import flattened
from loadgen.report.html import markup
from loadgen.report.notes import Note, has_numbers, latency_titles, stage_notes, took_part
from loadgen.report.tabular import Bad, Column, Value, html_table


def stages_section(result: Result) -> str:
    """The published table, one row a stage, and what limited each."""
    stages = [stage for stage in result.stages if took_part(stage)]
    load, outcomes = load_column(stages), outcome_columns(stages)
    notes = [(stage, number, note) for stage in stages for number, note in enumerate(stage_notes(stage))]
    return markup.section(
        "Stages",
        html_table([load, *PAGE_COLUMNS], stages),
        markup.subsection("What the numbers are of", html_table(_note_columns(load), notes)),
        markup.subsection("What became of the requests", html_table([load, *outcomes], stages if outcomes[1:] else [])),
        markup.subsection("What limited them", html_table([load, _VERDICT], [one for one in stages if one.verdicts])),
        markup.subsection("Limits", _limits_table(stages)),
        markup.subsection("Failures", html_table(_ERRORS, _errors(stages))),
    )


def _note_columns(load: Column[StageResult]) -> list[Column[tuple[StageResult, int, Note]]]:
    return [
        Column("load", lambda row: load.value(row[0]) if row[1] == 0 else "", words=True),
        Column("what", lambda row: row[2].subject, words=True),
        Column("note", lambda row: row[2].text, words=True),
    ]


def _verdict_words(stage: StageResult) -> str:
    words = "; ".join(verdict.text for verdict in stage.verdicts)
    return Bad(words) if any(verdict.bad for verdict in stage.verdicts) else words


_VERDICT = Column[StageResult]("verdict", _verdict_words, words=True)


def _limits_table(stages: Sequence[StageResult]) -> str:
    """What was measured for each limit, a column a limit."""
    limits = {name: check.limit_ms for stage in stages for name, check in stage.slo.items()}
    goodput = next((stage.goodput for stage in stages if stage.goodput is not None), None)
    failures = [one for stage in stages if (one := stage.failures) is not None and (one.allowed or not one.met)]
    shown: list[Column[StageResult]] = [
        Column(f"{name}, ms (at most {limit_ms:,g})", lambda stage, name=name: _checked(stage, name))  # type: ignore[misc]
        for name, limit_ms in limits.items()
    ]
    if goodput is not None:
        good = ", ".join(f"{name} at most {limit_ms:,g} ms" for name, limit_ms in goodput.limits_ms.items())
        shown.append(Column(f"streams with {good} (at least {goodput.wanted:.0%})", _good_share))
    if failures:
        shown.append(Column(f"failed or never sent (at most {100 * failures[0].allowed:g} %)", _failures))
    return html_table([load_column(stages), *shown], stages) if shown else ""


def _checked(stage: StageResult, name: str) -> str:
    check = stage.slo.get(name)
    if check is None:
        return UNKNOWN
    measured = grouped(check.measured_ms, 1)
    return measured if check.met else Bad(measured)


def _failures(stage: StageResult) -> Value:
    failures = stage.failures
    if failures is None:
        return None
    words = f"{failures.count:,} of {failures.scheduled:,}"
    return words if failures.met else Bad(words)


def _good_share(stage: StageResult) -> Value:
    goodput = stage.goodput
    if goodput is None:
        return None
    share = UNKNOWN if goodput.share is None else f"{goodput.share:.1%}"
    return share if goodput.met else Bad(share)


class _Error(NamedTuple):
    kind: str
    occurred: int
    message: str


_ERRORS: tuple[Column[_Error], ...] = (
    Column("kind", lambda error: error.kind, words=True),
    Column("count", lambda error: error.occurred),
    Column("first message", lambda error: error.message, words=True),
)


def _errors(stages: Sequence[StageResult]) -> list[_Error]:
    counts: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for stage in stages:
        counts.update(stage.requests.errors)
        for kind, texts in stage.requests.messages.items():
            messages.setdefault(kind, texts[0] if texts else "")
    return [_Error(kind, count, messages.get(kind, "")) for kind, count in counts.most_common()]


def latency_table(result: Result) -> str:
    """All statistics of all latencies, a group of rows for each latency."""
    stages = [stage for stage in result.stages if has_numbers(stage) and not stage.curve]
    names = titles(stages)
    rows = [
        NamedSummary(title if number == 0 else "", stage.latency_ms.get(name, Summary(count=0)), names[stage.index])
        for name, title in latency_titles(stages).items()
        for number, stage in enumerate(stages)
    ]
    named: list[Column[NamedSummary]] = [
        Column("ms", lambda row: row.title, words=True),
        Column("load", lambda row: row.load, words=True),
    ]
    return html_table([*named, *statistic_columns("count mean stddev min p50 p90 p95 p99 p999 max")], rows)


def curve_table(result: Result) -> str:
    """What was measured against the streams held."""
    return html_table([*SHAPE, *CURVE], moving_points(result))


def published_section(result: Result) -> str:
    """What was published beside what was measured."""
    reference = result.reference
    if reference is None:
        return ""
    missing = "" if reference.comparisons else "No stage of this run has the load of a published figure."
    return markup.section(
        "Published and measured",
        markup.paragraph(missing),
        html_table(published_columns(result.stages), reference.comparisons),
        markup.lines(reference.notes),
        note=reference.source,
    )


def events_table(result: Result) -> str:
    return html_table(_EVENTS, result.events)


_EVENTS: tuple[Column[RunEvent], ...] = (
    Column("s", lambda event: event.t_s, decimals=1),
    Column("kind", lambda event: Bad(event.kind) if event.kind == "error" else event.kind, words=True),
    Column("what", lambda event: event.text, words=True),
)


def gpu_section(result: Result) -> str:
    """What is wrong with the GPUs, each of them under the most load, and the energy of each stage."""
    stage = best_stage(result)
    looks = stage.gpu if stage is not None else []
    at = f"At {titles(result.stages)[stage.index]}; means over the measured window." if stage and looks else ""
    names = titles(result.stages)
    energies = [
        _Energy(names[one.index], one.energy) for one in result.stages if one.energy and one.energy.joules is not None
    ]
    return markup.section(
        "GPUs and energy",
        markup.lines(f"{verdict.subject}: {verdict.text}" for verdict in result.verdicts),
        html_table(_GPU, looks),
        markup.subsection("Energy of the sockets", html_table(_ENERGY, energies)),
        note=at,
    )


def _mean(figure: GpuFigure | None) -> float | None:
    return figure.mean if figure is not None else None


def _throttled(gpu: GpuStage) -> Value:
    return Bad(", ".join(f"{reason} {share:.0f} %" for reason, share in gpu.throttled_percent.items())) or None


_GPU: tuple[Column[GpuStage], ...] = (
    Column("GPU", lambda gpu: f"{gpu.index}  {gpu.name}", words=True),
    Column("busy %", lambda gpu: _mean(gpu.gfx_percent), decimals=0),
    Column("memory busy %", lambda gpu: _mean(gpu.memory_percent), decimals=0),
    Column("HBM GiB, most", lambda gpu: gib(gpu.hbm_used_bytes_max), decimals=1),
    Column("of", lambda gpu: gib(gpu.hbm_total_bytes), decimals=1),
    Column("power W", lambda gpu: _mean(gpu.power_w), decimals=0),
    Column("hotspot \N{DEGREE SIGN}C, most", lambda gpu: getattr(gpu.temperature_hotspot_c, "max", None), decimals=0),
    Column("clock MHz", lambda gpu: _mean(gpu.gfx_clock_mhz), decimals=0),
    Column("held back", _throttled, words=True),
)


class _Energy(NamedTuple):
    load: str
    of: EnergyResult


def _measured_by(row: _Energy) -> str:
    return Bad(f"{row.of.source}, counters distrusted") if row.of.distrusted else str(row.of.source)


_ENERGY: tuple[Column[_Energy], ...] = (
    Column("load", lambda row: row.load, words=True),
    Column("kJ", lambda row: (row.of.joules or 0.0) / 1000, decimals=1),
    Column("mean W", lambda row: (row.of.joules or 0.0) / row.of.window_s, decimals=0),
    Column("J/output token", lambda row: row.of.joules_per_output_token),
    Column("output tok/s per W", lambda row: row.of.tokens_per_s_per_w, decimals=3),
    Column("measured by", _measured_by, words=True),
)


def engine_section(result: Result) -> str:
    """The engine's own word beside the client's, and each server's part where there are several."""
    names = titles(result.stages)
    checked = [_Checked(names[stage.index], stage, stage.truth) for stage in result.stages if stage.truth is not None]
    whys: dict[str, list[str]] = {}
    for one in checked:
        whys.setdefault(one.truth.why, []).append(one.load)
    notes = [f"{why} ({', '.join(loads)})" for why, loads in whys.items() if why]
    stage = best_stage(result)
    servers = stage.instances if stage is not None else []
    return markup.section(
        "Client and engine",
        html_table(_CHECKED, checked),
        markup.subsection("Notes", markup.lines(notes)),
        markup.subsection("Servers", html_table(instance_columns(), servers)),
        note="Both saw the same requests: mean times to first token, and where the engine's own were spent.",
    )


class _Checked(NamedTuple):
    load: str
    stage: StageResult
    truth: TruthCheck


def _prefix_hits(row: _Checked) -> Value:
    hits = row.stage.engine.prefix_hit_rate if row.stage.engine is not None else None
    return None if hits is None else f"{hits:.1%}"


_TTFT, _ENGINE = "TTFT, ms", "in the engine, ms"
_CHECKED: tuple[Column[_Checked], ...] = (
    Column("load", lambda row: row.load, words=True),
    Column("client", lambda row: row.truth.ttft_client_ms, group=_TTFT, decimals=1),
    Column("engine", lambda row: row.truth.ttft_server_ms, group=_TTFT, decimals=1),
    Column("between", lambda row: row.truth.ttft_outside_ms, group=_TTFT, decimals=1),
    Column("queue", lambda row: row.truth.queue_ms, group=_ENGINE, decimals=1),
    Column("prefill", lambda row: row.truth.prefill_ms, group=_ENGINE, decimals=1),
    Column("front end", lambda row: row.truth.frontend_ms, group=_ENGINE, decimals=1),
    Column("preemptions", lambda row: getattr(row.stage.engine, "preemptions", None), decimals=0),
    Column("prefix hits", _prefix_hits),
    Column("agree", lambda row: {True: "yes", False: Bad("no"), None: "not compared"}[row.truth.agrees], words=True),
)


def client_section(result: Result) -> str:
    """Whether the client could do what was asked of it."""
    client = result.client
    lag, late = client.read_lag_ms, client.send_lag_ms
    lags = [grouped(value, 2) for value in (lag.p50, lag.p99, lag.max)]
    reads = UNKNOWN if client.coalesced_reads is None else f"{client.coalesced_reads:.2%}"
    ahead = UNKNOWN if client.realtime is None else f"{client.realtime:.0%} of the time"
    return markup.section(
        "The client's own health",
        markup.pairs(
            {
                "Verdict": Bad(f"limited: {client.why}") if client.limited else "not limited",
                "Timestamps": {"kernel": "the kernel's, at reception", "user": "of the process, after the read"}.get(
                    client.timestamps or "", "none: nothing was read"
                ),
                "Read lag": f"p50 {lags[0]} ms, p99 {lags[1]} ms, most {lags[2]} ms",
                "Sent late by": f"mean {grouped(late.mean, 2)} ms, p99 {grouped(late.p99, 2)} ms",
                "Reads of several events": reads,
                "Workers": f"{client.workers}, {client.cpu_s:.1f} s of CPU in all, {client.connects} connections",
                "Ran before other processes": ahead,
            }
        ),
    )


def findings_section(result: Result) -> str:
    """What the preflight found, and why the server died, if it did."""
    diagnosis = result.diagnosis
    died = ""
    if diagnosis is not None:
        words = f"{diagnosis.title}. {diagnosis.remedy}"
        died = markup.paragraph(words, "bad") + markup.preformatted("\n".join(diagnosis.evidence))
    return markup.section("Preflight", died, html_table(_FINDINGS, by_severity(result.findings)))


_FINDINGS: tuple[Column[Finding], ...] = (
    Column("", lambda one: Bad(one.severity) if one.severity == "blocks" else one.severity, words=True),
    Column("finding", lambda one: one.id, words=True),
    Column("seen", lambda one: one.seen, words=True),
    Column("why", lambda one: one.why, words=True),
    Column("fix", lambda one: one.fix, words=True),
)


def configuration_section(result: Result) -> str:
    """The profile as it was run, the server's command, the machine."""
    environment = dict(result.environment)
    command, variables = environment.pop("server_command", None), environment.pop("server_env", None)
    instances = environment.pop("server_instances", None)
    profile = {name: value for name, value in result.profile.items() if name != "reference"}
    devices = {f"GPU {gpu.index}": _gpu_words(gpu.name, gpu.bdf, gpu.hbm_total_bytes) for gpu in result.gpus}
    return markup.section(
        "Configuration",
        markup.subsection("Server", markup.preformatted(_command_text(command, variables))),
        markup.subsection("Other servers", markup.preformatted(_instances_text(instances))),
        markup.subsection("Profile", markup.pairs(flattened(profile))),
        markup.subsection("Machine", markup.pairs(flattened(environment) | devices)),
        markup.subsection("Telemetry", markup.pairs(flattened(result.telemetry_meta or {}))),
    )


def _command_text(command: Sequence[str] | None, variables: dict[str, str] | None) -> str:
    if not command:
        return ""
    exports = [f"{name}={shlex.quote(value)}" for name, value in (variables or {}).items()]
    return " \\\n  ".join([*exports, *_flag_groups(command)])


def _flag_groups(command: Sequence[str]) -> list[str]:
    """The words of a command in lines: each flag with its values."""
    groups: list[str] = []
    for word in command:
        if groups and not word.startswith("-"):
            groups[-1] += f" {shlex.quote(word)}"
        else:
            groups.append(shlex.quote(word))
    return groups


def _instances_text(instances: list[dict[str, Any]] | None) -> str:
    commands = (_command_text(one.get("command"), one.get("env")) for one in (instances or [])[1:])
    return "\n\n".join(command for command in commands if command)


def _gpu_words(name: str, address: str | None, memory_bytes: int | None) -> str:
    return ", ".join(
        [name, *([address] if address else []), *([f"{fixed(gib(memory_bytes), 1)} GiB"] if memory_bytes else [])]
    )
