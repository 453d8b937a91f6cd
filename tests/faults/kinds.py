"""The faults: one row each, with what vramp's answer to it has to be.

`strike` does it to a running vramp and says whether there was anything to hit. Exit code 0 is always right: a fault may
come when it no longer matters. `says` is what the message has to match if the fault alone came under load.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

from tests.faults.subject import PORT, Mode, Role, ServerMode, Subject

Moment = Literal["start", "load", "stop"]
Strike = Callable[[Subject, Random], bool]
_ANY_SERVER: tuple[ServerMode, ...] = ("managed", "attached", "relayed", "tls")
KILLED = -signal.SIGKILL
INTERRUPTED = 130


@dataclass(frozen=True)
class Kind:
    name: str
    what: str  # is done, for the table of the manual
    strike: Strike
    codes: frozenset[int] = frozenset()  # besides 0
    says: str = ""  # a pattern, without regard to case
    moments: tuple[Moment, ...] = ("start", "load", "stop")
    modes: tuple[Mode, ...] = ("headless", "cockpit")
    servers: tuple[ServerMode, ...] = _ANY_SERVER
    preload: bool = False
    group: str = ""  # two of one group are no pair
    loses: bool = False  # what is served from the strike on need not be in the record
    needs: tuple[str, ...] = field(default=())  # programs


# Processes.


def _signal(role: Role, numbers: tuple[int, ...], subject: Subject, chance: Random) -> bool:
    """To one process of this role, as soon as there is one."""
    if not subject.wait(lambda: subject.find(role), 6.0):
        return False
    pid = chance.choice(subject.find(role) or [0])
    if not pid:
        return False
    if numbers[0] != signal.SIGKILL:
        subject.wait(lambda: subject.takes_signals(pid, role), 6.0)
        subject.interrupted |= role == "vramp"
    if role in ("vramp", "worker"):
        subject.loses_from_now()
    hit = subject.kill(pid, numbers[0])
    for number in numbers[1:]:
        subject.later(chance.uniform(0.0, 0.5), partial(subject.kill, pid, number))
    return hit


def _pause(role: Role, subject: Subject, chance: Random) -> bool:
    if not subject.wait(lambda: subject.find(role), 6.0):
        return False
    pids = subject.find(role)
    if not pids or not subject.kill(pids[0], signal.SIGSTOP):
        return False
    if role == "worker":
        subject.loses_from_now()
    subject.later(chance.choice([0.3, 1.5, 4.0, 7.0]), partial(subject.kill, pids[0], signal.SIGCONT))
    return True


def _stop(role: Role, subject: Subject, chance: Random) -> bool:
    """For good; a vramp that is stopped can do nothing, so that somebody kills it."""
    if not subject.wait(lambda: subject.find(role), 6.0):
        return False
    pids = subject.find(role)
    if not pids or not subject.kill(pids[0], signal.SIGSTOP):
        return False
    if role in ("vramp", "worker"):
        subject.loses_from_now()
    if role == "vramp":
        subject.later(2.0, partial(subject.kill, pids[0], signal.SIGKILL))
    return True


_NAMED: dict[Role, str] = {
    "guard": r"guard|server",
    "worker": r"worker",
    "server": r"server|engine",
    "engine": "",
    "telemetry": r"telemetry|sim",
    "browser": "",
}
_SIGNALS: dict[str, tuple[int, ...]] = {
    "kill -9": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGHUP": (signal.SIGHUP,),
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}


def _of_processes() -> list[Kind]:
    kinds = []
    for role in ("vramp", "guard", "worker", "server", "engine", "telemetry", "browser"):
        modes: tuple[Mode, ...] = ("web",) if role == "browser" else ("headless", "cockpit", "web")
        servers = _ANY_SERVER if role in ("vramp", "worker", "telemetry") else ("managed",)
        harmless = role in ("engine", "telemetry", "browser")
        common = {"modes": modes, "servers": servers, "group": role}
        for name, numbers in _SIGNALS.items():
            ends = {KILLED} if numbers[0] == signal.SIGKILL else {INTERRUPTED}
            codes = frozenset(ends if role == "vramp" else set() if harmless else {1, 3})
            # The simulator and the guard take a signal as a wish to end; a child that ends at SIGTERM says no more.
            says = _NAMED.get(role, "") if numbers[0] == signal.SIGKILL else ""
            strike = partial(_signal, role, numbers)
            kinds.append(Kind(f"{role}: {name}", f"{name} of the {role}", strike, codes, says, **common))
        some = frozenset() if harmless or role == "vramp" else frozenset({1, 3})
        kinds.append(Kind(f"{role}: pause", "SIGSTOP, SIGCONT after 0.3 to 7 s", partial(_pause, role), some, **common))
        codes = frozenset({KILLED}) if role == "vramp" else some
        says = r"worker \d" if role == "worker" else ""
        kinds.append(Kind(f"{role}: SIGSTOP", "SIGSTOP for good", partial(_stop, role), codes, says, **common))
    return kinds


# The terminal, or whoever reads the output.


def _close_output(subject: Subject, _: Random) -> bool:
    subject.wait(lambda: subject.takes_signals(subject.pid, "vramp"), 6.0)
    subject.keys_arrive = False
    subject.loses_from_now()  # it ends the run
    subject.close_output()
    return True


def _leave_unread(subject: Subject, chance: Random) -> bool:
    subject.keys_arrive = subject.reads = False
    if chance.random() < 0.5:
        subject.later(3.0, lambda: setattr(subject, "reads", True))
    return True


def _shrink(subject: Subject, chance: Random) -> bool:
    subject.resize(1, 1)
    if chance.random() < 0.5:
        subject.later(1.0, lambda: subject.resize(chance.randint(1, 250), chance.randint(1, 80)))
    return True


# Disks.


def _full(subject: Subject, chance: Random) -> bool:
    subject.loses_from_now()
    filler = subject.folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
        try:
            while True:
                file.write(bytes(64))
        except OSError:
            pass
    if chance.random() < 0.5:
        subject.later(2.0, filler.unlink)
    return True


def _no_inodes(subject: Subject, chance: Random) -> bool:
    subject.loses_from_now()
    folder = subject.folder / "filler-many"
    folder.mkdir(exist_ok=True)
    try:
        for number in range(10_000):
            (folder / str(number)).touch()
    except OSError:
        pass
    if chance.random() < 0.5:
        subject.later(2.0, partial(shutil.rmtree, folder, ignore_errors=True))
    return True


def _read_only(subject: Subject, _: Random) -> bool:
    """For whatever is opened from now on; files that are open go on, as after `mount -o remount,ro` by force."""
    subject.loses_from_now()
    work = str(subject.folder / "work")
    subprocess.run(["mount", "--bind", work, work], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", work], check=True)
    return True


def _remove(subject: Subject, chance: Random) -> bool:
    subject.loses_from_now()
    subject.removed = True
    folder = subject.run_folder
    if chance.random() < 0.5 or folder is None:
        folder = subject.folder / "work" / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _break(write: int, fsync: int, subject: Subject, _: Random) -> bool:
    if write:
        subject.loses_from_now()
    subject.break_calls(write=write, fsync=fsync)
    return True


# Limits.


def _no_descriptors(role: Role, subject: Subject, chance: Random) -> bool:
    """As many descriptors as it has, and a few more or none."""
    if not subject.wait(lambda: subject.find(role), 6.0):
        return False
    try:
        pid = chance.choice(subject.find(role))
        used = len(os.listdir(f"/proc/{pid}/fd")) + chance.choice([0, 0, 2, 5])
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    except (OSError, IndexError):
        return False
    if chance.random() < 0.5:
        subject.later(2.0, partial(_lift_descriptors, pid, hard))
    subject.loses_from_now()
    return True


def _lift_descriptors(pid: int, hard: int) -> None:
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
    except OSError:
        pass


def _no_memory(role: Role, subject: Subject, _: Random) -> bool:
    """The kernel ends whoever asks for a page more: a control group of 1 MiB."""
    if not subject.wait(lambda: subject.find(role), 6.0):
        return False
    group = subject.control_group("memory", limit_in_bytes=1 << 20)
    subject.loses_from_now()
    for pid in subject.find(role):
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
    return True


def _no_address_space(role: Role, subject: Subject, chance: Random) -> bool:
    """Every allocation that needs the kernel fails from now on: RLIMIT_AS."""
    if not subject.wait(lambda: subject.find(role), 6.0):
        return False
    subject.wait(lambda: subject.takes_signals((subject.find(role) or [0])[0], role), 6.0)
    subject.loses_from_now()
    try:
        pid = chance.choice(subject.find(role))
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(
            pid, resource.RLIMIT_AS, (size + chance.choice([0, 1 << 20, 16 << 20]), resource.RLIM_INFINITY)
        )
    except (OSError, IndexError):
        return False
    return True


def _no_pids(subject: Subject, chance: Random) -> bool:
    group = subject.control_group("pids")
    try:
        for pid in subject.find("vramp"):
            (group / "cgroup.procs").write_text(str(pid))
        now = int((group / "pids.current").read_text())
        (group / "pids.max").write_text(str(now + chance.choice([0, 0, 1, 3])))
    except OSError:
        return False
    if chance.random() < 0.5:
        subject.later(2.0, lambda: (group / "pids.max").write_text("max"))
    return True


# The clock.


def _step_wall(subject: Subject, chance: Random) -> bool:
    ahead_s = chance.choice([3600.0, -3600.0, 5.0, -0.5])
    subject.step_clock(realtime_s=ahead_s)
    if chance.random() < 0.5:
        subject.later(1.0, lambda: subject.step_clock(realtime_s=0.0))
    return True


def _step_monotonic(subject: Subject, chance: Random) -> bool:
    """As after the whole machine was paused."""
    subject.loses_from_now()  # the time of streams and stages is over
    subject.step_clock(monotonic_s=chance.choice([2.0, 20.0, 300.0]))
    return True


# The port.


def _steal_port(subject: Subject, chance: Random) -> bool:
    """Listen on it as soon as the guard is there, before its server is."""
    if not subject.wait(lambda: subject.find("guard"), 6.0):
        return False
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        thief.bind(("127.0.0.1", PORT))
        thief.listen(128)
    except OSError:
        return False
    subject.keep(thief)
    if chance.random() < 0.5:
        threading.Thread(target=_answer_garbage, args=(thief,), daemon=True).start()
    return True


def _answer_garbage(thief: socket.socket) -> None:
    while True:
        try:
            there, _ = thief.accept()
            there.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")
            there.close()
        except OSError:
            return


def _second_vramp(subject: Subject, _: Random) -> bool:
    """Another one with the same port, started at the same instant."""
    subject.rival = subject.twin()
    return True


# The server and the way to it.


def _simulated(texts: tuple[str, ...], subject: Subject, chance: Random) -> bool:
    if not subject.faults(chance.choice(texts)):
        return False
    if chance.random() < 0.3:
        subject.later(2.0, subject.faults)
    return True


def _trouble(name: str, subject: Subject, chance: Random) -> bool:
    assert subject.relay is not None
    subject.loses_from_now()
    subject.relay.trouble = name
    if chance.random() < 0.5:
        relay = subject.relay
        subject.later(2.0, lambda: setattr(relay, "trouble", ""))
    return True


def _half_open(subject: Subject, chance: Random) -> bool:
    """Nothing reaches the server any more, and nobody is told."""
    subject.loses_from_now()
    rule = ["INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP"]
    subprocess.run(["iptables", "-w", "-A", *rule], check=True)
    if chance.random() < 0.5:
        subject.later(3.0, lambda: subprocess.run(["iptables", "-w", "-D", *rule], check=True))
    return True


def _restart(subject: Subject, chance: Random) -> bool:
    """The server that vramp only attached to ends, and comes again."""
    if subject.engine is None:
        return False
    subject.loses_from_now()
    subject.engine.kill()
    subject.engine.wait()
    if chance.random() < 0.7:
        subject.later(chance.uniform(0.0, 1.5), subject.start_engine)
    return True


_AT_THE_START = frozenset({1, 2, 3})  # 2: there is no place for the result, so that nothing is started
_ANY = frozenset({1, 3})

KINDS: tuple[Kind, ...] = (
    *_of_processes(),
    Kind(
        "output: closed",
        "the terminal closes, or who read the pipe has gone",
        _close_output,
        frozenset({INTERRUPTED, 1}),
    ),
    Kind("output: unread", "nobody reads the terminal or the pipe", _leave_unread, frozenset({INTERRUPTED, 1})),
    Kind("output: 1x1", "the terminal shrinks to one cell", _shrink, modes=("cockpit",)),
    Kind("disk: full", "no block is left", _full, _AT_THE_START, r"no space", group="disk"),
    Kind("disk: no inodes", "no file can be made", _no_inodes, _AT_THE_START, r"no space", group="disk"),
    Kind(
        "disk: read-only",
        "what is opened from now on is read-only",
        _read_only,
        _AT_THE_START,
        r"read-only",
        group="disk",
    ),
    Kind("disk: folder removed", "the run's folder, or all runs", _remove, _AT_THE_START, group="disk"),
    Kind(
        "disk: write fails",
        "every write to a file fails (EROFS)",
        partial(_break, errno.EROFS, 0),
        _AT_THE_START,
        r"read-only",
        preload=True,
        group="disk",
    ),
    Kind(
        "disk: fsync fails",
        "every fsync fails (EIO)",
        partial(_break, 0, errno.EIO),
        _AT_THE_START,
        preload=True,
        group="disk",
    ),
    Kind(
        "limit: descriptors",
        "vramp may open no more",
        partial(_no_descriptors, "vramp"),
        _ANY,
        r"too many open files|cannot",
        group="limit",
    ),
    Kind(
        "limit: worker's descriptors",
        "a worker may open no more",
        partial(_no_descriptors, "worker"),
        _ANY,
        group="limit",
    ),
    Kind(
        "limit: vramp's memory",
        "a control group of 1 MiB",
        partial(_no_memory, "vramp"),
        frozenset({KILLED}),
        group="limit",
    ),
    Kind(
        "limit: workers' memory",
        "a control group of 1 MiB",
        partial(_no_memory, "worker"),
        _ANY,
        r"worker",
        group="limit",
    ),
    Kind(
        "limit: server's memory",
        "a control group of 1 MiB",
        partial(_no_memory, "server"),
        _ANY,
        r"server",
        servers=("managed",),
        group="limit",
    ),
    Kind("limit: vramp's address space", "RLIMIT_AS", partial(_no_address_space, "vramp"), _ANY, group="limit"),
    Kind("limit: worker's address space", "RLIMIT_AS", partial(_no_address_space, "worker"), _ANY, group="limit"),
    Kind("limit: pids", "no process or thread can be started", _no_pids, _ANY, group="limit"),
    Kind("clock: wall", "the time of day is stepped", _step_wall, _ANY, preload=True, group="clock"),
    Kind("clock: monotonic", "the machine was paused", _step_monotonic, _ANY, preload=True, group="clock"),
    Kind(
        "port: stolen",
        "another listens between check and start",
        _steal_port,
        frozenset({3}),
        r"port|in use",
        ("start",),
        servers=("managed",),
        group="port",
    ),
    Kind(
        "port: two vramps",
        "two at the same instant",
        _second_vramp,
        frozenset({3, 1}),
        r"",
        ("start",),
        ("headless",),
        ("managed",),
        group="port",
    ),
    *(
        Kind(
            f"server: {name}",
            what,
            partial(_simulated, texts),
            _ANY,
            says,
            ("start", "load"),
            servers=("managed", "attached"),
            group="server",
        )
        for name, what, says, texts in (
            ("reset", "connections are reset", "reset|connection", ("reset:after=3", "reset:share=0.3,after=2")),
            ("429", "status 429", "429", ("http_429", "http_429:share=0.5")),
            ("garbage", "events that are not JSON", "json|event|invalid|bad", ("garbage", "garbage:share=0.3")),
            ("not HTTP", "answers that are not HTTP", "http", ("not_http", "not_http:share=0.3")),
            (
                "silent",
                "not a byte, or no more",
                "stall|no event|timeout",
                ("silent:share=0.3", "stall:share=0.5,after=3", "stall:after=0"),
            ),
            (
                "truncated",
                "the stream ends inside a chunk",
                "closed|end|incomplete|truncat",
                ("truncate", "early_end:share=0.4"),
            ),
        )
    ),
    *(
        Kind(
            f"server: {name}",
            what,
            partial(_trouble, name),
            _ANY,
            says,
            ("load",),
            servers=("tls",) if "TLS" in name else ("relayed",),
            group="server",
        )
        for name, what, says in (
            ("slow headers", "a byte every 0.1 s", ""),
            ("endless event", "an event without an end", ""),
            ("wrong length", "a body shorter than promised", ""),
            ("compressed", "gzip, which nobody asked for", ""),
            ("redirect", "307", ""),
            ("broken TLS", "bytes that are no record", ""),
        )
    ),
    Kind(
        "server: half-open",
        "packets to it vanish",
        _half_open,
        _ANY,
        "",
        servers=("managed", "attached"),
        group="server",
        needs=("iptables",),
    ),
    Kind(
        "server: restarted",
        "killed, and mostly started again",
        _restart,
        _ANY,
        "",
        ("load", "stop"),
        servers=("attached",),
        group="server",
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
