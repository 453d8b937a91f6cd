"""The whole preflight: finds what would make a run fail or its figures less meaningful, here or on a recorded vLLM.

It only reads, within a fraction of a second once vLLM's flags are cached, and writes nothing but that cache. Each check
is a function; the tables say which checks an engine needs, and what a check has to know. What cannot be checked is
reported with the reason and never prevents the other checks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from loadgen.errors import UNDECODABLE, ServerError, TelemetryError, VrampError
from loadgen.format import harmless
from loadgen.parts import named_box
from loadgen.places import cache_folder
from loadgen.plan.stage import Stage
from loadgen.profile.accept import accept_doubts
from loadgen.profile.schema import Profile, Server
from loadgen.record.reference import NO_CONTAINER, conditions
from loadgen.schema.finding import Finding, Skipped, by_severity, not_checked
from loadgen.schema.samples import GpuStatic
from loadgen.server.preflight import box_connections, box_gpus, box_hardware, box_model, box_system
from loadgen.server.preflight.facts import Box, Setup, facts_of
from loadgen.server.preflight.rules import rule_findings, skipped_rules
from loadgen.server.process.container import inspect_image
from loadgen.server.vllm.command import find_container_program, find_vllm
from loadgen.server.vllm.flags import devices_each, flag_findings
from loadgen.server.vllm.installation import ask_installation, newest_recorded, python_of, recorded_installation
from loadgen.telemetry.gpus_now import GpusNow, read_gpus
from loadgen.vendors import Platform, platform_here, platform_of, vendor_of

NEEDS_BOX = "needs the box itself"
_JUDGED_ENGINES = ("vllm", "docker")  # whose flags and variables are checked


def _box(setup: Setup) -> str | None:
    return NEEDS_BOX if setup.elsewhere else None


def _platform(setup: Setup) -> str | None:
    return None if setup.platform is not None else setup.no_gpus


def _gpus(setup: Setup) -> str | None:
    return None if setup.gpus or setup.platform == "cpu" else setup.no_gpus


def unlike_publication(setup: Setup) -> Iterator[Finding]:
    """What of this box and plan differs from the publication that the profile reproduces."""
    reference, server = setup.profile.reference, setup.server
    if reference is None:
        return
    found = conditions(
        # The file of prompts is read by the run, which says whether it is the published one.
        reference.model_copy(update={"data": ""}),
        models=[server.model] if server.model else [],
        version=setup.vllm,
        image=server.docker.image if server.docker is not None else NO_CONTAINER,
        gpus=[gpu.name for gpu in setup.taken_gpus] or None,
        requests=[stage.requests for stage in setup.plan if stage.concurrency != 0],
        data=None,
        canaries=0,
    )
    differing = [f"{one.name} {one.here}, not {one.published}" for one in found if one.same is False]
    if differing:
        why = f"{reference.source} measured under other conditions; the report names them next to its figures"
        yield Finding("unlike-publication", "info", "; ".join(differing), why, source=reference.source)


def inconclusive_acceptance(setup: Setup) -> Iterator[Finding]:
    accept = setup.profile.accept
    if accept is not None:
        for id_, words in accept_doubts(accept, setup.profile.server.engine).items():
            seen, _, why = words.partition(": ")
            yield Finding(id_, "info", seen, why)


_PORT = (box_system.port, (_box,))
_CLIENT = (
    (box_gpus.orphans, (_box,)),
    (box_connections.open_files, (_box,)),
    (box_connections.local_ports, (_box,)),
    (box_connections.source_addresses, (_box,)),
    (box_system.governor, (_box,)),
    (box_system.boost, (_box,)),
    (box_system.clock, (_box,)),
    (box_connections.server_of_this_box_alone, ()),
    (inconclusive_acceptance, ()),
)
_VLLM = (
    _PORT,
    (box_system.other_platform, (_platform,)),
    (box_system.shared_gpus, (_platform,)),
    (box_model.local_model, (_box,)),
    (box_model.hub_model, (_box,)),
    (box_model.disk_space, (_box,)),
    (box_system.shared_memory, (_box,)),
    (box_gpus.gpu_memory, (_box, _gpus)),
    (box_hardware.enough_devices, (_gpus,)),
    (box_hardware.partitions, (_box, _gpus)),
    (box_hardware.power_caps, (_box, _gpus)),
    (box_hardware.links, (_box, _gpus)),
    (box_hardware.fabric, (_box,)),
    (box_hardware.iommu, (_box,)),
    (box_hardware.access_control, (_box,)),
    (box_hardware.locked_memory, (_box,)),
    (box_gpus.leftover_servers, (_box,)),
    (box_system.numa_balancing, (_box,)),
    (box_system.huge_pages, (_box,)),
    (unlike_publication, ()),
)
_CHECKS = {
    "attach": _CLIENT,
    "none": _CLIENT,
    "simulator": (_PORT, *_CLIENT),
    "vllm": ((box_system.gpu_devices, (_box,)), *_VLLM, *_CLIENT),
    "docker": ((box_system.container, (_box,)), (box_system.container_memory, ()), *_VLLM, *_CLIENT),
}
"""The checks that an engine needs. What a check needs says why it is unknown; None if it is known."""


async def check_profile(
    profile: Profile, plan: Sequence[Stage], *, recorded: str | None = None, box: str | None = None
) -> list[Finding]:
    """All findings, the worst first; what could not be checked is among them.

    With `recorded`, a version such as 0.32.0, or `box`, GPUs such as `8xh100-sxm`, this box is not looked at. Raises
    `ServerError` if that version is not recorded, and `ProfileError` if no such GPUs are known.
    """
    if recorded is not None or box is not None:
        found, version = _flags_elsewhere(profile.server, recorded)
        gpus = () if box is None else _named_gpus(box, profile.server)
        platform = profile.server.platform
        if gpus and platform != "cpu":
            platform = platform_of(gpus[0].arch or "")
        why = "the GPUs are unknown: name them with --box"
        setup = Setup(profile, plan, Box(), platform, gpus, vllm=version, elsewhere=True, no_gpus=why)
    else:
        (found, version), setup = await asyncio.gather(_flags_here(profile.server), _setup_here(profile, plan))
        setup = replace(setup, vllm=version)
    return by_severity([*found, *await asyncio.to_thread(judged, setup)])


def judged(setup: Setup) -> list[Finding]:
    """What checks and rules find, and what they could not judge."""
    found, skipped = box_findings(setup)
    if setup.server.engine in _JUDGED_ENGINES:
        facts = facts_of(setup)
        found += rule_findings(facts)
        skipped += skipped_rules(facts)
    return [*found, *not_checked(skipped)]


async def _setup_here(profile: Profile, plan: Sequence[Stage]) -> Setup:
    """What is to be checked on this box, without the version of vLLM."""
    platform = profile.server.platform or platform_here()
    image, (now, problem) = await asyncio.gather(
        asyncio.to_thread(image_environment, profile.server), _gpus_here(profile.server, platform)
    )
    return Setup(profile, plan, Box(), platform, now.gpus, now.samples, image=image, no_gpus=problem)


async def _gpus_here(server: Server, platform: Platform) -> tuple[GpusNow, str]:
    """The platform's GPUs, or why there are none."""
    vendor = vendor_of(platform)
    if server.engine not in _JUDGED_ENGINES or vendor is None:
        return GpusNow((), {}), "the GPUs are unknown"
    try:
        return await read_gpus(vendor), ""
    except TelemetryError as error:
        return GpusNow((), {}), str(error)


