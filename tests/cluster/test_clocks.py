"""Hosts whose clocks differ, or are moved while a stage runs: no figure is wrong, and what is known is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.schema.journal import ClockMoved
from tests.cluster.figures import tell
from tests.cluster.machines import cluster
from tests.cluster.operating import run_to_end, vramp, wait_until_nothing_is_left, write_profile
from tests.cluster.test_loss import finished, goes_on, now_s, require_sums

pytestmark = pytest.mark.cluster

LOAD = {"isl": 16, "osl": 50, "concurrency": 12, "requests": 240, "warmup": 0}
MEAN_WITHIN = 0.05


@pytest.mark.parametrize("clocks_s", [(-3, 0, 3), (1000, 100_000, 0)], ids=str)
def test_clocks_that_differ_change_no_figure(tmp_path: Path, clocks_s: tuple[int, ...]) -> None:
    with cluster("--preset", "bench", clocks_s=clocks_s) as it:
        write_profile(it, tmp_path, LOAD | {"first_wave": "counted"}, {})
        run, code = run_to_end(it, tmp_path)
        assert code == 0, run.said()
        truth = it.truth()["latency_ms"]
        wait_until_nothing_is_left(it)
    result = run.result()
    require_sums(result)
    (stage,) = result["stages"]
    last = next(tick for tick in reversed(run.ticks()) if tick.hosts)
    for host, clock_s in zip(last.hosts, clocks_s, strict=True):
        # The interval surely holds the offset: no tolerance.
        assert abs(host.offset_ns - clock_s * 10**9) <= host.uncertainty_ns
        tell(
            f"a clock {clock_s:+} s: found {host.offset_ns / 1e6:+.3f} ms +- {host.uncertainty_ns / 1e6:.3f}, "
            f"RTT {host.rtt_ns / 1e6:.3f} ms"
        )
    for quantity in ("ttft", "tpot"):
        assert stage["latency_ms"][quantity]["mean"] == pytest.approx(truth[quantity]["mean"], rel=MEAN_WITHIN)
    assert stage["requests"]["completed"] == LOAD["requests"]
    # All hosts began at one moment: the window would otherwise be longer by what their clocks differ.
    assert stage["measured_s"] == pytest.approx(result["stages"][0]["duration_s"], abs=1.0)


@pytest.mark.parametrize("step_s", [2.0, -2.0])
def test_a_clock_that_is_moved_is_a_verdict_and_no_wrong_number(tmp_path: Path, step_s: float) -> None:
    load = LOAD | {"requests": None, "duration": "100s"}
    load.pop("requests")
    with cluster("--preset", "bench", movable_clocks=True) as it:
        write_profile(it, tmp_path, load, {})
        with vramp(it, tmp_path) as (run, process):
            run.wait_for_load(3)
            it.hosts[1].step_clock(step_s)
            moved = run.wait_for(lambda lines: next((line for line in lines if isinstance(line, ClockMoved)), None))
            # The moment of the move itself is a small part of the stage then.
            goes_on(run, now_s(run.lines()) + 8.0, 12)
            result = finished(run, process)
        wait_until_nothing_is_left(it)
    tell(f"a clock moved by {step_s:+} s in mid-run: reported as {moved.by_ns / 1e9:+.4f} s of {moved.host}")
    assert moved.host == "host-b"
    assert moved.by_ns / 1e9 == pytest.approx(step_s, abs=0.1)
    require_sums(result)
    (stage,) = result["stages"]
    assert "clock-moved" in [verdict["id"] for verdict in stage["verdicts"]]
    # Every stream lives half a second: whatever took as long as the step is the step.
    assert 0 < stage["latency_ms"]["ttft"]["min"] <= stage["latency_ms"]["ttft"]["max"] < 1900
    assert stage["latency_ms"]["tpot"]["max"] < 100
    assert stage["hosts"][1]["held"] == pytest.approx(4, rel=0.1)
