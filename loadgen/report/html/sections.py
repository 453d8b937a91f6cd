"""The sections without figures: measured and published, GPUs and energy, engine and client, configuration."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter, itemgetter

from loadgen.format import UNKNOWN, exact, exact_percent, gib, grouped, memory
from loadgen.metrics.verdicts import POWER_LIMITS
from loadgen.report.assessment import best_stage, titles
from loadgen.report.columns import (
    LIMITS_MET,
    PAGE_COLUMNS,
    NamedSummary,
    figure,
    host_columns,
    instance_columns,
    known,
    load_column,
    outcome_columns,
    published_columns,
    statistic_columns,
)
from loadgen.report.configuration import flattened
from loadgen.report.html.page import bullets, pairs, paragraph, preformatted, section, subsection
from loadgen.report.notes import (
    Note,
    foreign_notes,
    has_numbers,
    latency_titles,
    published_nowhere,
    reference_notes,
    stage_notes,
    took_part,
)
from loadgen.report.output import answer_columns, is_of_output, output_verdicts, run_words, text_columns
from loadgen.report.tabular import Bad, Column, Value, html_table
from loadgen.schema.deltas import Summary
from loadgen.schema.finding import Finding, by_severity
from loadgen.schema.hardware_result import EnergyResult, GpuStage
from loadgen.schema.result import Result, RunEvent, StageResult
from loadgen.schema.samples import GpuStatic


def stages_section(result: Result) -> str:
    """The published table, a row per stage, and what limited each."""
    stages = [stage for stage in result.stages if took_part(stage)]
    load, outcomes = load_column(stages), outcome_columns(stages)
    notes = [(stage, number, note) for stage in stages for number, note in enumerate(stage_notes(stage))]
    return section(
        "Stages",
        html_table([load, *PAGE_COLUMNS, *known(LIMITS_MET, stages)], stages),
        subsection("What the numbers are of", html_table(_note_columns(load), notes)),
        subsection("What became of the requests", html_table([load, *outcomes], stages if outcomes[1:] else [])),
        subsection("What limited them", html_table([load, _VERDICT], [one for one in stages if one.verdicts])),
        subsection("Limits", _limits_table(stages)),
        subsection("Failures", html_table(_ERRORS, _errors(stages))),
    )


def _note_columns(load: Column[StageResult]) -> list[Column[tuple[StageResult, int, Note]]]:
    return [
        Column("load", lambda row: load.value(row[0]) if row[1] == 0 else "", words=True),
        Column("what", lambda row: row[2].subject, words=True),
        Column("note", lambda row: row[2].text, words=True),
    ]


def _verdict_words(stage: StageResult) -> str:
    words = "; ".join(verdict.text for verdict in stage.verdicts)
    return _judged(words, good=not any(verdict.bad for verdict in stage.verdicts))


def _judged(words: str, *, good: bool) -> str:
    return words if good else Bad(words)


_VERDICT = Column[StageResult]("verdict", _verdict_words, words=True)


def _limits_table(stages: Sequence[StageResult]) -> str:
    """The measured value for each limit, a column per limit."""
    limits = {name: check.limit_ms for stage in stages for name, check in stage.slo.items()}
    goodput = next((stage.goodput for stage in stages if stage.goodput is not None), None)
    failures = [one for stage in stages if (one := stage.failures) is not None and (one.allowed or not one.met)]
    shown: list[Column[StageResult]] = [
        Column(f"{name}, ms (at most {exact(limit_ms)})", lambda stage, name=name: _checked(stage, name))  # type: ignore[misc]
        for name, limit_ms in limits.items()
    ]
    if goodput is not None:
        good = ", ".join(f"{name} at most {exact(limit_ms)} ms" for name, limit_ms in goodput.limits_ms.items())
        shown.append(Column(f"streams with {good} (at least {exact_percent(goodput.wanted)})", _good_share))
    if failures:
        shown.append(Column(f"failed or never sent (at most {100 * failures[0].allowed:g} %)", _failures))
    return html_table([load_column(stages), *shown], stages) if shown else ""


def _checked(stage: StageResult, name: str) -> Value:
    check = stage.slo.get(name)
    return None if check is None else _judged(exact(check.measured_ms), good=check.met)


def _failures(stage: StageResult) -> Value:
    failures = stage.failures
    if failures is None:
        return None
    return _judged(f"{failures.count:,} of {failures.scheduled:,}", good=failures.met)


def _good_share(stage: StageResult) -> Value:
    goodput = stage.goodput
    if goodput is None:
        return None
    return _judged(exact_percent(goodput.share), good=goodput.met)


_ERRORS: tuple[Column[tuple[str, int, str]], ...] = (
    Column("kind", itemgetter(0), words=True),
    Column("count", itemgetter(1)),
    Column("first message", itemgetter(2), words=True),
)


def _errors(stages: Sequence[StageResult]) -> list[tuple[str, int, str]]:
    """Each kind of error, its count, and its first message; most frequent first."""
    counts: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for stage in stages:
        counts.update(stage.requests.errors)
        for kind, texts in stage.requests.messages.items():
            messages.setdefault(kind, texts[0] if texts else "")
    return [(kind, count, messages.get(kind, "")) for kind, count in counts.most_common()]


def latency_table(result: Result) -> str:
    """All statistics of all latencies, a group of rows per latency."""
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


def published_section(result: Result) -> str:
    """Published figures beside measured ones."""
    reference = result.reference
    if reference is None:
        return ""
    return section(
        "Published and measured",
        paragraph(published_nowhere(result)),
        html_table(published_columns(result.stages), reference.comparisons),
        bullets(reference_notes(reference)),
        note=reference.source,
    )


EVENTS: tuple[Column[RunEvent], ...] = (
    Column("s", lambda event: event.t_s, decimals=1),
    Column("kind", lambda event: _judged(event.kind, good=event.kind != "error"), words=True),
    Column("what", lambda event: event.text, words=True),
)


def output_section(result: Result) -> str:
    """The canaries' findings: whether the output is right."""
    canary = result.canary
    if canary is None:
        return ""
    return section(
        "Output",
        bullets(f"{one.subject}: {one.text}" for one in output_verdicts(result)),
        html_table(text_columns(canary.texts), canary.texts),
        html_table(answer_columns(canary.answers), canary.answers),
        bullets(run_words(canary)),
        note="Texts that the engine scores and prompts that it answers greedily: idle, beside each load, idle again. "
        "They are in no other figure of this page.",
    )


