"""Machines of a cluster as network namespaces of this one, around a switch, which is a namespace with a bridge.

Needs root. Nothing touches the machine's own network: no interface, address or rule exists outside the namespaces, and
nothing in them reaches anything else. What was made here is gone after `network`, whatever happened; what a killed run
has left is removed when the next one starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

_PREFIX = "vramp-test-"
_RUNTIME = Path("/run")
_NAMESPACES = _RUNTIME / "netns"
_FIRST_ADDRESS = 10  # the last byte of the first machine's
_TMP_MIB = 16
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Machine:
    """One namespace with an address, a home and a small `/tmp` of its own."""

    name: str
    namespace: str
    address: str
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def tmp(self) -> Path:
        return self.folder / "tmp"

    @property
    def places(self) -> dict[str, str]:
        """The environment that makes a process use this machine's folders."""
        return {"HOME": str(self.home), "TMPDIR": str(self.tmp), "XDG_RUNTIME_DIR": str(self.tmp)}

    def command(self, *words: str) -> list[str]:
        """What to start for a process with these words on the machine; its pid is that process's."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        env = os.environ | self.places | options.pop("env", {})
        return subprocess.Popen(self.command(*words), text=True, env=env, **options)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words), text=True, capture_output=True, env=os.environ | self.places, check=False
        )
        assert not check or done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.stderr}"
        return done

    def within(self, function: Callable[[], T]) -> T:
        """Call it in a thread that is on this machine's network: sockets that it opens are the machine's."""
        with ThreadPoolExecutor(1, initializer=_enter, initargs=(self.namespace,)) as threads:
            return threads.submit(function).result()

    def pids(self) -> set[int]:
        """The processes on this machine."""
        return _pids_in(self.namespace)


def _enter(namespace: str) -> None:
    # A thread of its own; os.setns exists from Python 3.12 on.
    libc = ctypes.CDLL(None, use_errno=True)
    with (_NAMESPACES / namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _pids_in(namespace: str) -> set[int]:
    inode = (_NAMESPACES / namespace).stat().st_ino
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/ns/net").stat().st_ino == inode:
                found.add(pid)
    return found


def wait_until_gone(pids: Iterator[int] | set[int]) -> None:
    """Wait until these processes have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)


# Making and removing it.


@contextlib.contextmanager
def network(names: Sequence[str]) -> Iterator[list[Machine]]:
    """Machines with these names that reach each other."""
    _remove_leftovers()
    run_name = f"{_PREFIX}{os.getpid()}-{_start_ticks(os.getpid())}"
    folder = _RUNTIME / run_name
    switch = f"{run_name}-switch"
    try:
        folder.mkdir(mode=0o700)
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        yield [
            _machine(name, f"{run_name}-{name}", switch, f"10.66.0.{_FIRST_ADDRESS + number}", folder / name)
            for number, name in enumerate(names)
        ]
    finally:
        _remove(run_name)


def _machine(name: str, namespace: str, switch: str, address: str, folder: Path) -> Machine:
    machine = Machine(name, namespace, address, folder)
    _ip("netns", "add", namespace)
    _ip("link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", name, "netns", switch)
    _ip("-n", switch, "link", "set", name, "master", "bridge", "up")
    _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", namespace, "link", "set", "lo", "up")
    _ip("-n", namespace, "link", "set", "eth0", "up")
    for part in (machine.home, machine.tmp):
        part.mkdir(parents=True, mode=0o700)
    _call("mount", "-t", "tmpfs", "-o", f"size={_TMP_MIB}m,mode=1777", "vramp-test", str(machine.tmp))
    return machine


def _remove_leftovers() -> None:
    """Remove what runs left that were killed: those whose process is no more."""
    names = {path.name for place in (_RUNTIME, _NAMESPACES) for path in place.glob(f"{_PREFIX}*")}
    for run_name in {"-".join(name.split("-")[:4]) for name in names}:
        pid, start_ticks = map(int, run_name.removeprefix(_PREFIX).split("-"))
        if _start_ticks(pid) != start_ticks:
            _remove(run_name)


def _remove(run_name: str) -> None:
    namespaces = [path.name for path in _NAMESPACES.glob(f"{run_name}-*")]
    # All of them were started in these namespaces, which are ours; a process may start another until it is gone.
    while pids := {pid for namespace in namespaces for pid in _pids_in(namespace)}:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until_gone(pids)
    for namespace in namespaces:
        _ip("netns", "del", namespace)
    for mounted in (_RUNTIME / run_name).glob("*/tmp"):
        subprocess.run(["umount", "--lazy", str(mounted)], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(_RUNTIME / run_name, ignore_errors=True)


def _start_ticks(pid: int) -> int | None:
    """When a process began, since the boot; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _ip(*words: str) -> None:
    _call("ip", *words)


def _call(*words: str) -> None:
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


# What can go wrong in it.


@contextlib.contextmanager
def _rule(machine: Machine, *words: str, table: str = "filter") -> Iterator[None]:
    machine.run("iptables", "-t", table, "-A", *words)
    try:
        yield
    finally:
        machine.run("iptables", "-t", table, "-D", *words)


@contextlib.contextmanager
def partition(machine: Machine) -> Iterator[None]:
    """Nothing reaches the machine and nothing leaves it; nobody learns of it."""
    with _rule(machine, "INPUT", "-i", "eth0", "-j", "DROP"), _rule(machine, "OUTPUT", "-o", "eth0", "-j", "DROP"):
        yield


@contextlib.contextmanager
def loss(machine: Machine, share: float) -> Iterator[None]:
    """This share of the packets that come to the machine is lost."""
    with _rule(
        machine, "INPUT", "-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"
    ):
        yield


@contextlib.contextmanager
def bandwidth(machine: Machine, mbit: float) -> Iterator[None]:
    """The machine sends no faster than this."""
    shaped = ("qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{mbit}mbit", "burst", "32kb", "latency", "200ms")
    machine.run("tc", *shaped)
    try:
        yield
    finally:
        machine.run("tc", "qdisc", "del", "dev", "eth0", "root")


@contextlib.contextmanager
def rerouted(machine: Machine, there: tuple[str, int], instead: tuple[str, int]) -> Iterator[None]:
    """The machine's new connections to one address and port end at another; it does not notice."""
    match = ("OUTPUT", "-p", "tcp", "-d", there[0], "--dport", str(there[1]))
    with _rule(machine, *match, "-j", "DNAT", "--to-destination", "{}:{}".format(*instead), table="nat"):
        yield
