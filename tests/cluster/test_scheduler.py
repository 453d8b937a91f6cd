"""A load through a Dask cluster of others: vramp ends what it put there, and nothing else."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.figures import tell
from tests.cluster.machines import Host, cluster, dask
from tests.cluster.network import wait_until_gone
from tests.cluster.operating import PATIENCE_S, run_to_end, vramp, wait_until_nothing_is_left, write_profile
from tests.cluster.test_loss import LOAD, STREAMS, finished, goes_on, lost_after_s, now_s, require_sums, strike

pytestmark = pytest.mark.cluster


def test_a_run_leaves_a_cluster_as_it_was(tmp_path: Path) -> None:
    load = LOAD | {"duration": None, "requests": 60}
    with cluster("--preset", "bench") as it, dask(it) as address:
        write_profile(
            it, tmp_path, {key: value for key, value in load.items() if value is not None}, {"scheduler": address}
        )
        before = [host.machine.pids() for host in it.hosts]
        for _ in range(2):
            run, code = run_to_end(it, tmp_path)
            assert code == 0, run.said()
            wait_until_nothing_is_left(it)
            assert [host.machine.pids() for host in it.hosts] == before
    require_sums(run.result())
    assert run.result()["stages"][0]["requests"]["completed"] >= 60


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_scheduler_that_dies_or_stalls_leaves_no_load(tmp_path: Path, number: int) -> None:
    with cluster("--preset", "bench") as it, dask(it) as address:
        write_profile(it, tmp_path, LOAD, {"scheduler": address})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            after_s = lost_after_s(run, strike(run, it.scheduler.pids(), number))
            # Every exchange goes through the scheduler: without it no host can be reached, and the run is over.
            assert process.wait(timeout=PATIENCE_S) == 1
        wait_until_no_worker_is_left(it.hosts)
    result = run.result()
    assert result["state"] == "failed"
    assert result["stages"][0]["requests"]["lost"] == STREAMS
    tell(f"the scheduler by {signal.Signals(number).name}: all hosts lost after {after_s:.2f} s, with their streams")
    require_sums(result)


def wait_until_no_worker_is_left(hosts: list[Host]) -> None:
    for host in hosts:
        wait_until_gone(host.pids("loadgen.worker"))


def test_the_others_go_on_without_a_worker_of_dask_that_dies(tmp_path: Path) -> None:
    with cluster("--preset", "bench") as it, dask(it) as address:
        write_profile(it, tmp_path, LOAD, {"scheduler": address})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            after_s = lost_after_s(run, strike(run, {it.hosts[0].actor_pid()}, signal.SIGKILL))
            goes_on(run, now_s(run.lines()), STREAMS * 2 // 3)
            result: dict[str, Any] = finished(run, process)
        wait_until_nothing_is_left(it)
    tell(f"a worker of Dask killed: lost after {after_s:.2f} s")
    require_sums(result)
