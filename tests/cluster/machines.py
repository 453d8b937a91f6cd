"""A cluster to run vramp on: an operator's machine, hosts with Debian's sshd, and a server with the simulator.

The operator's `~/.ssh` knows the hosts by name, with a key made for the test; each sshd has host keys and a
configuration of its own. A host's CLOCK_MONOTONIC can differ (`unshare --time`), and can be moved while it runs
(`step_clock.c`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import httpx
import psutil

from tests.cluster.network import Machine, network, rerouted
from tests.engines import LISTENS

ROOT = Path(__file__).parents[2]
HOSTS = ("host-a", "host-b", "host-c")
SERVER_PORT = 8000
_RELAY_PORT = 9000
_SCHEDULER_PORT = 8786
_PRIVILEGE_SEPARATION = Path("/run/sshd")


@dataclass
class Host:
    """A machine with an sshd."""

    machine: Machine
    daemon: subprocess.Popen[str]
    known: set[int]  # the processes that it has when nobody uses it
    log: list[str] = field(default_factory=list)
    clock: mmap.mmap | None = None

    @property
    def name(self) -> str:
        return self.machine.name

    def pids(self, words: str = "") -> set[int]:
        """The processes on it but for those that it always has; with `words`, those whose command line has them."""
        used = self.machine.pids() - self.known
        return {pid for pid in used if words in command_line(pid)}

    def actor_pid(self) -> int:
        """The process that owns the workers."""
        parents = {parent for pid in self.pids("loadgen.worker") if (parent := psutil.Process(pid).ppid())}
        (pid,) = parents
        return pid

    def session_pids(self) -> set[int]:
        """The processes of sshd that serve connections."""
        return self.pids("sshd: ")

    def step_clock(self, seconds: float) -> None:
        """Move CLOCK_MONOTONIC of every process that somebody started on it, forwards or backwards."""
        assert self.clock is not None, "start the cluster with movable_clocks=True"
        (before_ns,) = struct.unpack("q", self.clock[:8])
        self.clock[:8] = struct.pack("q", before_ns + round(seconds * 1e9))


@dataclass
class Cluster:
    """All machines; `server` runs the simulator at `url`."""

    operator: Machine
    server: Machine
    hosts: list[Host]
    relay: Machine
    scheduler: Machine

    @property
    def url(self) -> str:
        return f"http://{self.server.address}:{SERVER_PORT}"

    @property
    def names(self) -> str:
        """The hosts as `--hosts` takes them."""
        return ",".join(host.name for host in self.hosts)

    def truth(self, **window: int) -> Any:
        """What the server truly served; with `since` and `until` (Unix, ns) within that window."""
        return self._ask("GET", "/truth", params=window)

    def forget(self) -> None:
        """Start the truth over."""
        self._ask("POST", "/truth/reset")

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        def answer() -> Any:
            with httpx.Client(base_url=self.url, trust_env=False, timeout=30.0) as client:
                return client.request(method, path, **options).raise_for_status()

        content = self.server.within(answer)
        return content.json() if content.content else None

    @contextlib.contextmanager
    def relayed(self, *machines: Machine, delay_ms: float = 0.0, seen: Path = Path("/dev/null")) -> Iterator[None]:
        """What these machines send to the server takes so much longer each way; `seen` gets what they sent."""
        relay, server = (self.relay.address, _RELAY_PORT), (self.server.address, SERVER_PORT)
        with self.relaying(self.relay, "{}:{}".format(*relay), delay_ms, seen), contextlib.ExitStack() as rules:
            for machine in machines:
                rules.enter_context(rerouted(machine, server, relay))
            yield

    @contextlib.contextmanager
    def relaying(
        self, machine: Machine, listen: str, delay_ms: float = 0.0, seen: Path = Path("/dev/null")
    ) -> Iterator[None]:
        """A relay to the server on some machine."""
        target = f"{self.server.address}:{SERVER_PORT}"
        words = [sys.executable, "-m", "tests.cluster.relay", listen, target, str(delay_ms), str(seen)]
        with machine.start(*words, stdout=subprocess.PIPE, cwd=ROOT) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "listens\n"
                yield
            finally:
                process.kill()


@contextlib.contextmanager
def cluster(*simulator: str, clocks_s: Sequence[int] = (0, 0, 0), movable_clocks: bool = False) -> Iterator[Cluster]:
    """As many hosts as `clocks_s`, each with its CLOCK_MONOTONIC so far ahead; `simulator`: flags of the server."""
    hosts = HOSTS[: len(clocks_s)]
    with network(["operator", "server", "relay", "scheduler", *hosts]) as machines, contextlib.ExitStack() as daemons:
        operator, server, relay, scheduler, *rest = machines
        daemons.enter_context(_simulator(server, *simulator))
        _make_key(operator.home / ".ssh" / "id_ed25519")
        preload = _step_clock(operator.folder) if movable_clocks else None
        started = [
            daemons.enter_context(_sshd(machine, operator.home / ".ssh", clock_s, preload))
            for machine, clock_s in zip(rest, clocks_s, strict=True)
        ]
        yield Cluster(operator, server, started, relay, scheduler)


@contextlib.contextmanager
def _simulator(machine: Machine, *flags: str) -> Iterator[None]:
    address = ("--host", machine.address, "--port", str(SERVER_PORT))
    words = [sys.executable, "-m", "loadgen.simulator", "--preset", "fast", *address, *flags]
    with _started(machine, *words, until=LISTENS.pattern.partition("(")[0]):
        yield


@contextlib.contextmanager
def _started(machine: Machine, *words: str, until: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that has said `until` on its stderr, and the lines that it says there; killed in the end."""
    reading, writing = os.pipe()
    with machine.start(*words, stderr=writing, cwd=ROOT) as process:
        os.close(writing)
        try:
            yield process, _lines_from(os.fdopen(reading), until)
        finally:
            process.kill()


