"""A host that dies, stalls or loses its network in mid-stage; and the operator's vramp that dies.

Where a time is asserted, the issue gives the limit, and both ends of the span are by the run's own clock: the journal's
`t_s`, and the moment of the blow on the same CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadgen.schema.journal import Line, RunStarted, Ticked
from tests.cluster.figures import tell
from tests.cluster.machines import Host, cluster
from tests.cluster.network import partition, wait_until_gone
from tests.cluster.operating import Run, vramp, wait_until_nothing_is_left, write_profile

pytestmark = pytest.mark.cluster

STREAMS = 24
LOAD: dict[str, Any] = {"isl": 16, "osl": 100, "concurrency": STREAMS, "duration": "100s", "warmup": 0}
LOST_WITHIN_S = 5.0


def now_s(lines: Sequence[Line]) -> float:
    """This moment, by the run's clock."""
    (begun,) = (line for line in lines if isinstance(line, RunStarted))
    return time.monotonic() - begun.monotonic_s


def first_loss(lines: Sequence[Line]) -> Ticked | None:
    """The first tick in which a host is lost, or streams are."""
    ticks = (line for line in lines if isinstance(line, Ticked))
    return next((tick for tick in ticks if _lost(tick)), None)


def _lost(tick: Ticked) -> bool:
    return any(host.lost for host in tick.hosts) or any(delta.lost for delta in tick.stages.values())


def goes_on(run: Run, after_s: float, streams: int) -> None:
    """Wait until so many streams are held and tokens arrive, later than a moment of the run."""

    def held(lines: list[Line]) -> bool | None:
        ticks = [line for line in lines if isinstance(line, Ticked) and line.t_s > after_s]
        return True if any(tick.held == streams and tick.client.output_tokens for tick in ticks) else None

    run.wait_for(held)


def strike(run: Run, pids: set[int] | list[int], number: int) -> float:
    """Send the signal to processes that vramp or the harness started; when, by the run's clock."""
    at_s = now_s(run.lines())
    for pid in pids:
        os.kill(pid, number)
    return at_s


def lost_after_s(run: Run, struck_s: float) -> float:
    tick = run.wait_for(first_loss)
    assert tick.t_s - struck_s < LOST_WITHIN_S
    return tick.t_s - struck_s


def finished(run: Run, process: Any) -> dict[str, Any]:
    """Stop the run as an operator would; its result."""
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    return run.result()


def require_sums(result: dict[str, Any]) -> None:
    """What was sent is accounted for in every stage, and what was lost is the client's."""
    for stage in result["stages"]:
        assert not [verdict for verdict in stage["verdicts"] if verdict["id"] == "accounting"]
        assert stage["requests"]["failed"] == 0, stage["requests"]


def actor(host: Host) -> set[int]:
    return {host.actor_pid()}


@pytest.mark.parametrize(
    ("struck", "number"),
    [(actor, signal.SIGKILL), (actor, signal.SIGSTOP), (Host.session_pids, signal.SIGKILL)],
    ids=["actor killed", "actor stopped", "sshd's child killed"],
)
def test_the_others_go_on_without_a_host_that_dies_or_stalls(tmp_path: Path, struck: Any, number: int) -> None:
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, LOAD, {})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            pids = struck(it.hosts[0])
            after_s = lost_after_s(run, strike(run, pids, number))
            goes_on(run, now_s(run.lines()), STREAMS * 2 // 3)
            result = finished(run, process)
        wait_until_nothing_is_left(it)
    tell(f"{struck.__name__} by {signal.Signals(number).name}: lost after {after_s:.2f} s")
    require_sums(result)
    (stage,) = result["stages"]
    assert stage["requests"]["unfinished"] >= STREAMS // 3
    assert stage["limited"]
    assert "host-a" in stage["why"]


def test_a_host_whose_ssh_session_is_stopped_ends_its_part_by_itself(tmp_path: Path) -> None:
    with cluster("--preset", "bench") as it:
        host = it.hosts[0]
        write_profile(it, tmp_path, LOAD, {})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            sessions = host.session_pids()
            struck_s = strike(run, sessions, signal.SIGSTOP)
            # Its lifeline is what comes through sshd; until that is missed, its load goes on.
            wait_until_gone(host.pids() - sessions)
            silent_s = now_s(run.lines()) - struck_s
            after_s = lost_after_s(run, now_s(run.lines()))
            goes_on(run, now_s(run.lines()), STREAMS * 2 // 3)
            result = finished(run, process)
        strike(run, sessions, signal.SIGCONT)
        wait_until_nothing_is_left(it)
    tell(f"sshd's child stopped: its host ended its part after {silent_s:.1f} s, and was lost {after_s:.2f} s later")
    require_sums(result)
    assert "host-a" in result["stages"][0]["why"]


def test_the_others_take_over_the_share_of_a_host_that_died(tmp_path: Path) -> None:
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, LOAD, {"on_loss": "rebalance"})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            after_s = lost_after_s(run, strike(run, actor(it.hosts[0]), signal.SIGKILL))
            goes_on(run, now_s(run.lines()), STREAMS)
            result = finished(run, process)
        wait_until_nothing_is_left(it)
    tell(f"on_loss = rebalance: lost after {after_s:.2f} s, and {STREAMS} streams are held again")
    require_sums(result)


def test_a_run_that_is_to_end_with_a_host_ends(tmp_path: Path) -> None:
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, LOAD, {"on_loss": "end"})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            strike(run, actor(it.hosts[0]), signal.SIGKILL)
            assert process.wait(timeout=60) != 0
        result = run.result()
        wait_until_nothing_is_left(it)
    assert "host-a" in result["reason"]
    require_sums(result)


