"""The real vLLM, started by vramp on the operator's machine and loaded from three hosts."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster.figures import tell
from tests.cluster.machines import ROOT, cluster
from tests.cluster.operating import wait_until_nothing_is_left
from tests.vllm.engine import HERE, PROFILE, engine_processes

pytestmark = [pytest.mark.cluster, pytest.mark.vllm, pytest.mark.timeout(600)]

REQUESTS, ISL, OSL = 60, 128, 16


def test_three_hosts_load_a_vllm_that_vramp_started(tmp_path: Path) -> None:
    with cluster() as it:
        settings = [*HERE, f"server.host={it.operator.address}", "load.workers=3"]
        command = [sys.executable, "-m", "tui.cli", "run", str(PROFILE), "--json", "o.json", "--hosts", it.names]
        command += ["--concurrency", "6", "--requests", str(REQUESTS), "--isl", str(ISL), "--osl", str(OSL)]
        command += [word for setting in settings for word in ("--set", setting)]
        # What it compiled before is in the cache; its temporary files need more room than the machine's `/tmp` has.
        places = {"XDG_CACHE_HOME": str(Path.home() / ".cache"), "TMPDIR": tempfile.gettempdir()}
        output = tmp_path / "output"
        with output.open("w") as file:
            options = {"cwd": tmp_path, "env": places | {"PYTHONPATH": str(ROOT)}, "stdout": file, "stderr": file}
            with it.operator.start(*command, **options) as process:
                code = process.wait()
        said = output.read_text()
        assert code == 0, said
        wait_until_nothing_is_left(it)
        assert not engine_processes()
    (stage,) = json.loads((tmp_path / "o.json").read_text())["stages"]
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
