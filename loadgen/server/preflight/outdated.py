"""Finds what is old on this box, or too new for this vramp: kernel, drivers, vLLM, vramp itself.

Only what this vramp was built with is known; nothing is looked up online. A component that is absent, or whose version
cannot be interpreted, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta

from packaging.version import InvalidVersion, Version

from loadgen.build import Build, this_build
from loadgen.schema.finding import Finding, Severity
from loadgen.server.vllm.installation import installed_version, python_of, recorded_versions

_OLD_AFTER = timedelta(days=270)  # vLLM has a release every two weeks; by then its flags and metrics have moved


_OLDEST: tuple[tuple[str, str, Severity, str, str], ...] = (
    ("kernel", "5.3", "info", "without pidfds, the end of a server's processes is polled for", "a newer kernel"),
    (
        "rocm",
        "7.0",
        "warns",
        "the amdsmi that comes with vramp loads libraries of ROCm 7 only; older ones are read by the wrapper that ROCm "
        "brings along, or else from the kernel's files, which know less",
        "install ROCm 7, or PYTHONPATH=/opt/rocm/share/amd_smi",
    ),
    (
        "nvidia driver",
        "525.60",
        "warns",
        "no CUDA 12 runs on it, which every vLLM with today's engine needs",
        "install driver 580 or later",
    ),
    (
        "nvidia driver",
        "580",
        "info",
        "a vLLM that was built for CUDA 13 does not start on it; one for CUDA 12 does",
        "install driver 580 or later, or a vLLM for CUDA 12",
    ),
    (
        "vllm",
        "0.10",
        "warns",
        "preflight, log and metrics are read as vLLM 0.10 and later have them; older ones show less, and verdicts that "
        "need their metrics stay silent",
        "install a newer vLLM",
    ),
)
"""A component as in `versions` of the telemetry's examination, or "vllm"; the version below which it is old; why that
matters, and what to do. Only the first row that applies to a component is shown."""


def outdated(versions: Mapping[str, str | None], *, vllm_command: str = "vllm") -> list[Finding]:
    """Findings about these versions, and about the vLLM that `vllm_command` would start."""
    today = datetime.now(UTC).date()
    python = python_of(vllm_command)
    vllm = installed_version(python) if python is not None else None
    return [*_vramp(this_build(), today), *_components({**versions, "vllm": vllm}), *_newer_vllm(vllm)]


def _components(versions: Mapping[str, str | None]) -> Iterator[Finding]:
    reported: set[str] = set()
    for component, oldest, severity, why, fix in _OLDEST:
        version = _release(versions.get(component))
        if version is not None and version < Version(oldest) and component not in reported:
            reported.add(component)
            seen = f"{component} {versions[component]} is older than {oldest}"
            yield Finding(f"old-{component.replace(' ', '-')}", severity, seen, why, fix)


def _newer_vllm(vllm: str | None) -> Iterator[Finding]:
    newest = recorded_versions()[-1]
    version = _release(vllm)
    if version is not None and version > Version(newest):
        why = "its flags are read from the installation, but the preflight rules may be outdated"
        fix = "look for a newer vramp"
        yield Finding("newer-vllm", "info", f"vllm {vllm} is newer than {newest}, the newest known here", why, fix)


def _vramp(build: Build | None, today: date) -> Iterator[Finding]:
    if build is not None and today - date.fromisoformat(build.date) > _OLD_AFTER:
        seen = f"this vramp was built on {build.date}"
        why = "flags, metrics and logs of engines have changed since, and its rules are as old"
        yield Finding("old-vramp", "info", seen, why, "look for a newer release")


def _release(text: str | None) -> Version | None:
    """The leading numbers of a version, without the suffixes that kernels and drivers have."""
    match = re.match(r"\d+(\.\d+)*", text or "")
    try:
        return None if match is None else Version(match[0])
    except InvalidVersion:
        return None
