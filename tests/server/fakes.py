"""Fake servers as real processes, and the proof that nothing of them is left."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadgen.profile.schema import Server

FAKE_SERVER = Path(__file__).with_name("fake_server.py")
FAKE_DOCKER = Path(__file__).with_name("fake_docker.py")
CONTAINER = "import signal, sys, time; signal.signal(signal.SIGINT, {}); print(flush=True); time.sleep(600)"
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
        command = self.folder / "vllm"
        command.write_text(f'#!/bin/sh\nexec {" ".join(self.argv())} "$@"\n')
        command.chmod(0o755)
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
    """A stand-in for `docker`, with its one container."""

    folder: Path
    container: psutil.Process

    @property
    def executable(self) -> Path:
        return self.folder / "docker"

    def env(self, habits: str = "") -> dict[str, str]:
        return {"FAKE_HABITS": habits, "FAKE_DOCKER": str(self.folder)}

    def calls(self) -> list[list[str]]:
        """The arguments of each call, in order."""
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self) -> list[str]:
        return [call[0] for call in self.calls()]


@contextmanager
def fake_docker(folder: Path, *, deaf: bool = False) -> Iterator[FakeDocker]:
    """With `deaf` the container does not mind SIGINT."""
    body = CONTAINER.format("signal.SIG_IGN" if deaf else "signal.SIG_DFL")
    with subprocess.Popen([sys.executable, "-S", "-c", body], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        docker = FakeDocker(folder, psutil.Process(process.pid))
        (folder / "container").write_text(str(process.pid))
        docker.executable.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE_DOCKER} "$@"\n')
        docker.executable.chmod(0o755)
        try:
            yield docker
        finally:
            process.kill()
