"""What the report says of the conditions: what the preflight found, why a server died, and the run's configuration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from loadgen.format import fixed, gib
from loadgen.metrics.journal import by_severity
from loadgen.metrics.result import Result
from loadgen.report.cells import flattened
from loadgen.report.html import markup
from loadgen.report.html.markup import Bad, Column


def findings_section(result: Result) -> str:
    """What the preflight found, and why the server died, if it did."""
    columns = (
        Column("", text=True),
        Column("finding", text=True),
        Column("seen", text=True),
        Column("why", text=True),
        Column("fix", text=True),
    )
    rows = [
        (Bad(one.severity) if one.severity == "blocks" else one.severity, one.id, one.seen, one.why, one.fix)
        for one in by_severity(result.findings)
    ]
    diagnosis = result.diagnosis
    died = ""
    if diagnosis is not None:
        words = f"{diagnosis.title}. {diagnosis.remedy}"
        died = markup.paragraph(words, "bad") + markup.preformatted("\n".join(diagnosis.evidence))
    return markup.section("Preflight", died, markup.table(columns, rows))


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
