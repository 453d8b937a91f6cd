"""How a server ended, as values that a screen, a message and a result can use."""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from loadgen.server.process.tree import ProcessInfo

NOT_ASKED = "not checked"


@dataclass(frozen=True, slots=True)
class ServerExit:
    """How the server's main process ended; both None if its guard was lost, so that nobody could see it."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal == signals.SIGKILL:
            return "was killed by SIGKILL (by somebody, or by the kernel for want of memory)"
        if self.signal is not None:
            return f"was killed by {signals.Signals(self.signal).name}"
        if self.code is None:
            return "lost its guard process and was killed"
        return f"ended with exit code {self.code}"


@dataclass(frozen=True, slots=True)
class ProcessName:
    """A process of the server's tree, for a person."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class StopReport:
    """What it took to end the server's tree; `left` is empty unless the kernel could not end a process."""

    elapsed_s: float
    killed: tuple[ProcessName, ...] = ()
    left: tuple[ProcessName, ...] = ()
    problem: str = ""  # what else went wrong, such as a container that could not be removed
    gpu_memory: str = NOT_ASKED
    """Whether the GPUs' memory is back at its level before the start, who holds it if not, or why nobody knows."""

    @property
    def clean(self) -> bool:
        """Whether nothing is known to be left."""
        return not self.left and not self.problem

    @property
    def sentence(self) -> str:
        """All of it, for a screen."""
        parts = [f"stopped in {self.elapsed_s:.1f} s"]
        if self.killed:
            parts.append(f"had to be killed: {_listed(self.killed)}")
        parts.append(f"could not be ended: {_listed(self.left)}" if self.left else "no process left")
        parts += [self.problem] if self.problem else []
        parts += [f"GPU memory: {self.gpu_memory}"] if self.gpu_memory != NOT_ASKED else []
        return "; ".join(parts)


def names_from_guard(processes: Iterable[dict[str, Any]]) -> tuple[ProcessName, ...]:
    """Processes as the guard's lines describe them."""
    return tuple(ProcessName(entry["pid"], entry["name"]) for entry in processes)


def names_of(processes: Iterable[ProcessInfo]) -> tuple[ProcessName, ...]:
    """Processes as they were seen from here."""
    return tuple(ProcessName(info.id.pid, info.name) for info in processes)


def _listed(processes: Iterable[ProcessName]) -> str:
    return ", ".join(f"{process.name} ({process.pid})" for process in processes)
