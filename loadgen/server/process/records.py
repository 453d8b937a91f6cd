"""The servers that vramp started on this machine, found by their records and by the mark on all their processes.

A record is a small file by which another vramp finds a server, to list or stop it. The guard writes it, keeps its
process tree up to date, and removes it when nothing of the server is left; so it outlives vramp. The mark is a variable
in the environment of every process of a server, and its container's label: it identifies what is left if vramp and
guard were killed together, with or without a record. Invariants: nothing is identified by name; processes are
identified by pid and start time, which mean nothing after another boot or in another pid namespace; a record is
removed only when nothing of its server is left, including its container; records that this version cannot read stay.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.masking import masked_command
from loadgen.places import state_folder
from loadgen.server.process.container import Container, container_ids, labels_of_containers
from loadgen.server.process.tree import ProcessId, all_processes, command_line, lives, process_info

VARIABLE = "VRAMP_SERVER"
_PROC = Path("/proc")
_SHOWN = 3  # how many processes of a server are named
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MARK = re.compile(
    r"(?P<token>[0-9a-f]{16}):(?P<port>\d{1,5}):(?P<pid>\d{1,10})\.(?P<start_ticks>\d{1,19})"
    r":(?P<boot>[0-9a-f-]*):(?P<namespace>\d*):(?P<owner>[0-9a-f]{12})"
)


class ServerMark(msgspec.Struct, frozen=True):
    """Which server a process or container belongs to, in a form that fits a variable and a label."""

    token: str  # unique
    port: int
    guard: ProcessId
    boot: str
    namespace: str  # the pid namespace of the guard
    owner: str  # user and records folder: if either differs, it belongs to another vramp

    def __str__(self) -> str:
        guard = f"{self.guard.pid}.{self.guard.start_ticks}"
        return ":".join((self.token, str(self.port), guard, self.boot, self.namespace, self.owner))

    @property
    def is_here(self) -> bool:
        """Whether its pids are valid here: same boot, same pid namespace."""
        return (self.boot, self.namespace) == _here()

    @property
    def guarded(self) -> bool:
        return self.is_here and lives(self.guard)


def new_mark(port: int, guard: ProcessId) -> ServerMark:
    """A mark for a new server; raises `ServerError` if its processes could not be recognised after a reboot."""
    try:
        boot, namespace = _here()
    except OSError as error:
        raise ServerError(
            f"{error.filename}: {error.strerror}; without it no server can be started here, but --url attaches to one"
        ) from error
    return ServerMark(secrets.token_hex(8), port, guard, boot, namespace, _owner())


def read_mark(text: str) -> ServerMark | None:
    found = _MARK.fullmatch(text)
    if found is None:
        return None
    guard = ProcessId(int(found["pid"]), int(found["start_ticks"]))
    return ServerMark(found["token"], int(found["port"]), guard, found["boot"], found["namespace"], found["owner"])


@cache
def _here() -> tuple[str, str]:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return boot, _namespace("self")


def _namespace(pid: int | str) -> str:
    return str((_PROC / str(pid) / "ns/pid").readlink()).removeprefix("pid:[").removesuffix("]")


def _owner() -> str:
    return hashlib.sha256(f"{os.geteuid()} {servers_folder()}".encode("utf-8", "surrogateescape")).hexdigest()[:12]


class ServerRecord(msgspec.Struct, frozen=True):
    mark: ServerMark
    server: ProcessId  # its main process
    tree: tuple[ProcessId, ...]  # all its processes, as last seen
    url: str
    profile: str
    model: str | None
    command: list[str]  # as started, secrets masked
    container: Container | None
    log_path: str
    started_unix_s: float
    left: bool  # left running on purpose by the vramp that started it

    @property
    def port(self) -> int:
        return self.mark.port

    @property
    def orphaned(self) -> bool:
        """Whether its guard is gone, so that it runs until it is stopped by hand."""
        return not self.mark.guarded


def servers_folder() -> Path:
    """The folder of this machine's records; raises `ServerError` if it cannot be created or trusted."""
    # A home on the network is shared by machines that cannot see each other's processes.
    machine = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    try:
        return state_folder(f"servers/{machine}")
    except OSError as error:
        why = f"{error.strerror}{', or' if '; ' in str(error.strerror) else ';'}"
        raise ServerError(
            f"{error.filename}: cannot keep records of servers there: {why} "
            "set XDG_STATE_HOME to a folder of your own that can be written"
        ) from error


def record_path(mark: ServerMark) -> Path:
    return servers_folder() / f"{mark.port}-{mark.token}.json"


def forget(mark: ServerMark) -> None:
    """Remove the record of a server of which nothing is left."""
    path = record_path(mark)
    path.unlink(missing_ok=True)
    id_file(path).unlink(missing_ok=True)


def id_file(record: Path) -> Path:
    """The path to which the client of a container writes the container's id."""
    return record.with_suffix(".cid")


def orphan_words(record: ServerRecord) -> str:
    profile = f", profile {record.profile}" if record.profile else ""
    return f"left behind on port {record.port}{profile}: {remains(record)}"


def remains(record: ServerRecord) -> str:
    """Describe what is left of a server."""
    infos = [info for info in map(process_info, (process.pid for process in record.tree)) if info is not None]
    what = [f"pid {info.id.pid} ({info.name})" for info in infos[:_SHOWN]]
    what += [f"{len(infos) - _SHOWN} more"] if len(infos) > _SHOWN else []
    what += ["its container"] if record.container is not None else []
    return ", ".join(what)


