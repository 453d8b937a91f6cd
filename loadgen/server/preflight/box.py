"""The preflight of the box: what of this machine would make a run fail, or make its numbers mean less.

It reads only, within a fraction of a second, and asks no daemon. Each check is a function; the tables say which checks
an engine needs. A check that cannot read what it needs is reported as such and never ends the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loadgen.errors import TelemetryError, VrampError
from loadgen.metrics.journal import Finding
from loadgen.plan import Stage
from loadgen.profile import Profile
from loadgen.server.preflight import box_devices, box_kernel, box_memory, box_model, leftovers
from loadgen.server.preflight.box_view import Box, Setup, platform_of_box
from loadgen.server.preflight.facts import Platform
from loadgen.server.process.gpu_memory import GpuMemory, read_gpu_memory
from loadgen.text import harmless

__all__ = ["Box", "box_findings", "gpus_of_box", "platform_of_box"]

Check = Callable[[Setup], Iterator[Finding]]

_CLIENT: dict[str, Check] = {
    "the limit of open files": box_kernel.open_files,
    "the CPU governor": box_kernel.governor,
    "the clock": box_kernel.clock,
}
_STARTED: dict[str, Check] = {"the port": box_devices.port}
_VLLM: dict[str, Check] = {
    "the container": box_devices.container,
    "the GPU's device files": box_devices.gpu_devices,
    "the devices of the instances": box_devices.shared_gpus,
    "the model's folder": box_model.local_model,
    "the model in the hub's cache": box_model.hub_model,
    "free disk space": box_model.disk_space,
    "shared memory": box_devices.shared_memory,
    "the GPU's memory": box_memory.gpu_memory,
    "other vLLM processes": leftovers.leftover_findings,
    "NUMA balancing": box_kernel.numa_balancing,
    "huge pages": box_kernel.huge_pages,
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