def _lines_from(output: TextIO, until: str) -> list[str]:
    """The lines until the one with these words; a thread adds those that come after."""
    lines = []
    for line in output:
        lines.append(line)
        if until in line:
            break
    else:
        output.close()
        raise AssertionError(f"never said {until!r}: {''.join(lines)}")
    threading.Thread(target=_add_rest, args=(output, lines), daemon=True).start()
    return lines


def _add_rest(output: TextIO, lines: list[str]) -> None:
    with output:
        lines.extend(output)


@contextlib.contextmanager
def dask(it: Cluster) -> Iterator[str]:
    """A scheduler on a machine of its own, and a worker on each host, as others start them; the scheduler's address."""
    address = f"tcp://{it.scheduler.address}:{_SCHEDULER_PORT}"
    with contextlib.ExitStack() as processes:
        options = ("--host", it.scheduler.address, "--port", str(_SCHEDULER_PORT))
        processes.enter_context(_dask_process(it.scheduler, "scheduler", *options, until="Scheduler at"))
        for host in it.hosts:
            folder = ("--local-directory", str(host.machine.folder / "dask"))
            ours = ("--nthreads", "1", "--no-nanny", "--host", host.machine.address, *folder)
            processes.enter_context(_dask_process(host.machine, "worker", address, *ours, until="Registered to"))
            host.known |= host.machine.pids()
        yield address


def _dask_process(
    machine: Machine, name: str, *options: str, until: str
) -> contextlib.AbstractContextManager[tuple[subprocess.Popen[str], list[str]]]:
    words = (sys.executable, "-m", f"distributed.cli.dask_{name}", "--no-dashboard", *options)
    return _started(machine, *words, until=until)


# Hosts.


def _make_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


@contextlib.contextmanager
def _sshd(machine: Machine, client: Path, clock_s: int, preload: Path | None) -> Iterator[Host]:
    """An sshd that lets in the owner of `client`, a `.ssh` folder, which learns its name and host key."""
    _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    folder = machine.folder / "sshd"
    _make_key(folder / "host_key")
    shutil.copy(client / "id_ed25519.pub", folder / "authorized_keys")
    environment, clock = dict(machine.places), None
    if preload is not None:
        environment |= {"LD_PRELOAD": str(preload), "VRAMP_TEST_CLOCK": str(folder / "clock")}
        clock = _clock_file(folder / "clock")
    (folder / "config").write_text(_sshd_config(machine, folder, environment))
    _introduce(machine, folder, client)
    namespace = ("unshare", "--time", "--monotonic", str(clock_s), "--fork", "--kill-child")
    words = (*namespace, shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "config"))
    with _started(machine, *words, until="Server listening") as (process, log):
        yield Host(machine, process, machine.pids(), log, clock)


def _sshd_config(machine: Machine, folder: Path, environment: dict[str, str]) -> str:
    lines = [
        f"ListenAddress {machine.address}:22",
        f"HostKey {folder / 'host_key'}",
        f"AuthorizedKeysFile {folder / 'authorized_keys'}",
        "PidFile none",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "StrictModes no",
        "PrintMotd no",
        "SetEnv " + " ".join(f"{name}={value}" for name, value in environment.items()),
    ]
    return "\n".join(lines) + "\n"


def _introduce(machine: Machine, folder: Path, client: Path) -> None:
    key = (folder / "host_key.pub").read_text()
    with (client / "known_hosts").open("a") as file:
        file.write(f"{machine.name},{machine.address} {key}")
    with (client / "config").open("a") as file:
        file.write(
            f"Host {machine.name}\n  HostName {machine.address}\n  User root\n"
            f"  IdentityFile {client / 'id_ed25519'}\n  UserKnownHostsFile {client / 'known_hosts'}\n"
        )


def _clock_file(path: Path) -> mmap.mmap:
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def _step_clock(folder: Path) -> Path:
    library, source = folder / "step_clock.so", Path(__file__).parent / "step_clock.c"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


def require_nothing_left(cluster: Cluster) -> None:
    """On no host is a process but its sshd, or a file that somebody put there and left."""
    left = {host.name: [command_line(pid) for pid in host.pids()] for host in cluster.hosts}
    assert not any(left.values()), left
    files = [str(path) for host in cluster.hosts for path in host.machine.tmp.rglob("*")]
    assert not files, files


def command_line(pid: int) -> str:
    """Empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""
