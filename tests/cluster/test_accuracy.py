"""Figures of a load from three hosts against the truth, and next to the same load from one machine."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from loadgen.metrics.histogram import Histogram
from tests.cluster.figures import tell
from tests.cluster.machines import Cluster, cluster
from tests.cluster.operating import Run, run_to_end, wait_until_nothing_is_left, write_profile

pytestmark = pytest.mark.cluster

STREAMS = 1536
STEP_MS, OSL = 2000, 4
WITHIN = 0.02


def stage_of(it: Cluster, folder: Path, hosts: bool, load: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    write_profile(it, folder, load, {} if hosts else None)
    run, code = run_to_end(it, folder)
    assert code == 0, run.said()
    (stage,) = run.result()["stages"]
    return run, stage


@pytest.mark.timeout(240)
def test_three_hosts_of_512_streams_tell_what_one_machine_of_1536_tells(tmp_path: Path) -> None:
    # Long steps: server and clients share this machine's cores, and what they take of a step is in every TTFT.
    load = {"isl": 32, "osl": OSL, "concurrency": STREAMS, "requests": 3 * STREAMS}
    reported, limited = {}, {}
    with cluster("--preset", "bench", "--step-ms", str(STEP_MS)) as it:
        for name, hosts in (("one machine", False), ("three hosts", True)):
            it.forget()
            _, stage = stage_of(it, tmp_path / name.replace(" ", "-"), hosts, load)
            truth = after_the_first_wave(it, stage)
            reported[name] = [(stage["latency_ms"][of]["mean"], truth[of]["mean"]) for of in ("ttft", "tpot")]
            limited[name] = stage["why"] if stage["limited"] else None
        wait_until_nothing_is_left(it)
    for name, ((ttft, true_ttft), (tpot, true_tpot)) in reported.items():
        tell(
            f"{STREAMS} streams from {name}: mean TTFT {ttft:.2f} ms (truth {true_ttft:.2f}), "
            f"TPOT {tpot:.3f} ms (truth {true_tpot:.3f}), {limited[name] or 'not limited'}"
        )
        if limited[name] is None:
            assert ttft == pytest.approx(true_ttft, rel=WITHIN)
            assert tpot == pytest.approx(true_tpot, rel=WITHIN)
    if not any(limited.values()):
        for (one, _), (three, _) in zip(reported["one machine"], reported["three hosts"], strict=True):
            assert three == pytest.approx(one, rel=WITHIN)


def after_the_first_wave(it: Cluster, stage: dict[str, Any]) -> Any:
    """What was served to the requests that came later; where in a step the first wave begins is chance."""
    began_s = datetime.fromisoformat(stage["started_at"]).timestamp()
    return it.truth(since=int((began_s + STEP_MS * OSL / 2e3) * 1e9))["latency_ms"]


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
