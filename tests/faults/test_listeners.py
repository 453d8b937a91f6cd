"""2,000 idle connections of another user to each port that a run opens: the run goes on, and its owner gets in."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from loadgen.server.process.ports import free_port
from tests.faults.place import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CONNECTIONS = 2_000
_NOBODY = 65534
_SOFT_LIMIT = 1024  # of open files, as most distributions set it
_OPEN = """
import resource, socket, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
opened = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("opened", flush=True)
sys.stdin.read()
"""
_PROFILE = """
telemetry = "off"
[server]
engine = "simulator"
port = {port}
[server.args]
preset = "fast"
[load]
isl = 16
osl = 8
[[stages]]
concurrency = 4
duration = "8s"
"""


@contextmanager
def idle_connections(port: int) -> Iterator[None]:
    """Of a user who owns nothing here; they are open while the block runs."""
    command = ["/usr/bin/python3", "-c", _OPEN, str(port), str(CONNECTIONS)]
    with subprocess.Popen(command, user=_NOBODY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"opened\n"
        yield
        process.kill()


def _usual_limit() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_SOFT_LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _found(pattern: str, lines: IO[str]) -> str:
    seen = []
    for line in lines:
        seen.append(line)
        if match := re.search(pattern, line):
            return match[1]
    raise AssertionError("".join(seen))


PORTS = {
    "web": r"(http://127\.0\.0\.1:\d+/\?token=\S+)",
    "metrics": r"(http://127\.0\.0\.1:\d+/metrics)",
}
"""How vramp prints the address of its listeners."""


def _flooded(process: subprocess.Popen[str], listener: str, server: str) -> str:
    """The end of what it says: it is interrupted when its plan is done."""
    assert process.stderr is not None
    address = _found(PORTS[listener], process.stderr) if listener in PORTS else server
    _found("(stage 1 of 1)", process.stderr)
    with idle_connections(int(re.findall(r":(\d+)", address)[0])):
        assert urllib.request.urlopen(address, timeout=20).status == 200
        _found("(the plan is done)", process.stderr)
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)[1]


@pytest.mark.parametrize("listener", [*PORTS, "simulator"])
def test_idle_connections_of_others_do_not_end_a_run(tmp_path: Path, listener: str) -> None:
    port = free_port("127.0.0.1")
    (tmp_path / "p.toml").write_text(_PROFILE.format(port=port))
    command = [sys.executable, "-m", "tui.cli", "web", "p.toml", "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_usual_limit,
    ) as process:
        try:
            said = _flooded(process, listener, f"http://127.0.0.1:{port}/health")
        finally:
            process.kill()
    (path,) = tmp_path.glob("runs/*/result.json")
    result = json.loads(path.read_text())
    assert result["state"] == "complete", said
    assert result["stages"][0]["requests"]["failed"] == 0