def gpu_section(result: Result) -> str:
    """Problems of the GPUs, each GPU under the highest load, and the energy of each stage."""
    stage = best_stage(result)
    looks = stage.gpu if stage is not None else []
    names = titles(result.stages)
    energies = [(names[one.index], one.energy) for one in result.stages if one.energy and one.energy.joules is not None]
    return section(
        "GPUs and energy",
        bullets(f"{one.subject}: {one.text}" for one in result.verdicts if not is_of_output(one)),
        html_table(_GPU, looks),
        subsection("Energy of the sockets", html_table(_ENERGY, energies)),
        note=f"At {names[stage.index]}; means over the measured window." if stage and looks else "",
    )


def _throttled(gpu: GpuStage) -> Value:
    words = ", ".join(f"{reason} {share:.0f} %" for reason, share in gpu.throttled_percent.items())
    return (words if gpu.throttled_percent.keys() <= POWER_LIMITS else Bad(words)) or None


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


_GPU: tuple[Column[GpuStage], ...] = (
    Column("GPU", lambda gpu: f"{gpu.index}  {gpu.name}", words=True),
    Column("activity %", lambda gpu: getattr(gpu.gfx_percent, "mean", None), decimals=0),
    Column("memory activity %", lambda gpu: getattr(gpu.memory_percent, "mean", None), decimals=0),
    Column("SM activity %", lambda gpu: getattr(gpu.sm_percent, "mean", None), decimals=0),
    Column("DRAM bandwidth %", lambda gpu: getattr(gpu.dram_percent, "mean", None), decimals=0),
    Column("HBM GiB, most", lambda gpu: gib(gpu.hbm_used_bytes_max), decimals=1),
    Column("HBM GiB, total", lambda gpu: gib(gpu.hbm_total_bytes), decimals=1),
    Column("power W", lambda gpu: getattr(gpu.power_w, "mean", None), decimals=0),
    Column("hotspot \N{DEGREE SIGN}C, most", lambda gpu: getattr(gpu.temperature_hotspot_c, "max", None), decimals=0),
    Column("clock MHz", lambda gpu: getattr(gpu.gfx_clock_mhz, "mean", None), decimals=0),
    Column("link read GB/s", lambda gpu: _giga(gpu.link_read_bytes_per_s), decimals=1),
    Column("link write GB/s", lambda gpu: _giga(gpu.link_write_bytes_per_s), decimals=1),
    Column("held back", _throttled, words=True),
    Column("server's", lambda gpu: {True: "yes", False: "no", None: None}[gpu.of_server], words=True),
)


_ENERGY: tuple[Column[tuple[str, EnergyResult]], ...] = (
    Column("load", itemgetter(0), words=True),
    Column("kJ", lambda row: (row[1].joules or 0.0) / 1000, decimals=1),
    Column("mean W", lambda row: (row[1].joules or 0.0) / row[1].window_s, decimals=0),
    Column("J/output token", lambda row: row[1].joules_per_output_token),
    Column("output tok/s per W", lambda row: row[1].tokens_per_s_per_w, decimals=3),
    Column("GPUs determined by", lambda row: row[1].devices_by, words=True),
    Column("measured by", lambda row: _measured_by(row[1]), words=True),
)


def _measured_by(energy: EnergyResult) -> str:
    return Bad(f"{energy.source}, counters distrusted") if energy.distrusted else str(energy.source)


