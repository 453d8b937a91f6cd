"""Part of `make bench`: is the open loop's schedule what it should be, and is it kept?

The schedule is a pure function of the seed: its gaps are held against the exponential distribution and its counts
against Poisson's. How late requests were sent is the result's own send lag, in one run with each number of workers.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from itertools import islice, takewhile
from pathlib import Path

import numpy as np

from benchmarks.truth import simulator
from loadgen.metrics.result import Result
from loadgen.profile import build_profile
from loadgen.run import Run
from loadgen.workload.arrivals import arrival_offsets_s, slice_for

SEED = 1
_KS_1_PERCENT = 1.63


def schedule(rate: float, seconds: float) -> None:
    """KS statistic of the gaps, dispersion of the counts, and that workers share one schedule."""
    whole = list(islice(arrival_offsets_s(rate, "poisson", SEED), int(rate * seconds)))
    gaps = np.sort(np.diff(np.array(whole), prepend=0.0))
    steps = np.arange(1, len(gaps) + 1) / len(gaps)
    distance = float(np.abs(1 - np.exp(-rate * gaps) - steps).max())
    counts = np.bincount((np.array(whole) // 0.1).astype(int))[:-1]
    of_four = sorted(
        entry
        for worker in range(4)
        for entry in islice(slice_for(arrival_offsets_s(rate, "poisson", SEED), worker, 4), len(whole) // 4)
    )
    critical = _KS_1_PERCENT / len(gaps) ** 0.5
    print(
        f"Poisson {rate:g}/s, {len(whole)} arrivals: KS {distance:.4f} (1 % critical {critical:.4f}), "
        f"dispersion of counts a 0.1 s {counts.var() / counts.mean():.3f}, "
        f"the same for 1 and 4 workers: {of_four == list(enumerate(whole))}"
    )


async def kept(folder: Path, rate: float, seconds: float, workers: int) -> None:
    """One open-loop run of short streams and its line."""
    async with simulator(10, folder) as url:
        load = {"isl": 16, "osl": 8, "rate": rate, "duration": seconds, "workers": workers, "seed": SEED}
        document = {"name": "bench", "server": {"engine": "attach", "url": url}, "load": load, "telemetry": "off"}
        run = Run(build_profile(document, where="bench"), where="bench")
        async for _ in run.snapshots():
            pass
    if run.result is None or not run.result.stages:
        raise SystemExit(f"bench: {run.error}")
    print(_line(run.result, rate, workers), flush=True)


def _line(result: Result, rate: float, workers: int) -> str:
    stage, lag = result.stages[0], result.client.send_lag_ms
    # What this seed's schedule wants in that time: a Poisson process is not its mean.
    wanted = sum(1 for _ in takewhile(lambda t_s: t_s < stage.measured_s, arrival_offsets_s(rate, "poisson", SEED)))
    sent, intended_p99_ms = stage.requests.sent, stage.latency_ms["ttft_from_intended"].p99
    return (
        f"rate {rate:>5g}/s, {workers} workers: sent {sent} of {wanted} ({sent / wanted - 1:+.2%}), "
        f"send lag p50 {lag.p50 or 0:.3f} p99 {lag.p99 or 0:.3f} ms, "
        f"TTFT from intended p99 {intended_p99_ms or 0:.2f} ms; "
        f"failed {stage.requests.failed}; {result.client.why or 'not limited'}"
    )


async def everything(folder: Path) -> None:
    """The schedule, then how it is kept."""
    schedule(500, 20)
    for workers in (1, 4):
        await kept(folder, 500, 20, workers)
    await kept(folder, 1000, 30, 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        asyncio.run(everything(Path(name)))