def _named_gpus(box: str, server: Server) -> Sequence[GpuStatic]:
    part, count = named_box(box)
    vendor = vendor_of(platform_of(part.arch))
    assert vendor is not None, "every part is of a vendor"
    name, hbm_bytes = part.word.upper(), part.hbm_mib << 20
    return [
        GpuStatic(n, vendor.name, name, arch=part.arch, engine_index=n, hbm_total_bytes=hbm_bytes)
        for n in range(count or devices_each(server.args) * server.instances)
    ]


def blocked_words(blocking: Sequence[Finding]) -> str:
    lines = [f"  {finding.id}: {finding.seen}\n    -> {finding.fix or finding.why}" for finding in blocking]
    return "\n".join(["the preflight found that the start would fail (--force starts anyway):", *lines])


async def _flags_here(server: Server) -> tuple[list[Finding], str | None]:
    """Check flags against the vLLM that will be started, if one is; returns findings and its version."""
    if server.engine not in _JUDGED_ENGINES:
        return [], None
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


def _flags_elsewhere(server: Server, recorded: str | None) -> tuple[list[Finding], str | None]:
    """Check flags against the version that was named, if any; this machine's environment is not inherited there."""
    installation = None if recorded is None else recorded_installation(recorded)
    if server.engine not in _JUDGED_ENGINES:
        return [], None
    if installation is None:
        return _judged_by_record(server, "--installation was not given: the version of that vLLM is unknown", {})
    return flag_findings(server, installation, {}), installation.version


def _judged_by_record(server: Server, why: str, inherited: Mapping[str, str] = os.environ) -> tuple[list[Finding], str]:
    """Check flags against a recorded version; nothing blocks, because the real one may differ."""
    installation = newest_recorded()
    found = flag_findings(server, installation, inherited)
    doubted = [replace(one, severity="warns") if one.severity == "blocks" else one for one in found]
    seen = f"flags were compared with those of vLLM {installation.version}"
    return [Finding("installation-unknown", "info", seen, why), *doubted], installation.version


def image_environment(server: Server) -> dict[str, str] | None:
    """The variables that a container's image sets; None if there is no container, or its image is not local."""
    if server.docker is None:
        return None
    try:
        program = find_container_program(server, server.docker)
        said = inspect_image(program, server.docker.image, "{{json .Config.Env}}")
        pairs = msgspec.json.decode(said, type=list[str] | None) or []
    except (ServerError, *UNDECODABLE):
        return None  # the container check reports what is wrong, or the start pulls the image
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def box_findings(setup: Setup) -> tuple[list[Finding], list[Skipped]]:
    """What the checks find, and those that could not be made."""
    found: list[Finding] = []
    skipped: list[Skipped] = []
    for find, needs in _CHECKS[setup.server.engine]:
        why = next(filter(None, (need(setup) for need in needs)), None)
        try:
            found += list(find(setup)) if why is None else []
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        except (VrampError, *UNDECODABLE) as error:  # such as an argument that is not a number, or a malformed file
            why = str(error)
        if why is not None:
            skipped.append(Skipped(find.__name__.replace("_", "-"), harmless(why)))
    return found, skipped
