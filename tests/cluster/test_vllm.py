"""The real vLLM, started by vramp on the operator's machine and loaded from three hosts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.cluster.figures import tell
from tests.cluster.machines import cluster
from tests.cluster.operating import vramp, wait_until_nothing_is_left
from tests.vllm.engine import HERE, PROFILE, engine_processes

pytestmark = [pytest.mark.cluster, pytest.mark.vllm, pytest.mark.timeout(600)]

REQUESTS, ISL, OSL = 60, 128, 16


def test_three_hosts_load_a_vllm_that_vramp_started(tmp_path: Path) -> None:
    with cluster() as it:
        settings = [*HERE, f"server.host={it.operator.address}", "load.workers=3"]
        words = ["--hosts", it.names, "--concurrency", "6", "--requests", str(REQUESTS)]
        words += ["--isl", str(ISL), "--osl", str(OSL)]
        words += [word for setting in settings for word in ("--set", setting)]
        # What it compiled before is in the cache; its temporary files need more room than the machine's `/tmp` has.
        places = {"XDG_CACHE_HOME": str(Path.home() / ".cache"), "TMPDIR": tempfile.gettempdir()}
        with vramp(it, tmp_path, *words, profile=str(PROFILE), env=places) as (run, process):
            code = process.wait()
        assert code == 0, run.said()
        wait_until_nothing_is_left(it)
        assert not engine_processes()
    (stage,) = run.result()["stages"]
    shares = [host["requests"]["completed"] for host in stage["hosts"]]
    ttft_ms, engine = stage["latency_ms"]["ttft"], stage["engine"]
    tell(
        f"vLLM on the operator's machine, three hosts: {shares} requests, mean TTFT {ttft_ms['mean']:.1f} ms, "
        f"the engine's own {engine['ttft_mean_ms']:.1f} ms; {stage['why'] if stage['limited'] else 'not limited'}"
    )
    assert sum(shares) == stage["requests"]["completed"] == REQUESTS
    assert min(shares) > 0
    assert (stage["tokens"]["input"], stage["tokens"]["output"]) == (REQUESTS * ISL, REQUESTS * OSL)
    assert "accounting" not in [verdict["id"] for verdict in stage["verdicts"]]
