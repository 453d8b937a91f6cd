"""vramp on the operator's machine, loading the server from the hosts, and what its journal says so far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from loadgen.schema.journal import Line, StageStarted, Ticked
from loadgen.store.journal import JOURNAL, read_journal
from tests.cluster.machines import ROOT, Cluster, require_nothing_left
from tests.cluster.network import wait_until_gone
from tests.tui.pseudo_terminal import Terminal, in_a_terminal

Found = TypeVar("Found")
PATIENCE_S = 60.0
_QUIET = {"enabled": False}


@dataclass
class Run:
    """A vramp that runs, in its folder."""

    folder: Path
    pid: int

    def lines(self) -> list[Line]:
        """The journal so far."""
        folders = sorted((self.folder / "runs").glob("*")) if (self.folder / "runs").exists() else []
        path = folders[-1] / JOURNAL if folders else None
        return list(read_journal(path)) if path is not None and path.exists() else []

    def ticks(self) -> list[Ticked]:
        return [line for line in self.lines() if isinstance(line, Ticked)]

    def wait_for(self, what: Callable[[list[Line]], Found | None]) -> Found:
        """What is found in the journal, as soon as something is."""
        until_s = time.monotonic() + PATIENCE_S
        while (found := what(self.lines())) is None:
            assert time.monotonic() < until_s, f"never came: {self.said()}"
            assert not self.has_ended(), f"ended before it came: {self.said()}"
            time.sleep(0.02)
        return found

    def has_ended(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        return True

    def wait_for_load(self, hosts: int) -> None:
        """Wait until streams have completed on each of the hosts."""
        self.wait_for(lambda lines: self._loads(lines, hosts))

    @staticmethod
    def _loads(lines: Sequence[Line], hosts: int) -> bool | None:
        ticks = [line for line in lines if isinstance(line, Ticked) and line.hosts]
        completed = [sum(tick.hosts[host].client.requests for tick in ticks) for host in range(hosts)]
        return True if ticks and all(completed) else None

    def started(self) -> list[StageStarted]:
        return [line for line in self.lines() if isinstance(line, StageStarted)]

    def said(self) -> str:
        """What it printed, if it has no terminal."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("std*")))

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def result(self) -> dict[str, Any]:
        path = self.folder / "o.json"
        assert path.exists(), self.said()
        document: dict[str, Any] = json.loads(path.read_text())
        return document


def write_profile(
    it: Cluster, folder: Path, load: Mapping[str, Any], cluster: Mapping[str, Any] | None, **tables: Mapping[str, Any]
) -> None:
    """A profile for this cluster; with None for `cluster`, the load comes from the operator's machine."""
    by_ssh = {"hosts": it.names.split(","), "python": sys.executable}
    others = cluster is not None and "scheduler" in cluster
    hosts = {} if cluster is None else ({} if others else by_ssh) | dict(cluster)
    document = {
        "server": {"engine": "attach", "url": it.url},
        "load": {"isl": 16, "osl": 8, "seed": 1} | dict(load),
        "canary": _QUIET,
        **({"cluster": hosts} if hosts else {}),
        **tables,
    }
    # JSON's strings, numbers, booleans and lists are TOML's, too.
    lines = (
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in document.items()
    )
    folder.mkdir(exist_ok=True)
    (folder / "p.toml").write_text("\n".join(lines))


@contextmanager
def vramp(
    it: Cluster, folder: Path, *words: str, profile: str = "p.toml", env: Mapping[str, str] | None = None
) -> Iterator[tuple[Run, subprocess.Popen[str]]]:
    """Run a profile, that in the folder by default, without a terminal."""
    command = [sys.executable, "-m", "tui.cli", "run", profile, "--json", "o.json", *words]
    env = {"PYTHONPATH": str(ROOT), **(env or {})}
    with (
        (folder / "stdout").open("w") as stdout,
        (folder / "stderr").open("w") as stderr,
        it.operator.start(*command, cwd=folder, env=env, stdout=stdout, stderr=stderr) as process,
    ):
        try:
            yield Run(folder, process.pid), process
        finally:
            process.send_signal(signal.SIGKILL)


def run_to_end(it: Cluster, folder: Path, *words: str) -> tuple[Run, int]:
    """The run, when it is over, and its exit code."""
    with vramp(it, folder, *words) as (run, process):
        return run, process.wait(timeout=PATIENCE_S)


@contextmanager
def cockpit(it: Cluster, folder: Path, *verb: str) -> Iterator[tuple[Run, Terminal]]:
    """Open the profile in the folder in the cockpit, or what else `verb` says."""
    words = verb or ("p.toml",)
    command = it.operator.command(sys.executable, "-m", "tui.cli", *words, "--json", "o.json")
    env = it.operator.places | {"PYTHONPATH": str(ROOT)}
    with in_a_terminal(command, folder, env, columns=160, rows=50) as terminal:
        yield Run(folder, terminal.pid), terminal


def wait_until_nothing_is_left(it: Cluster) -> None:
    """Wait until no host has a process of vramp's; a test whose process never ends fails by its timeout."""
    for host in it.hosts:
        wait_until_gone(host.pids())
    require_nothing_left(it)
