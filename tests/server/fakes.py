"""Fake servers as real processes, and the proof that nothing of them is left."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import psutil

from loadgen.profile.schema import Server
from loadgen.server.process.container import Container
from loadgen.server.process.records import ServerMark, ServerRecord, new_mark, record_path
from loadgen.server.process.tree import ProcessId, process_info
from tests.scripts import executable

DEAD = ProcessId(os.getpid(), 1)
"""The pid lives, but it is another process."""
FAKE_SERVER = Path(__file__).with_name("fake_server.py")
FAKE_DOCKER = Path(__file__).with_name("fake_docker.py")
PATIENCE_S = 20.0
"""A deadline against hanging, never a measurement."""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - processes set no event
            await asyncio.sleep(0.005)


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def sleeping() -> Iterator[ProcessId]:
    with subprocess.Popen(["sleep", "600"]) as process:
        info = process_info(process.pid)
        assert info is not None
        yield info.id
        process.kill()


def write_record(
    port: int = 8000,
    *,
    guard: ProcessId = DEAD,
    server: ProcessId = DEAD,
    tree: Iterable[ProcessId] = (),
    container: Container | None = None,
    mark: ServerMark | None = None,
    **mark_fields: str,
) -> ServerRecord:
    record = ServerRecord(
        mark=msgspec.structs.replace(mark or new_mark(port, guard), **mark_fields),
        server=server,
        tree=tuple(tree),
        url=f"http://127.0.0.1:{port}",
        profile="p",
        model=None,
        command=["vllm"],
        container=container,
        log_path="server.log",
        started_unix_s=1.0,
        left=False,
    )
    record_path(record.mark).write_bytes(msgspec.json.encode(record))
    return record


def kill_at_once(*processes: psutil.Process) -> None:
    """None of them has time to do anything about the end of the others; returns when all are gone."""
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()
    wait_until(lambda: all(map(is_gone, processes)))


@dataclass(frozen=True)
class FakeServer:
    """How to start the fake server, and which processes it became."""

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-S", str(FAKE_SERVER), *args]

    def env(self, habits: str = "") -> dict[str, str]:
        return {"FAKE_HABITS": habits, "FAKE_PIDS": str(self.folder / "pids")}

    def profile(self, habits: str = "", *, stop_timeout_s: float = 0.3) -> Server:
        command = executable(self.folder / "vllm", f'#!/bin/sh\nexec {" ".join(self.argv())} "$@"\n')
        return Server(
            engine="vllm", model="m", command=str(command), env=self.env(habits), stop_timeout_s=stop_timeout_s
        )

    def processes(self, count: int) -> list[psutil.Process]:
        """The tree, once it has `count` processes, each known by pid and start time."""
        pids = self.folder / "pids"
        wait_until(lambda: pids.exists() and pids.read_text().count("\n") >= count)
        return [psutil.Process(int(line)) for line in pids.read_text().split()]

    def assert_gone(self, processes: Iterable[psutil.Process]) -> None:
        listed = list(processes)
        assert listed
        wait_until(lambda: all(is_gone(process) for process in listed))


@dataclass(frozen=True)
class FakeDocker:
    """A stand-in for `docker` and its daemon."""

    folder: Path
    daemon: psutil.Process

    @property
    def executable(self) -> Path:
        return self.folder / "docker"

    def behave(self, habits: str) -> None:
        (self.folder / "habits").write_text(habits)

    def calls(self) -> list[list[str]]:
        """The arguments of each call, in order."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self) -> list[str]:
        """What the daemon was asked to do, in order."""
        return [call[0] for call in self.calls() if call[0] not in ("ps", "inspect", "image")]

    def run(self, name: str, label: str = "") -> psutil.Process:
        """A container of somebody else."""
        before = len(self._pids())
        words = [str(self.executable), "run", "--rm", "--name", name, "--label", label]
        client = subprocess.Popen([*words, "--cidfile", str(self.folder / name)], stdout=subprocess.DEVNULL)
        wait_until(lambda: len(self._pids()) > before)
        client.kill()
        client.wait()
        return psutil.Process(self._pids()[-1])

    @cached_property
    def container(self) -> psutil.Process:
        """The process in the last container, once there is one."""
        wait_until(lambda: bool(self._pids()))
        return psutil.Process(self._pids()[-1])

    def _pids(self) -> list[int]:
        path = self.folder / "containers"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def end(self) -> None:
        for pid in [self.daemon.pid, *self._pids()]:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()


@contextmanager
def fake_docker(folder: Path, habits: str = "") -> Iterator[FakeDocker]:
    words = [sys.executable, "-S", str(FAKE_DOCKER), str(folder)]
    executable(folder / "docker", f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
    (folder / "habits").write_text(habits)
    with subprocess.Popen([*words, "daemon"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        docker = FakeDocker(folder, psutil.Process(process.pid))
        try:
            yield docker
        finally:
            docker.end()
