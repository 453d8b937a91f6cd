"""The record of a server that vramp started: a small file that another vramp finds it by, to list it or to stop it.

The guard writes it once the server runs, keeps its tree up to date, and removes it when nothing of the tree is left;
so a record outlives a vramp that was killed, and a server that was left running has one. Invariants: a record is
replaced as a whole, never half written; its processes are known by pid and start time, so that a record which outlived
them (the guard was killed, the machine was restarted) is recognised as stale and nobody else's process is meant.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

import msgspec

from loadgen.errors import ServerError
from loadgen.places import state_folder
from loadgen.server.process.tree import ProcessId, lives


class ServerRecord(msgspec.Struct, frozen=True):
    """One server, as its guard recorded it."""

    guard: ProcessId
    server: ProcessId  # its main process
    tree: tuple[ProcessId, ...]  # all of its processes that were seen last
    port: int
    url: str
    profile: str
    model: str | None
    command: list[str]  # as started, secrets masked
    kill_command: list[str] | None  # what ends it if the processes are not all there is to it: a container
    log_path: str
    started_unix_s: float
    left: bool  # left running on purpose by the vramp that started it

    @property
    def live(self) -> bool:
        """Whether anything of it still runs."""
        return any(lives(process) for process in (self.guard, self.server, *self.tree))


def servers_folder() -> Path:
    """Where records and locks of this machine's servers are; raises `ServerError` if it cannot be made.

    Each machine has its own: a home on the network is shared by machines that cannot see each other's processes.
    """
    machine = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    try:
        return state_folder(f"servers/{machine}")
    except OSError as error:
        raise ServerError(
            f"{error.filename}: cannot keep locks and records of servers there: {error.strerror}; "
            "set XDG_STATE_HOME to a folder that can be written"
        ) from error


def record_path(port: int) -> Path:
    """The record of the server on this port of this machine."""
    return servers_folder() / f"{port}.json"


def read_record(path: Path) -> ServerRecord | None:
    """The record, or None if it is gone or is no record of this version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
