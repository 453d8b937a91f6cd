"""What the checks of the box look at: the places that they read, and the run that is planned.

Everything that a check reads from the machine it reaches through `Box`, so that it can be shown another machine.
Checks only read; what they cannot read raises `OSError` or a `VrampError`, and `check` says so instead of judging.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.plan.stage import Stage
from loadgen.profile.schema import Profile, Server
from loadgen.server.preflight.facts import environment_of
from loadgen.server.process.gpu_memory import GpuMemory
from loadgen.vendors import Platform


def _open_files() -> tuple[int, int]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return soft, hard


def _clock_synchronised() -> bool | None:
    """None where the kernel does not say."""
    timex = (ctypes.c_long * 64)()  # larger than `struct timex` everywhere; its first word says what to change: nothing
    status, unsynchronised = 5, 0x40
    if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
        return None
    return timex[status] & unsynchronised == 0


@dataclass(frozen=True, slots=True)
class Box:
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    home: Path = field(default_factory=Path.home)
    open_files: tuple[int, int] = field(default_factory=_open_files)  # soft and hard limit of a process
    clock_synchronised: bool | None = field(default_factory=_clock_synchronised)
    """By the kernel's own account (NTP or PTP); None is unknown."""

    def device(self, path: str) -> Path:
        return self.dev / path.removeprefix("/dev").strip("/")


@dataclass(frozen=True, slots=True)
class Setup:
    profile: Profile
    plan: Sequence[Stage]
    box: Box
    platform: Platform
    gpus: Sequence[GpuMemory] = ()
    """What was in use at the time of the check; empty if nothing is known, or no GPU is meant."""

    @property
    def server(self) -> Server:
        return self.profile.server

    @property
    def environment(self) -> Mapping[str, str]:
        return environment_of(self.server, self.box.environ)


def read_setting(path: Path) -> str | None:
    """A setting of the kernel, None if this kernel does not have it; raises `OSError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


def command_of(box: Box, pid: int) -> list[str]:
    """The words of a process's command line; empty if it is gone, is the kernel's, or cannot be seen."""
    try:
        data = (box.proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in data.split(b"\0") if word]