def list_servers() -> list[ServerRecord]:
    servers, _ = find_servers()
    return servers


def find_servers(programs: Iterable[str] = ()) -> tuple[list[ServerRecord], list[str]]:
    """The servers started by vramp of which anything is left, and what could not be checked, in words.

    Removes the records of the others. `programs` (docker, podman) are also asked for containers without a record.
    Blocks, for seconds if a daemon hangs.
    """
    marked = _marked_processes()
    found: dict[ServerMark, ServerRecord] = {}
    doubts: list[str] = []
    for path in sorted(servers_folder().glob("*.json")):
        record = _read(path)
        if not isinstance(record, ServerRecord):
            doubts += filter(None, [record])
            continue
        known = dict.fromkeys((record.server, *record.tree, *marked.pop(record.mark, [])))
        tree = tuple(one for one in known if record.mark.is_here and lives(one))
        record = msgspec.structs.replace(record, tree=tree)
        left, doubt = _left_of(record)
        if doubt:
            doubts.append(doubt)
        if left:
            found[record.mark] = record
        elif not doubt:
            forget(record.mark)
    found |= {mark: _unrecorded(mark, processes) for mark, processes in marked.items()}
    for program in programs:
        try:
            _add_containers(found, program)
        except ServerError as error:
            doubts.append(f"containers that vramp left cannot be looked for: {error}")
    return sorted(found.values(), key=lambda record: record.port), doubts


def _read(path: Path) -> ServerRecord | str | None:
    """The record, or why it cannot be read; None if its guard has just removed it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerRecord)
    except FileNotFoundError:
        return None
    except UNDECODABLE:
        return (
            f"{path}: written by another version of vramp; stop its server with that version, or remove the file if "
            "there is no such server"
        )
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"


def _left_of(record: ServerRecord) -> tuple[bool, str]:
    """Whether anything of a server is left, and what could not be checked."""
    mark = record.mark
    if mark.boot == _here()[0] and not mark.is_here:
        where = "started in another container (pid namespace), and can be ended only there"
        return False, f"port {mark.port}: {where}; if that is gone, remove {record_path(mark)}"
    if mark.guarded or record.tree:
        return True, ""
    try:
        return record.container is not None and bool(container_ids(record.container)), ""
    except ServerError as error:
        return True, f"port {mark.port}: its container may still run: {error}"


def _marked_processes() -> dict[ServerMark, list[ProcessId]]:
    """The living processes of this vramp's servers, oldest first."""
    processes, owner = all_processes(), _owner()
    marks = {pid: mark for pid in processes if (mark := _mark_of(pid, owner)) is not None}
    found: dict[ServerMark, list[ProcessId]] = {}
    for pid, mark in marks.items():
        info = processes[pid]
        # A server has separate sessions. One that shares its session with an unmarked process was started by hand in a
        # copied environment. Session 0 lies outside this pid namespace: a container's shell.
        alone = info.session in marks or (info.session != 0 and not _has_environment(info.session))
        if info.alive and alone and info.id.start_ticks >= mark.guard.start_ticks:
            found.setdefault(mark, []).append(info.id)
    return {mark: sorted(ids, key=lambda one: one.start_ticks) for mark, ids in found.items()}


def _has_environment(pid: int) -> bool:
    """Whether a process has an environment; False if it is gone or a zombie."""
    try:
        return bool((_PROC / str(pid) / "environ").read_bytes())
    except PermissionError:
        return True
    except OSError:
        return False


def _mark_of(pid: int, owner: str) -> ServerMark | None:
    folder = _PROC / str(pid)
    try:
        if folder.stat().st_uid != os.geteuid():
            return None
        _, _, rest = (b"\0" + (folder / "environ").read_bytes()).partition(f"\0{VARIABLE}=".encode())
        mark = read_mark(rest.partition(b"\0")[0].decode("utf-8", "replace"))
        ours = mark is not None and mark.is_here and mark.owner == owner and _namespace(pid) == mark.namespace
    except OSError:  # gone, or no permission
        return None
    return mark if ours else None


def _unrecorded(mark: ServerMark, processes: Sequence[ProcessId] = ()) -> ServerRecord:
    first, *_ = processes or [mark.guard]
    return ServerRecord(
        mark=mark,
        server=first,
        tree=tuple(processes),
        url=f"http://127.0.0.1:{mark.port}",
        profile="",
        model=None,
        command=masked_command(command_line(first.pid, _PROC) if processes else []),
        container=None,
        log_path="",
        started_unix_s=time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + first.start_ticks / _TICKS_PER_S,
        left=False,
    )


def _add_containers(found: dict[ServerMark, ServerRecord], program: str) -> None:
    """Add containers that neither a guard nor a record knows."""
    for label in labels_of_containers(program):
        mark = read_mark(label)
        elsewhere = mark is not None and mark.boot == _here()[0] and not mark.is_here
        if mark is None or mark.owner != _owner() or elsewhere or mark.guarded:
            continue
        container = Container(program, str(id_file(record_path(mark))), label, {})
        record = found.get(mark)
        if (record is None or record.container is None) and container_ids(container):
            found[mark] = msgspec.structs.replace(record or _unrecorded(mark), container=container)
