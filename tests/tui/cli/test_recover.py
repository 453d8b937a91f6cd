"""`vramp recover`: a run killed in mid-stage loses nothing that was a second old."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path

import pytest

from loadgen.schema.journal import RunStarted, Ticked
from loadgen.store.journal import read_journal
from loadgen.store.runs import find_run, open_result, read_result, was_killed
from tests.engines import simulator
from tests.tui.cli.commands import SMALL, exit_code, start

ENDLESS = [*SMALL, "--concurrency", "4", "--duration", "60s", "--warmup", "0"]
recover = partial(exit_code, "recover")


def ticked(folder: Path) -> list[Ticked]:
    return [line for line in read_journal(folder / "journal.jsonl") if isinstance(line, Ticked)]


def wait_for_ticks(folder: Path, after_s: float, *, completed: int = 0) -> Ticked:
    """The last tick, once there is one after a moment of the run."""
    for _ in range(600):
        ticks = ticked(folder) if (folder / "journal.jsonl").exists() else []
        done = sum(delta.completed for tick in ticks for delta in tick.stages.values())
        if ticks and ticks[-1].t_s > after_s and done >= completed:
            return ticks[-1]
        time.sleep(0.05)
    raise AssertionError("the run does not go on")


def began_s(folder: Path) -> float:
    """When the run began, on CLOCK_MONOTONIC."""
    (begun,) = (line for line in read_journal(folder / "journal.jsonl") if isinstance(line, RunStarted))
    return begun.monotonic_s


def test_a_killed_run_has_everything_but_its_last_second(capsys: pytest.CaptureFixture[str]) -> None:
    with simulator() as server:
        process = start(Path(), "run", "--url", server.url, *ENDLESS)
        assert process.stderr is not None
        process.stderr.readline()
        folder = find_run("last")
        wait_for_ticks(folder, 0.0, completed=20)
        known = server.truth()["requests"]["completed"]
        # The last tick on disk may be much older than the truth: the second is from the truth on.
        wait_for_ticks(folder, time.monotonic() - began_s(folder) + 1.0)
        assert recover("last") == 1
        assert "this run is still running" in capsys.readouterr().err
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert was_killed(folder)
        assert recover("last") == 0
    printed = capsys.readouterr()
    assert "\nconc 4  16/8 " in printed.out
    assert f"result: {folder}/result.json" in printed.err
    result = read_result(folder / "result.json")
    (stage,) = result.stages
    # The probe's own request is the server's, not the load's.
    assert stage.requests.completed >= known - 2 > 0
    assert stage.latency_ms["ttft"].count >= stage.requests.completed
    assert (result.state, open_result("last")) == ("failed", result)
    assert recover("last") == 1
    assert "--force" in capsys.readouterr().err
