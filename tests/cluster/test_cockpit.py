"""The load of three hosts under the operator's hand."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from loadgen.schema.journal import Line, StageStarted, Ticked
from tests.cluster.figures import tell
from tests.cluster.machines import cluster
from tests.cluster.operating import cockpit, wait_until_nothing_is_left, write_profile
from tests.cluster.test_loss import require_sums
from tests.tui.pseudo_terminal import Terminal

pytestmark = pytest.mark.cluster

CHANGES = 50
REACHED_WITHIN_S = 1.0


def reached_s(index: int, lines: list[Line]) -> list[float] | None:
    """When each of the hosts had begun a stage, in seconds after the change; None until all have."""
    begun = next((line for line in lines if isinstance(line, StageStarted) and line.index == index), None)
    if begun is None:
        return None
    ticks = [line for line in lines if isinstance(line, Ticked) and index in line.stages]
    firsts = [
        next((tick.t_s for tick in ticks if host < len(tick.hosts) and index in tick.hosts[host].stages), None)
        for host in range(3)
    ]
    return None if None in firsts else [at_s - begun.t_s for at_s in firsts if at_s is not None]


def press(terminal: Terminal, key: bytes) -> None:
    terminal.press(key)
    terminal.read_waiting()


def leave(terminal: Terminal) -> None:
    """End the run as an operator does."""
    terminal.press(b"q")
    terminal.read_until(b"A run is live")
    terminal.press(b"f")
    terminal.read_rest()
    assert terminal.wait() == os.EX_OK


@pytest.mark.timeout(240)
def test_fifty_changes_by_key_reach_every_host(tmp_path: Path) -> None:
    load = {"isl": 16, "osl": 20, "concurrency": 12, "duration": "300s", "warmup": 0}
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, load, {})
        with cockpit(it, tmp_path) as (run, terminal):
            run.wait_for_load(3)
            spans = []
            for number in range(CHANGES):
                press(terminal, b"]" if number % 2 == 0 else b"[")
                spans.append(max(run.wait_for(partial(reached_s, number + 1))))
            took_s = run.ticks()[-1].t_s - run.started()[1].t_s
            leave(terminal)
        result = run.result()
        wait_until_nothing_is_left(it)
    tell(
        f"{CHANGES} changes by key in {took_s:.0f} s at three hosts: all of them had begun the stage after "
        f"{sorted(spans)[len(spans) // 2]:.2f} s (median), {max(spans):.2f} s (longest)"
    )
    require_sums(result)
    assert [stage["target"]["concurrency"] for stage in result["stages"]] == [12, *([24, 12] * (CHANGES // 2))]
    # The limit, by the journal's own times; a tick adds up to a quarter of a second to each.
    assert max(spans) < REACHED_WITHIN_S + 0.25


def held(streams: int, lines: list[Line]) -> bool | None:
    """Whether the last tick has so many streams."""
    ticks = [line for line in lines if isinstance(line, Ticked)]
    return True if ticks and ticks[-1].held == streams else None


def measured_by_each(index: int, lines: list[Line]) -> bool | None:
    """Whether each of the hosts has completed requests that count in the stage."""
    ticks = [line for line in lines if isinstance(line, Ticked) and line.hosts]
    completed = [
        sum(tick.hosts[host].stages[index].completed for tick in ticks if index in tick.hosts[host].stages)
        for host in range(3)
    ]
    return True if all(completed) else None


def held_by_each(streams: int, lines: list[Line]) -> bool | None:
    """Whether the last tick has so many streams on each host."""
    ticks = [line for line in lines if isinstance(line, Ticked) and line.hosts]
    return True if ticks and all(host.held == streams for host in ticks[-1].hosts) else None


def test_a_pause_reaches_every_host_and_so_does_its_end(tmp_path: Path) -> None:
    load = {"isl": 16, "osl": 20, "concurrency": 12, "duration": "300s", "warmup": 0}
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, load, {})
        with cockpit(it, tmp_path) as (run, terminal):
            run.wait_for_load(3)
            press(terminal, b" ")
            run.wait_for(partial(held_by_each, 0))
            press(terminal, b" ")
            run.wait_for(partial(held_by_each, 4))
            leave(terminal)
        result = run.result()
        wait_until_nothing_is_left(it)
    require_sums(result)
    assert result["stages"][0]["stop_reason"] == "the operator paused"


def test_load_by_hand_in_a_monitor_comes_from_the_hosts(tmp_path: Path) -> None:
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, {"isl": 16, "osl": 20}, {})
        with cockpit(it, tmp_path, "monitor", "--server", "p.toml") as (run, terminal):
            run.wait_for(lambda lines: True if run.ticks() else None)
            assert not any(host.pids() for host in it.hosts), "no load, no host"
            press(terminal, b"+")
            run.wait_for(partial(held, 1))
            for streams in (2, 4, 8):
                press(terminal, b"]")
                run.wait_for(partial(held, streams))
            run.wait_for(partial(measured_by_each, len(run.started()) - 1))
            press(terminal, b"0")
            run.wait_for(partial(held_by_each, 0))
            leave(terminal)
        result = run.result()
        wait_until_nothing_is_left(it)
    require_sums(result)
    most = next(stage for stage in result["stages"] if stage["target"]["concurrency"] == 8)
    assert [host["requests"]["sent"] > 0 for host in most["hosts"]] == [True, True, True]
