"""A search drives the hosts as it drives one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.figures import tell
from tests.cluster.machines import cluster
from tests.cluster.operating import run_to_end, wait_until_nothing_is_left, write_profile
from tests.cluster.test_loss import require_sums

pytestmark = pytest.mark.cluster

BENDS = ("--base-ms", "16", "--per-seq-ms", "8", "--per-prefill-token-ms", "0", "--jitter", "0")
"""A token takes 16 + 8 N ms."""


def test_a_search_finds_the_load_that_three_hosts_may_send(tmp_path: Path) -> None:
    load = {"isl": 8, "osl": 8, "concurrency": 3, "duration": "2s"}
    plan = {"search": "slo", "precision": 0.5, "goodput": 0.5, "settle": "300ms", "completed": 5, "longest": "30s"}
    with cluster(*BENDS) as it:
        # 9 streams take 88 ms, and 12 take 112 ms; the machine adds what it adds.
        write_profile(it, tmp_path, load, {}, plan=plan, slo={"tpot": "100ms"})
        run, code = run_to_end(it, tmp_path)
        assert code == 0, run.said()
        wait_until_nothing_is_left(it)
    result = run.result()
    require_sums(result)
    loads = [stage["target"]["concurrency"] for stage in result["stages"]]
    tell(f"a search from three hosts: {loads} streams, found {result['search']['found']}")
    assert loads[:3] == [3, 6, 12]
    assert 6 <= result["search"]["found"] < 12
    for stage in result["stages"]:
        assert sum(host["requests"]["sent"] for host in stage["hosts"]) == stage["requests"]["sent"]
