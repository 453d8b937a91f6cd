"""A run whose processes are stopped and continued, as by SIGSTOP, a freezer or the pause of a machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from loadgen.schema.result import Result
from loadgen.store.runs import read_result

ROOT = Path(__file__).parents[2]
STOPPED_S = 1.9  # longer than `MIN_STANDSTILL_NS` and two ticks, shorter than `SILENT_S`
PROFILE = """
telemetry = "off"
[server]
engine = "simulator"
port = 0
[server.args]
preset = "fast"
base-ms = 5
[load]
isl = 16
osl = 40
warmup = 0
[canary]
enabled = false
[[stages]]
concurrency = 4
duration = "4s"
"""


@contextmanager
def stopped(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Stop them while the block runs."""
    chosen = list(processes)
    for process in chosen:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in chosen:
            process.send_signal(signal.SIGCONT)


def run_with_a_stop(folder: Path, of: Callable[[psutil.Process], list[psutil.Process]]) -> Result:
    (folder / "p.toml").write_text(PROFILE)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    with subprocess.Popen(
        [sys.executable, "-m", "tui.cli", "run", "p.toml", "--json", "o.json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "held 4" in line:
                break
        with stopped(of(psutil.Process(process.pid))):
            time.sleep(STOPPED_S)  # how long they are stopped is what is tested
        process.stderr.read()
    return read_result(folder / "o.json")


def named(word: str) -> Callable[[psutil.Process], list[psutil.Process]]:
    return lambda vramp: [each for each in vramp.children(recursive=True) if word in each.cmdline()]


Chosen = Callable[[psutil.Process], list[psutil.Process]]


def whole_tree(vramp: psutil.Process) -> list[psutil.Process]:
    return [vramp, *vramp.children(recursive=True)]


def vramp_alone(vramp: psutil.Process) -> list[psutil.Process]:
    return [vramp]


@pytest.mark.parametrize("of", [whole_tree, named("loadgen.worker"), vramp_alone], ids=["tree", "worker", "vramp"])
def test_a_client_that_stood_still_says_so(tmp_path: Path, of: Chosen) -> None:
    result = run_with_a_stop(tmp_path, of)
    (stage,) = result.stages
    assert result.state == "complete"
    assert result.client.limited and "vramp stood still for at least 1." in (result.client.why or "")
    assert "client-limited" in {verdict.id for verdict in stage.verdicts}
    assert [event.kind for event in result.events if "vramp stood still for at least 1." in event.text] == ["error"]
    assert stage.requests.failed == 0
    for name in ("ttft", "tpot", "itl", "e2e"):
        assert (stage.latency_ms[name].max or 0) < 1e3 * STOPPED_S / 2, name
    assert (stage.requests.clock_steps > 0) == (of is not vramp_alone)


def test_a_server_that_stood_still_is_the_servers_latency(tmp_path: Path) -> None:
    result = run_with_a_stop(tmp_path, named("loadgen.simulator"))
    (stage,) = result.stages
    assert "stood still" not in (result.client.why or "")
    assert not any("stood still" in event.text for event in result.events)
    assert (stage.latency_ms["itl"].max or 0) > 1e3 * STOPPED_S / 2
