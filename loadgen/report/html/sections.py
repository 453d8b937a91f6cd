"""The sections without figures: those of the document as HTML, and what only a page has room for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from operator import attrgetter

from loadgen.format import gib, memory
from loadgen.metrics.verdicts import POWER_LIMITS
from loadgen.report import document
from loadgen.report.assessment import best_stage, titles
from loadgen.report.configuration import flattened
from loadgen.report.document import Section
from loadgen.report.html.page import bullets, pairs, paragraph, preformatted, section, subsection
from loadgen.report.output import answer_columns, text_columns
from loadgen.report.tabular import Bad, Column, Value, html_table, judged
from loadgen.schema.finding import Finding, by_severity
from loadgen.schema.hardware_result import GpuStage
from loadgen.schema.result import Result, RunEvent
from loadgen.schema.samples import GpuStatic


def rendered(found: Section, *figures: str) -> str:
    """A section of the document, with figures above its tables."""
    tables = [subsection(table.title, html_table(table.columns, table.rows)) for table in found.tables]
    named: dict[str, list[str]] = {}
    for note in found.notes:
        named.setdefault(note.subject, []).append(note.text)
    unnamed = bullets(named.pop("", []))
    words = pairs({subject: "; ".join(texts) for subject, texts in named.items()})
    return section(found.title, *figures, *tables, words, unnamed, note=found.about)


def output_section(result: Result) -> str:
    """Whether the output is right, with what the engine said."""
    found, canary = document.output(result), result.canary
    if canary is None:
        return rendered(found)
    said = [
        document.Table(text_columns(canary.texts), canary.texts),
        document.Table(answer_columns(canary.answers), canary.answers),
    ]
    about = (
        "Texts that the engine scores and prompts that it answers greedily; they are in no other figure of this page."
    )
    return rendered(found._replace(tables=[*found.tables, *said], about=about))


def gpu_section(result: Result) -> str:
    """Each GPU under the highest load."""
    stage = best_stage(result)
    looks = stage.gpu if stage is not None else []
    where = f"At {titles(result.stages)[stage.index]}; means over the measured window." if stage and looks else ""
    return section("GPUs", html_table(_GPU, looks), note=where)


EVENTS: tuple[Column[RunEvent], ...] = (
    Column("s", lambda event: event.t_s, decimals=1),
    Column("kind", lambda event: judged(event.kind, good=event.kind != "error"), words=True),
    Column("what", lambda event: event.text, words=True),
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


def findings_section(result: Result) -> str:
    """What the preflight found, and why the server died, if it did."""
    diagnosis = result.diagnosis
    died = ""
    if diagnosis is not None:
        words = f"{diagnosis.title}. {diagnosis.remedy}"
        died = paragraph(words, "bad") + preformatted("\n".join(diagnosis.evidence))
    return section("Preflight", died, html_table(_FINDINGS, by_severity(result.findings)))


_FINDINGS: tuple[Column[Finding], ...] = (
    Column("", lambda one: judged(one.severity, good=one.severity != "blocks"), words=True),
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
