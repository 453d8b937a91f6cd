"""The whole preflight: finds what would make a run fail or its figures less meaningful, here or on a recorded vLLM.

It only reads, within a fraction of a second once vLLM's flags are cached, and writes nothing but that cache. Each check
is a function; the tables say which checks an engine needs. What cannot be read is reported as such and never prevents
the other checks.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.errors import UNDECODABLE, ServerError, TelemetryError, VrampError
from loadgen.format import harmless
from loadgen.places import cache_folder
from loadgen.plan.stage import Stage
from loadgen.profile.schema import Profile, Server
from loadgen.schema.finding import Finding, by_severity
from loadgen.server.gpus.gpu import Gpu, read_gpus
from loadgen.server.preflight import box_connections, box_gpus, box_hardware, box_model, box_system
from loadgen.server.preflight.facts import Box, Setup, facts_of
from loadgen.server.preflight.rules import rule_findings
from loadgen.server.vllm.command import find_container_program, find_vllm
from loadgen.server.vllm.flags import flag_findings
from loadgen.server.vllm.installation import ask_installation, newest_recorded, python_of, recorded_installation
from loadgen.vendors import Platform, platform_here, vendor_of

_JUDGED_ENGINES = ("vllm", "docker")  # whose flags and variables are checked
_Check = Callable[[Setup], Iterator[Finding]]
_CLIENT: dict[str, _Check] = {
    "servers of vramps that were killed": box_gpus.orphans,
    "the limit of open files": box_connections.open_files,
    "the local ports": box_connections.local_ports,
    "the source addresses": box_connections.source_addresses,
    "the CPU governor": box_system.governor,
    "the clock": box_system.clock,
    "the way from the hosts to the server": box_connections.server_of_this_box_alone,
}
_VLLM: dict[str, _Check] = {
    "the port": box_system.port,
    "the container": box_system.container,
    "the GPU's device files": box_system.gpu_devices,
    "the devices of the instances": box_system.shared_gpus,
    "the model's folder": box_model.local_model,
    "the model in the hub's cache": box_model.hub_model,
    "free disk space": box_model.disk_space,
    "shared memory": box_system.shared_memory,
    "the GPU's memory": box_gpus.gpu_memory,
    "the number of GPUs": box_hardware.enough_devices,
    "partitions of the GPUs": box_hardware.partitions,
    "the GPUs' power caps": box_hardware.power_caps,
    "links between the GPUs": box_hardware.links,
    "the fabric of the NVSwitches": box_hardware.fabric,
    "the IOMMU": box_hardware.iommu,
    "ACS between the GPUs": box_hardware.access_control,
    "the limit of locked memory": box_hardware.locked_memory,
    "other vLLM processes": box_gpus.leftover_findings,
    "NUMA balancing": box_system.numa_balancing,
    "huge pages": box_system.huge_pages,
}
_CHECKS: dict[str, dict[str, _Check]] = {
    "attach": _CLIENT,
    "none": _CLIENT,
    "simulator": {"the port": box_system.port, **_CLIENT},
    "vllm": _VLLM | _CLIENT,
    "docker": _VLLM | _CLIENT,
}


async def check_profile(profile: Profile, plan: Sequence[Stage], *, recorded: str | None = None) -> list[Finding]:
    """All findings, the worst first.

    With `recorded`, a version such as 0.32.0, profile and plan are checked against the records of that version, without
    looking at this box. Raises `ServerError` if that version is not recorded.
    """
    judged = profile.server.engine in _JUDGED_ENGINES
    if recorded is not None:
        installation = recorded_installation(recorded)
        found = flag_findings(profile.server, installation) if judged else []
        setup = Setup(profile, plan, Box(), profile.server.platform, vllm=installation.version)
        return by_severity([*found, *_rules(setup)])
    found, version = await _flags_here(profile.server) if judged else ([], None)
    found += await asyncio.to_thread(_box_and_rules, profile, plan, version)
    return by_severity(found)


def blocked_words(blocking: Sequence[Finding]) -> str:
    lines = [f"  {finding.id}: {finding.seen}\n    -> {finding.fix or finding.why}" for finding in blocking]
    return "\n".join(["the preflight found that the start would fail (--force starts anyway):", *lines])


async def _flags_here(server: Server) -> tuple[list[Finding], str]:
    """Check flags against the vLLM that will be started; returns findings and its version."""
    if server.engine == "docker":
        return _judged_by_record(server, "the vLLM inside a container cannot be queried before it runs")
    try:
        program = find_vllm(server)
    except ServerError as error:
        seen, _, fix = str(error).partition("; ")
        missing = Finding("no-server-program", "blocks", seen, "there is nothing to start", fix)
        found, version = _judged_by_record(server, "there is no vLLM to query")
        return [missing, *found], version
    python = python_of(program)
    if python is None:
        return _judged_by_record(server, f"server.command = {server.command!r}: the Python behind it is unknown")
    try:
        installation = await ask_installation(python, cache=cache_folder("installations"))
    except ServerError as error:
        return _judged_by_record(server, str(error))
    return flag_findings(server, installation), installation.version


def _judged_by_record(server: Server, why: str) -> tuple[list[Finding], str]:
    """Check flags against a recorded version; nothing blocks, because the real one may differ."""
    installation = newest_recorded()
    found = flag_findings(server, installation)
    doubted = [replace(one, severity="warns") if one.severity == "blocks" else one for one in found]
    seen = f"flags were compared with those of vLLM {installation.version}"
    return [Finding("installation-unknown", "info", seen, why), *doubted], installation.version


def _box_and_rules(profile: Profile, plan: Sequence[Stage], vllm: str | None) -> list[Finding]:
    platform = profile.server.platform or platform_here(Box().dev)
    setup, found = look_at_box(profile, plan, Box(), platform, vllm=vllm, image=image_environment(profile.server))
    return [*found, *_rules(setup)]


def _rules(setup: Setup) -> list[Finding]:
    return rule_findings(facts_of(setup)) if setup.server.engine in _JUDGED_ENGINES else []


def image_environment(server: Server) -> dict[str, str] | None:
    """The variables that a container's image sets; None if there is no container, or its image is not local."""
    if server.docker is None:
        return None
    asked = ["image", "inspect", "--format", "{{json .Config.Env}}", "--", server.docker.image]
    try:
        command = [find_container_program(server, server.docker), *asked]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5.0, check=True)
        pairs = msgspec.json.decode(answer.stdout, type=list[str] | None) or []
    except (ServerError, OSError, subprocess.SubprocessError, *UNDECODABLE):
        return None  # the container check reports what is wrong, or the start pulls the image
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def look_at_box(
    profile: Profile,
    plan: Sequence[Stage],
    box: Box,
    platform: Platform,
    *,
    vllm: str | None = None,
    image: Mapping[str, str] | None = None,
) -> tuple[Setup, list[Finding]]:
    """The facts that were gathered, and findings about the box; `platform` is where the server is to compute."""
    gpus: Sequence[Gpu] = ()
    found: list[Finding] = []
    unread: dict[str, list[str]] = {}  # checks that could not be made, by reason
    vendor = vendor_of(platform)
    if profile.server.engine in _JUDGED_ENGINES and vendor is not None:
        try:
            gpus = read_gpus(sysfs=box.sys, proc=box.proc, path=box.environ.get("PATH"), platform=platform)
        except TelemetryError as error:
            # If there is no device file either, the check of those reports it.
            if vendor.computes_here(box.dev):
                unread[str(error)] = ["the GPUs and what is in use of their memory"]
    setup = Setup(profile, plan, box, platform, gpus, vllm, image)
    for name, check in _CHECKS[profile.server.engine].items():
        try:
            found += list(check(setup))
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            unread.setdefault(why, []).append(name)
        except (VrampError, *UNDECODABLE) as error:  # such as an argument that is not a number, or a malformed file
            unread.setdefault(str(error), []).append(name)
    return setup, [*(_not_checked(names, why) for why, names in unread.items()), *found]


def _not_checked(names: Sequence[str], why: str) -> Finding:
    return Finding("not-checked", "info", f"{', '.join(names)}: could not be checked", harmless(why))
