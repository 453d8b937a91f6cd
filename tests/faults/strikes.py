"""How each fault is done to a vramp that runs: every function says whether there was anything to hit."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import socket
import subprocess
import threading
from functools import partial
from pathlib import Path
from random import Random

from tests.faults.subject import PORT, Role, Subject

# Processes.


def send(role: Role, numbers: tuple[int, ...], subject: Subject, chance: Random) -> bool:
    """To one process of this role, as soon as there is one."""
    if not subject.wait(lambda: subject.find(role), 20.0):
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


def pause(role: Role, subject: Subject, chance: Random) -> bool:
    if not subject.wait(lambda: subject.find(role), 20.0):
        return False
    pids = subject.find(role)
    if not pids or not subject.kill(pids[0], signal.SIGSTOP):
        return False
    if role == "worker":
        subject.loses_from_now()
    subject.later(chance.choice([0.3, 1.5, 4.0, 7.0]), partial(subject.kill, pids[0], signal.SIGCONT))
    return True


def stop(role: Role, subject: Subject, chance: Random) -> bool:
    """For good; a vramp that is stopped can do nothing, so that somebody kills it."""
    if not subject.wait(lambda: subject.find(role), 20.0):
        return False
    pids = subject.find(role)
    if not pids or not subject.kill(pids[0], signal.SIGSTOP):
        return False
    if role in ("vramp", "worker"):
        subject.loses_from_now()
    if role == "vramp":
        subject.later(2.0, partial(subject.kill, pids[0], signal.SIGKILL))
    return True


# The terminal, or whoever reads the output.


def close_output(subject: Subject, _: Random) -> bool:
    subject.wait(lambda: subject.takes_signals(subject.pid, "vramp"), 6.0)
    subject.keys_arrive = False
    subject.loses_from_now()  # it ends the run
    subject.close_output()
    return True


def leave_unread(subject: Subject, chance: Random) -> bool:
    subject.keys_arrive = subject.reads = False
    if chance.random() < 0.5:
        subject.later(3.0, lambda: setattr(subject, "reads", True))
    return True


def shrink(subject: Subject, chance: Random) -> bool:
    subject.resize(1, 1)
    if chance.random() < 0.5:
        subject.later(1.0, lambda: subject.resize(chance.randint(1, 250), chance.randint(1, 80)))
    return True


# Disks.


def fill_disk(subject: Subject, chance: Random) -> bool:
    subject.loses_from_now()
    filler = subject.folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 64):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    if chance.random() < 0.5:
        subject.later(2.0, filler.unlink)
    return True


def take_inodes(subject: Subject, chance: Random) -> bool:
    subject.loses_from_now()
    folder = subject.folder / "filler-many"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        for number in range(10_000):
            (folder / str(number)).touch()
    if chance.random() < 0.5:
        subject.later(2.0, partial(shutil.rmtree, folder, ignore_errors=True))
    return True


def make_read_only(subject: Subject, _: Random) -> bool:
    """For whatever is opened from now on; files that are open go on, as after `mount -o remount,ro` by force."""
    subject.loses_from_now()
    work = str(subject.folder / "work")
    subprocess.run(["mount", "--bind", work, work], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", work], check=True)
    return True


def remove_folder(subject: Subject, chance: Random) -> bool:
    subject.loses_from_now()
    subject.removed = True
    folder = subject.run_folder
    if chance.random() < 0.5 or folder is None:
        folder = subject.folder / "work" / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    return True


def break_calls(write: int, fsync: int, subject: Subject, _: Random) -> bool:
    if write:
        subject.loses_from_now()
    subject.break_calls(write=write, fsync=fsync)
    return True


# Limits.


def _is_loaded(role: Role, subject: Subject) -> bool:
    """Whether it is there, after a wait until it is, and for Python to have loaded it."""
    if not subject.wait(lambda: subject.find(role), 20.0):
        return False
    subject.wait(lambda: subject.takes_signals((subject.find(role) or [0])[0], role), 6.0)
    return True


def take_descriptors(role: Role, subject: Subject, chance: Random) -> bool:
    """As many descriptors as it has, and a few more or none."""
    if not _is_loaded(role, subject):
        return False
    try:
        pid = chance.choice(subject.find(role))
        used = len(list(Path(f"/proc/{pid}/fd").iterdir())) + chance.choice([0, 0, 2, 5])
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    except (OSError, IndexError):
        return False
    if chance.random() < 0.5:
        subject.later(2.0, partial(_lift_descriptors, pid, hard))
    subject.loses_from_now()
    return True


def _lift_descriptors(pid: int, hard: int) -> None:
    with contextlib.suppress(OSError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


def take_memory(role: Role, subject: Subject, _: Random) -> bool:
    """The kernel ends whoever asks for a page more: a control group of 1 MiB."""
    if not subject.wait(lambda: subject.find(role), 20.0):
        return False
    group = subject.control_group("memory", limit_in_bytes=1 << 20)
    subject.loses_from_now()
    for pid in subject.find(role):
        try:
            (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
    return True


def take_address_space(role: Role, subject: Subject, chance: Random) -> bool:
    """Every allocation that needs the kernel fails from now on: RLIMIT_AS."""
    if not _is_loaded(role, subject):
        return False
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


def take_pids(subject: Subject, chance: Random) -> bool:
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


def step_wall(subject: Subject, chance: Random) -> bool:
    ahead_s = chance.choice([3600.0, -3600.0, 5.0, -0.5])
    subject.step_clock(realtime_s=ahead_s)
    if chance.random() < 0.5:
        subject.later(1.0, lambda: subject.step_clock(realtime_s=0.0))
    return True


def step_monotonic(subject: Subject, chance: Random) -> bool:
    """As after the whole machine was paused."""
    subject.loses_from_now()  # the time of streams and stages is over
    subject.step_clock(monotonic_s=chance.choice([2.0, 20.0, 300.0]))
    return True


# The port.


def steal_port(subject: Subject, chance: Random) -> bool:
    """Listen on it as soon as the guard is there, before its server is."""
    if not subject.wait(lambda: subject.find("guard"), 20.0):
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


def start_twin(subject: Subject, _: Random) -> bool:
    """Another one with the same port, started at the same instant."""
    subject.rival = subject.twin()
    return True


# The server and the way to it.


def misbehave(texts: tuple[str, ...], subject: Subject, chance: Random) -> bool:
    if not subject.faults(chance.choice(texts)):
        return False
    if chance.random() < 0.3:
        subject.later(2.0, subject.faults)
    return True


def spoil(name: str, subject: Subject, chance: Random) -> bool:
    assert subject.relay is not None
    subject.loses_from_now()
    subject.relay.trouble = name
    if chance.random() < 0.5:
        relay = subject.relay
        subject.later(2.0, lambda: setattr(relay, "trouble", ""))
    return True


def drop_packets(subject: Subject, chance: Random) -> bool:
    """Nothing reaches the server any more, and nobody learns of it."""
    subject.loses_from_now()
    rule = ["INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP"]
    subprocess.run(["iptables", "-w", "-A", *rule], check=True)
    if chance.random() < 0.5:
        subject.later(3.0, lambda: subprocess.run(["iptables", "-w", "-D", *rule], check=True))
    return True


def restart_server(subject: Subject, chance: Random) -> bool:
    """The server that vramp only attached to ends, and comes again."""
    if subject.engine is None:
        return False
    subject.loses_from_now()
    subject.engine.kill()
    subject.engine.wait()
    if chance.random() < 0.7:
        subject.later(chance.uniform(0.0, 1.5), subject.start_engine)
    return True
