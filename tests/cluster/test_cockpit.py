"""The load of three hosts under the operator's hand."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from loadgen.metrics.journal import Line, StageStarted, Ticked
from tests.cluster.figures import tell
from tests.cluster.machines import cluster
from tests.cluster.operating import cockpit, wait_until_nothing_is_left, write_profile
from tests.cluster.test_loss import require_sums

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


@pytest.mark.timeout(240)
def test_fifty_changes_by_key_reach_every_host(tmp_path: Path) -> None:
    load = {"isl": 16, "osl": 20, "concurrency": 12, "duration": "300s", "warmup": 0}
    with cluster("--preset", "bench") as it:
        write_profile(it, tmp_path, load, {})
        with cockpit(it, tmp_path) as (run, terminal):
            run.wait_for_load(3)
            spans = []
            for number in range(CHANGES):
                terminal.press(b"]" if number % 2 == 0 else b"[")
                terminal.read_waiting()
                spans.append(max(run.wait_for(partial(reached_s, number + 1))))
            took_s = run.ticks()[-1].t_s - run.started()[1].t_s
            terminal.press(b"q")
            terminal.read_until(b"A run is live")
            terminal.press(b"f")
            terminal.read_rest()
            assert terminal.wait() == os.EX_OK
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