def engine_section(result: Result) -> str:
    """The engine's own figures beside the client's, and each server's and each host's part if there are several."""
    names = titles(result.stages)
    whys: dict[str, list[str]] = {}
    for one in result.stages:
        for words in (one.truth.over, one.truth.why) if one.truth is not None else ():
            if words:
                whys.setdefault(words, []).append(names[one.index])
    checked = [one for one in result.stages if one.truth is not None]
    stage = best_stage(result)
    return section(
        "Client and engine",
        html_table([load_column(result.stages), *_CHECKED], checked),
        subsection("Notes", bullets(f"{why} ({', '.join(loads)})" for why, loads in whys.items())),
        subsection("Servers", html_table(instance_columns(), stage.instances if stage is not None else [])),
        subsection("Hosts", html_table(host_columns(), stage.hosts if stage is not None else [])),
        note="Both saw the same requests: mean times to first token, and where the engine's own were spent.",
    )


def _prefix_hits(stage: StageResult) -> Value:
    hits = stage.engine.prefix_hit_rate if stage.engine is not None else None
    return None if hits is None else f"{hits:.1%}"


_AGREES = {True: "yes", False: Bad("no"), None: "not compared"}
_TTFT, _ENGINE = "TTFT, ms", "in the engine, ms"
_CHECKED: tuple[Column[StageResult], ...] = (
    Column("client", figure("truth", "ttft_client_ms"), group=_TTFT, decimals=1),
    Column("engine", figure("truth", "ttft_server_ms"), group=_TTFT, decimals=1),
    Column("between", figure("truth", "ttft_outside_ms"), group=_TTFT, decimals=1),
    Column("queue", figure("truth", "queue_ms"), group=_ENGINE, decimals=1),
    Column("prefill", figure("truth", "prefill_ms"), group=_ENGINE, decimals=1),
    Column("front end", figure("truth", "frontend_ms"), group=_ENGINE, decimals=1),
    Column("preemptions", figure("engine", "preemptions"), decimals=0),
    Column("prefix hits", _prefix_hits),
    Column("agree", lambda stage: _AGREES[getattr(stage.truth, "agrees", None)], words=True),
)


def client_section(result: Result) -> str:
    """Whether the client kept up; for another tool's result, how it measured."""
    foreign = foreign_notes(result)
    if foreign:
        return section("How it was measured", pairs({note.subject: note.text for note in foreign}))
    if result.kind == "monitor":
        return ""
    client = result.client
    lag, late = client.read_lag_ms, client.send_lag_ms
    lags = [grouped(value, 2) for value in (lag.p50, lag.p99, lag.max)]
    reads = UNKNOWN if client.coalesced_reads is None else f"{client.coalesced_reads:.2%}"
    ahead = UNKNOWN if client.realtime is None else f"{client.realtime:.0%} of the time"
    return section(
        "The client's own health",
        pairs(
            {
                "Verdict": Bad(f"limited: {client.why}") if client.limited else "not limited",
                "Timestamps": {"kernel": "the kernel's, at reception", "user": "of the process, after the read"}.get(
                    client.timestamps or "", "none: nothing was read"
                ),
                "Read lag": f"p50 {lags[0]} ms, p99 {lags[1]} ms, most {lags[2]} ms",
                "Sent late by": f"mean {grouped(late.mean, 2)} ms, p99 {grouped(late.p99, 2)} ms",
                "Reads of several events": reads,
                "Workers": f"{client.workers}, {client.cpu_s:.1f} s of CPU in all, {client.connects} connections",
                "Where they ran": client.placement.words if client.placement is not None else UNKNOWN,
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
        died = paragraph(words, "bad") + preformatted("\n".join(diagnosis.evidence))
    return section("Preflight", died, html_table(_FINDINGS, by_severity(result.findings)))


_FINDINGS: tuple[Column[Finding], ...] = (
    Column("", lambda one: _judged(one.severity, good=one.severity != "blocks"), words=True),
    Column("finding", attrgetter("id"), words=True),
    *(Column(name, attrgetter(name), words=True) for name in ("seen", "why", "fix")),
)


def configuration_section(result: Result) -> str:
    """The profile as run, the server's command, the machine."""
    environment = dict(result.environment)
    command, variables = environment.pop("server_command", None), environment.pop("server_env", None)
    instances = environment.pop("server_instances", None)
    profile = {name: value for name, value in result.profile.items() if name != "reference"}
    others = [_command_text(one.get("command"), one.get("env")) for one in (instances or [])[1:]]
    devices = {f"GPU {gpu.index}": _gpu_words(gpu) for gpu in result.gpus}
    return section(
        "Configuration",
        subsection("Server", preformatted(_command_text(command, variables))),
        subsection("Other servers", preformatted("\n\n".join(filter(None, others)))),
        subsection("Profile", pairs(flattened(profile))),
        subsection("Machine", pairs(flattened(environment) | devices)),
        subsection("Telemetry", pairs(flattened(result.telemetry_meta or {}))),
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


def _gpu_words(gpu: GpuStatic) -> str:
    hbm = memory(gpu.hbm_total_bytes) if gpu.hbm_total_bytes else None
    return ", ".join(filter(None, [gpu.name, gpu.bdf, hbm]))