def test_a_host_is_lost_in_a_partition_and_reached_again_after_it(tmp_path: Path) -> None:
    load = LOAD | {"concurrency": [STREAMS, STREAMS], "duration": "16s"}
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, load, {})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            struck_s = now_s(run.lines())
            with partition(it.hosts[0].machine):
                after_s = lost_after_s(run, struck_s)
                goes_on(run, now_s(run.lines()), STREAMS * 2 // 3)
                run.wait_for(lambda lines: True if now_s(lines) > struck_s + 8.0 else None)
            back_s = now_s(run.lines())
            process.wait(timeout=60)
            result, ticks = run.result(), run.ticks()
        wait_until_nothing_is_left(it)
    again = next(tick.t_s for tick in ticks if tick.t_s > back_s and not tick.hosts[0].lost)
    held = max(tick.held for tick in ticks if 1 in tick.stages)
    tell(
        f"a partition of 8 s: lost after {after_s:.2f} s, reached again {again - back_s:.2f} s after its end, "
        f"{held} of {STREAMS} streams in the next stage"
    )
    require_sums(result)
    assert held == STREAMS
    assert result["stages"][0]["limited"]


def test_nothing_is_left_on_hosts_that_never_come_back(tmp_path: Path) -> None:
    with cluster("--preset", "bench", clocks_s=(0, 0)) as it:
        write_profile(it, tmp_path, LOAD, {})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(2)
            with partition(it.hosts[0].machine):
                lost_after_s(run, now_s(run.lines()))
                finished(run, process)
                # Its actor ends itself; sshd's own process waits for the network.
                wait_until_gone(it.hosts[0].pids() - it.hosts[0].session_pids())
        wait_until_nothing_is_left(it)


def test_a_killed_vramp_leaves_nothing_on_any_host_and_no_second_is_lost(tmp_path: Path) -> None:
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, LOAD, {})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            known = it.truth()["requests"]["completed"] - 1  # the one that is sent before the load
            after_s = now_s(run.lines()) + 1.0
            run.wait_for(lambda lines: True if any(_at(line) > after_s for line in lines) else None)
            process.kill()
            killed_s = time.monotonic()
            reported = sum(delta.completed for tick in run.ticks() for delta in tick.stages.values())
            wait_until_nothing_is_left(it)
            gone_s = time.monotonic() - killed_s
        recovered = it.operator.run(*_recover(run.folder), check=False)
        assert recovered.returncode == 0, recovered.stderr
        completed = _recovered(run)["stages"][0]["requests"]["completed"]
    tell(f"vramp killed: all hosts were empty {gone_s:.1f} s later; {completed} completed streams recovered")
    assert completed == reported >= known


def _at(line: Line) -> float:
    return line.t_s if isinstance(line, Ticked) else 0.0


def _recover(folder: Path) -> list[str]:
    script = f"import os; os.chdir({str(folder)!r}); from tui.cli.__main__ import main; main(['recover', 'last'])"
    return [sys.executable, "-c", script]


def _recovered(run: Run) -> dict[str, Any]:
    (folder,) = (run.folder / "runs").iterdir()
    document: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return document
