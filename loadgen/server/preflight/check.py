"""The preflight as a whole: what stands in the way of a profile, on this box or on an installation from the records.

It reads, and changes nothing but the cache of what installations know. A part that cannot be checked is a finding,
never a failure.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence

import msgspec

from loadgen.errors import ServerError, TelemetryError, VrampError
from loadgen.format import harmless
from loadgen.metrics.journal import Finding, by_severity
from loadgen.places import cache_folder
from loadgen.plan.stage import Stage
from loadgen.profile.schema import Profile, Server
from loadgen.server.preflight.box import Box, Setup
from loadgen.server.preflight.box_gpus import gpu_memory, leftover_findings
from loadgen.server.preflight.box_model import disk_space, hub_model, local_model
from loadgen.server.preflight.box_system import (
    clock,
    container,
    governor,
    gpu_devices,
    huge_pages,
    numa_balancing,
    open_files,
    port,
    shared_gpus,
    shared_memory,
)
from loadgen.server.preflight.facts import facts_of, model_facts
from loadgen.server.preflight.flags import flag_findings
from loadgen.server.preflight.installation import (
    Installation,
    ask_installation,
    newest_recorded,
    python_of,
    recorded_installation,
)
from loadgen.server.preflight.rules import rule_findings
from loadgen.server.process.gpu_memory import GpuMemory, read_gpu_memory
from loadgen.server.vllm.command import find_executable, vllm_of
from loadgen.vendors import Platform, platform_here

_STARTED_BY_FLAGS = ("vllm", "docker")


async def check_profile(profile: Profile, plan: Sequence[Stage], *, recorded: str | None = None) -> list[Finding]:
    """All findings, the worst first.

    With `recorded`, a version such as 0.32.0, profile and plan are judged against the records of that version and this
    box is not looked at. Raises `ServerError` if that version is not recorded.
    """
    if recorded is not None:
        found = _profile_findings(profile, plan, recorded_installation(recorded), profile.server.platform)
        return by_severity(found)
    found = await _flags_here(profile.server)
    found += await asyncio.to_thread(_box_and_rules, profile, plan)
    return by_severity(found)


def blocked_words(blocking: Sequence[Finding]) -> str:
    """What keeps a server from being started, for a message."""
    lines = [f"  {finding.id}: {finding.seen}\n    -> {finding.fix or finding.why}" for finding in blocking]
    return "\n".join(["the preflight says that the start would fail (--force starts all the same):", *lines])


def _profile_findings(
    profile: Profile, plan: Sequence[Stage], installation: Installation, platform: Platform | None
) -> list[Finding]:
    if profile.server.engine not in _STARTED_BY_FLAGS:
        return []
    return [*flag_findings(profile.server, installation), *_rules(profile, plan, platform)]


async def _flags_here(server: Server) -> list[Finding]:
    if server.engine not in _STARTED_BY_FLAGS:
        return []
    if server.engine == "docker":
        return _judged_by_record(server, "the vLLM inside a container cannot be asked before it runs")
    missing = _missing_program(server)
    if missing:
        return [*missing, *_judged_by_record(server, "there is no vLLM to ask")]
    python = python_of(server.command)
    if python is None:
        return _judged_by_record(server, f"server.command = {server.command!r}: the Python behind it cannot be told")
    try:
        installation = await ask_installation(python, cache=cache_folder("installations"))
    except ServerError as error:
        return _judged_by_record(server, str(error))
    return flag_findings(server, installation)


def _missing_program(server: Server) -> list[Finding]:
    try:
        find_executable(server, vllm_of(server.command), key="server.command")
    except ServerError as error:
        seen, _, fix = str(error).partition("; ")
        return [Finding("no-server-program", "blocks", seen, "there is nothing to start", fix)]
    return []


def _judged_by_record(server: Server, why: str) -> list[Finding]:
    """Another version may know what the recorded one does not: nothing of it blocks."""
    installation = newest_recorded()
    told = Finding(
        "installation-unknown", "info", f"flags were compared with those of vLLM {installation.version}", why
    )
    return [told, *(_doubted(finding) for finding in flag_findings(server, installation))]


def _doubted(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, severity="warns") if finding.severity == "blocks" else finding


def _box_and_rules(profile: Profile, plan: Sequence[Stage]) -> list[Finding]:
    box = Box()
    platform = profile.server.platform or platform_here(box.dev)
    if profile.server.engine not in _STARTED_BY_FLAGS:
        return box_findings(profile, plan, box, platform=platform)
    gpus, unknown = gpus_of_box(box, platform)
    found = box_findings(profile, plan, box, platform=platform, gpus=gpus)
    return [*unknown, *found, *_rules(profile, plan, platform, gpus)]


def _rules(
    profile: Profile, plan: Sequence[Stage], platform: Platform | None, gpus: Sequence[GpuMemory] = ()
) -> list[Finding]:
    server = profile.server
    inherited = {} if server.engine == "docker" else os.environ
    facts = facts_of(
        profile,
        plan,
        platform=platform,
        model=model_facts(server.model, {**inherited, **server.env}) if server.model is not None else None,
        hbm_bytes=min((gpu.total_bytes // gpu.devices for gpu in gpus), default=None),
        gpus=sum(gpu.devices for gpu in gpus) or None,
    )
    return rule_findings(facts)


Check = Callable[[Setup], Iterator[Finding]]

_CLIENT: dict[str, Check] = {
    "the limit of open files": open_files,
    "the CPU governor": governor,
    "the clock": clock,
}
_STARTED: dict[str, Check] = {"the port": port}
_VLLM: dict[str, Check] = {
    "the container": container,
    "the GPU's device files": gpu_devices,
    "the devices of the instances": shared_gpus,
    "the model's folder": local_model,
    "the model in the hub's cache": hub_model,
    "free disk space": disk_space,
    "shared memory": shared_memory,
    "the GPU's memory": gpu_memory,
    "other vLLM processes": leftover_findings,
    "NUMA balancing": numa_balancing,
    "huge pages": huge_pages,
}
_CHECKS: dict[str, dict[str, Check]] = {
    "attach": _CLIENT,
    "simulator": _STARTED | _CLIENT,
    "vllm": _STARTED | _VLLM | _CLIENT,
    "docker": _STARTED | _VLLM | _CLIENT,
}


def gpus_of_box(box: Box, platform: Platform) -> tuple[list[GpuMemory], list[Finding]]:
    """The GPUs of the platform and what is in use of them, or why that is not known."""
    if platform == "cpu":
        return [], []
    try:
        return read_gpu_memory(sysfs=box.sys, proc=box.proc, path=box.environ.get("PATH"), platform=platform), []
    except TelemetryError as error:
        return [], [_not_checked("what is in use of the GPU's memory", str(error))]


def box_findings(
    profile: Profile, plan: Sequence[Stage], box: Box, *, platform: Platform, gpus: Sequence[GpuMemory] = ()
) -> list[Finding]:
    """What this box has against the run; `platform` is what its server is to compute on."""
    setup = Setup(profile, plan, box, platform, gpus)
    found: list[Finding] = []
    for name, check in _CHECKS[profile.server.engine].items():
        found += _outcome(name, check, setup)
    return found


def _outcome(name: str, check: Check, setup: Setup) -> list[Finding]:
    try:
        return list(check(setup))
    except OSError as error:
        return [_not_checked(name, f"{error.filename}: {error.strerror}" if error.filename else str(error))]
    except (VrampError, ValueError) as error:  # an argument that is no number, a file that is not what it should be
        return [_not_checked(name, str(error))]


def _not_checked(name: str, why: str) -> Finding:
    return Finding("not-checked", "info", f"{name}: could not be checked", harmless(why))
