"""A simulator in a process of its own, for tests of everything that talks to a server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile

PORT = 10_000 + os.getpid() % 20_000
"""A port that no server takes, and no test next to this one: the locks of ports are the machine's."""
NOBODY = f"http://127.0.0.1:{PORT}"
LISTENS = re.compile(r"Starting vLLM server on (http://\S+)")


class Simulator:
    """One that listens."""

    def __init__(self, process: "subprocess.Popen[str]", lines: list[str], url: str) -> None:
        self.process = process
        self.lines = lines  # of its log until it listened
        self.url = url
        # One for all requests, because loading certificates takes 30 ms; a connection each, because faults close some.
        self.client = httpx.Client(
            base_url=url, verify=False, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )

    def faults(self, *texts: str) -> None:
        """Misbehave like this from now on."""
        self.client.post("/admin/faults", json={"faults": texts}).raise_for_status()

    def truth(self, **window: int) -> dict[str, Any]:
        """What was truly served; with `since` and `until` (Unix, ns) within that window."""
        answer = self.client.get("/truth", params=window).raise_for_status()
        document: dict[str, Any] = answer.json()
        return document

    def forget(self) -> None:
        """Start the truth over, without faults."""
        self.faults()
        self.client.post("/truth/reset").raise_for_status()


@contextmanager
def simulator(*flags: str, before: Sequence[str] = ()) -> Iterator[Simulator]:
    """Start one on a free port and end it, by its own pid, whatever happens; `before` precedes its command.

    Its steps are slower than the preset's: a load that lasts would take all of a core.
    """
    pace = () if "--preset" in flags else ("--base-ms", "3")
    with started(*pace, *flags, before=before) as (process, lines, url):
        running = Simulator(process, lines, url)
        with running.client:
            yield running


@contextmanager
def started(*flags: str, before: Sequence[str] = ()) -> Iterator[tuple["subprocess.Popen[str]", list[str], str]]:
    """The process of a simulator, its log until it listened, and its URL."""
    command = [*before, sys.executable, "-m", "loadgen.simulator", "--preset", "fast", "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line.rstrip("\n"))
                if "Application startup complete." in line:
                    break
            match = LISTENS.search("\n".join(lines))
            assert match, "the simulator ended without listening"
            yield process, lines, match[1]
        finally:
            process.kill()


def profile(server: dict[str, Any], **parts: Any) -> Profile:
    """A small load on some server, without canaries; `parts` overrides."""
    load = {"isl": 16, "osl": 8, "concurrency": 4, "requests": 20, "workers": 1, "seed": 1} | parts.pop("load", {})
    quiet = {"canary": {"enabled": False}}  # they would double the requests of most tests
    return build_profile({"name": "test", "server": server, "load": load, **quiet, **parts}, where="test")


def attach(engine: Simulator, **parts: Any) -> Profile:
    """A small load on a simulator that is already there."""
    return profile({"engine": "attach", "url": engine.url}, **parts)


MANAGED = {"engine": "simulator", "args": {"preset": "fast"}}
