"""Figures of a load from three hosts beside the truth, and beside the same load from one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.metrics.histogram import Histogram
from tests.cluster.figures import tell
from tests.cluster.machines import Cluster, cluster
from tests.cluster.operating import Run, run_to_end, wait_until_nothing_is_left, write_profile

pytestmark = pytest.mark.cluster

STREAMS = 1536
WITHIN = 0.02


def stage_of(it: Cluster, folder: Path, hosts: bool, load: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    write_profile(it, folder, load, {} if hosts else None)
    run, code = run_to_end(it, folder)
    assert code == 0, run.said()
    (stage,) = run.result()["stages"]
    return run, stage


@pytest.mark.timeout(240)
def test_three_hosts_of_512_streams_tell_what_one_machine_of_1536_tells(tmp_path: Path) -> None:
    # 5 tok/s a stream: server and clients share this machine's cores.
    load = {"isl": 32, "osl": 16, "concurrency": STREAMS, "requests": 4 * STREAMS, "first_wave": "counted"}
    told, stages = {}, {}
    with cluster("--preset", "bench", "--step-ms", "200") as it:
        for name, hosts in (("one machine", False), ("three hosts", True)):
            it.forget()
            _, stages[name] = stage_of(it, tmp_path / name.replace(" ", "-"), hosts, load)
            truth = it.truth()["latency_ms"]
            told[name] = [(stages[name]["latency_ms"][of]["mean"], truth[of]["mean"]) for of in ("ttft", "tpot")]
        wait_until_nothing_is_left(it)
    for name, ((ttft, true_ttft), (tpot, true_tpot)) in told.items():
        limited = stages[name]["why"] if stages[name]["limited"] else "not limited"
        tell(
            f"{STREAMS} streams from {name}: mean TTFT {ttft:.2f} ms (truth {true_ttft:.2f}), "
            f"TPOT {tpot:.3f} ms (truth {true_tpot:.3f}), {limited}"
        )
        if not stages[name]["limited"]:
            assert ttft == pytest.approx(true_ttft, rel=WITHIN)
            assert tpot == pytest.approx(true_tpot, rel=WITHIN)
    if not any(stage["limited"] for stage in stages.values()):
        # What was served differs by where in a step of the server the streams begin: that difference is not theirs.
        for (one, true_one), (three, true_three) in zip(told["one machine"], told["three hosts"], strict=True):
            assert three - true_three == pytest.approx(one - true_one, abs=WITHIN * true_one)


def by_host_ms(run: Run, quantity: str) -> list[float]:
    """Each host's median, from the journal."""
    ticks = [tick for tick in run.ticks() if tick.hosts]
    merged = [Histogram() for _ in ticks[0].hosts]
    for tick in ticks:
        for histogram, host in zip(merged, tick.hosts, strict=True):
            for delta in host.stages.values():
                histogram.add(Histogram.decode(delta.latency.get(quantity)))
    return [histogram.percentile_ms(50) or 0.0 for histogram in merged]


def test_a_delay_of_one_host_shows_in_its_rows_alone(tmp_path: Path) -> None:
    load = {"isl": 32, "osl": 16, "concurrency": 12, "requests": 240}
    with cluster("--preset", "bench") as it, it.relayed(it.hosts[0].machine, delay_ms=20.0):
        run, _ = stage_of(it, tmp_path, hosts=True, load=load)
        wait_until_nothing_is_left(it)
    ttft_ms, tpot_ms = by_host_ms(run, "ttft"), by_host_ms(run, "tpot")
    tell(f"20 ms each way before the first of three hosts: TTFT p50 {ttft_ms} ms, TPOT p50 {tpot_ms} ms")
    delayed, *others = ttft_ms
    # 40 ms there and back by the relay's own timers, on steps of 10 ms.
    assert delayed - max(others) > 25.0
    assert max(others) - min(others) < 10.0
    assert max(tpot_ms) - min(tpot_ms) < 2.0
