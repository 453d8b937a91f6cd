"""A host whose network is bad: its own rows say so, and those of the others do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.figures import tell
from tests.cluster.machines import cluster
from tests.cluster.network import bandwidth, loss
from tests.cluster.operating import Run, wait_until_nothing_is_left
from tests.cluster.test_accuracy import stage_of
from tests.cluster.test_loss import require_sums

pytestmark = pytest.mark.cluster

LOST_SHARE = 0.05
MBIT_PER_S = 8.0


def coalesced_shares(run: Run) -> list[float]:
    """Of each host's reads, those that carried several events: what comes after a lost packet waits for it."""
    ticks = [tick for tick in run.ticks() if tick.hosts]
    return [
        sum(tick.hosts[host].client.coalesced_reads for tick in ticks)
        / sum(tick.hosts[host].client.reads for tick in ticks)
        for host in range(len(ticks[0].hosts))
    ]


def test_lost_packets_of_one_host_are_its_own_and_name_it(tmp_path: Path) -> None:
    load = {"isl": 16, "osl": 100, "concurrency": 12, "requests": 120, "warmup": 0}
    with cluster("--preset", "bench") as it:
        with loss(it.hosts[1].machine, LOST_SHARE):
            run, stage = stage_of(it, tmp_path, hosts=True, load=load)
        wait_until_nothing_is_left(it)
    require_sums(run.result())
    shares = coalesced_shares(run)
    first, lossy, last = shares
    tell(
        f"{LOST_SHARE:.0%} of the packets to host-b lost: reads with several events "
        f"{', '.join(f'{share:.2%}' for share in shares)}; the result says: {stage['why']}"
    )
    # Each lost token is read together with its successor; TCP needs a few more for what it sends again.
    assert lossy > LOST_SHARE / 2
    assert max(first, last) < lossy / 2
    assert stage["limited"]
    assert stage["hosts"][1]["why"] is not None
    assert stage["requests"]["completed"] == load["requests"]


def test_a_narrow_link_of_one_host_shows_in_its_ttft_alone(tmp_path: Path) -> None:
    load = {"isl": 8000, "osl": 4, "concurrency": 12, "requests": 120, "warmup": 0}
    with cluster("--preset", "bench") as it:
        with bandwidth(it.hosts[2].machine, MBIT_PER_S):
            run, stage = stage_of(it, tmp_path, hosts=True, load=load)
        wait_until_nothing_is_left(it)
    require_sums(run.result())
    ttft_ms = [host["latency_ms"]["ttft"]["p50"] for host in stage["hosts"]]
    *others, narrow = ttft_ms
    tell(f"host-c sends at {MBIT_PER_S:g} Mbit/s, prompts of 8,000 tokens: TTFT p50 {ttft_ms} ms")
    # Four prompts of 40 kB and more at a time take 160 ms on this link, whatever else the machine does.
    assert narrow - max(others) > 50.0
