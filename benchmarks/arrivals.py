"""Open-loop arrivals as scheduled and as received: are they Poisson, on time, and the same for any number of workers W?

The server is the simulator's own, in a separate process that keeps the kernel's receive timestamp of every request. For
these, a row shows how far the gaps are from exponential (Kolmogorov-Smirnov, with its critical value at 1 %), and the
dispersion of the counts in 10 ms (variance / mean, 1 for Poisson; with 2,000 bins, 0.03 of it is chance). The row of
the schedule shows the same for the intended times: no measurement can be closer to the distribution. The row of the
timer is a process that does nothing but wake at those times: the best that any client can do on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np
import uvloop
from numpy.typing import NDArray

from benchmarks.running import attach, finish
from loadgen.schema.result import Result
from loadgen.simulator.api import Api
from loadgen.simulator.http import Connection, HttpServer, Request
from loadgen.simulator.physics import PRESETS
from loadgen.simulator.service import Service
from loadgen.worker.realtime import ask_for_short_slices
from loadgen.worker.timing import PreciseTimer, timer_lead_ns
from loadgen.workload.arrivals import arrival_offsets_s, slice_for

SEED = 1
ISL = 16
BIN_S = 0.010
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Requested:
    """An open-loop load."""

    rate: float
    duration_s: float
    osl: str | int
    workers: int

    def schedule(self) -> Times:
        """Return when its requests are due, in seconds."""
        offsets = arrival_offsets_s(self.rate, "poisson", SEED)
        return np.fromiter(takewhile(lambda offset: offset < self.duration_s, offsets), dtype=np.float64)


def serve(pipe: Pipe) -> None:
    """Run the simulator: send its port, and when the parent asks, the time at which each request was received."""
    stamps = array("q")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        service = Service(loop, PRESETS["bench"], model="simulator", seed=0, faults=[])
        answer = Api(service).handle

        def handle(connection: Connection, request: Request) -> None:
            if request.path == "/v1/completions":
                stamps.append(request.received_ns)
            answer(connection, request)

        server, requested = HttpServer(loop, handle), asyncio.Event()
        pipe.send(server.listen("127.0.0.1", 0))
        loop.add_reader(pipe.fileno(), requested.set)
        await requested.wait()
        loop.remove_reader(pipe.fileno())
        server.close()

    uvloop.run(run())
    # The loop has left it non-blocking.
    os.set_blocking(pipe.fileno(), True)
    pipe.send(stamps.tobytes())


@contextmanager
def recording_simulator() -> Iterator[tuple[str, Pipe]]:
    """Start a simulator that keeps every request's time; yields its URL and the pipe to ask for them."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield f"http://127.0.0.1:{ours.recv()}", ours
    finally:
        process.join(timeout=5)
        process.kill()
        ours.close()


def measure(requested: Requested) -> tuple[Result, Times]:
    """Run a load; return its result, and when its requests reached the server, in seconds."""
    load: dict[str, float | str] = {
        "rate": requested.rate,
        "duration": requested.duration_s,
        "workers": requested.workers,
    }
    load |= {"isl": ISL, "osl": requested.osl, "seed": SEED}
    with recording_simulator() as (url, pipe):
        result = asyncio.run(finish(attach(url, load, telemetry="off")))
        pipe.send("stop")
        stamps = np.frombuffer(pipe.recv(), dtype=np.int64)
    # A run sends probe requests before its load; those of the stage came last.
    stage = np.sort(stamps[-result.stages[0].requests.sent :])
    return result, (stage - stage[0]) / 1e9


def distance_from_exponential(times_s: Times, rate: float) -> float:
    """Return the Kolmogorov-Smirnov statistic of the gaps against the exponential law with mean 1/rate."""
    law = 1 - np.exp(-np.sort(np.diff(times_s)) * rate)
    ranks = np.arange(len(law) + 1) / len(law)
    return float(max(np.max(ranks[1:] - law), np.max(law - ranks[:-1])))


def dispersion(times_s: Times, duration_s: float) -> float:
    """Return variance over mean of the counts in bins of `BIN_S`."""
    counts = np.histogram(times_s, bins=round(duration_s / BIN_S), range=(0.0, duration_s))[0]
    return float(counts.var() / counts.mean())


def law_of(times_s: Times, requested: Requested) -> str:
    """Say how close arrivals are to Poisson."""
    critical = 1.628 / np.sqrt(len(times_s) - 1)
    distance = distance_from_exponential(times_s, requested.rate)
    verdict = "passes" if distance < critical else "FAILS"
    return (
        f"{len(times_s):>6} requests   KS {distance:.4f} ({verdict} {critical:.4f})   "
        f"dispersion {dispersion(times_s, requested.duration_s):.3f}"
    )


def same_for_every_w(requested: Requested) -> bool:
    """Whether the shares of 1, 2, 4 and 8 workers together are exactly the schedule."""
    wanted = requested.schedule().tolist()
    for workers in (1, 2, 4, 8):
        shares = [slice_for(iter(wanted), rank, workers) for rank in range(workers)]
        if [offset for _, offset in sorted(entry for share in shares for entry in share)] != wanted:
            return False
    return True


def lateness_ms(times_s: Times, schedule: Times) -> str:
    """Return the lateness of arrivals against the schedule; the least is the transport and counts as 0."""
    both = min(len(times_s), len(schedule))
    late = times_s[:both] - schedule[:both]
    p50, p99 = (float(value) for value in np.percentile(late - late.min(), (50, 99)) * 1000)
    return f"p50 {p50:.3f} p99 {p99:.3f} ms"


def wake(pipe: Pipe, requested: Requested) -> None:
    """Send when a timer that was set to the times of the schedule fired, in nanoseconds after the start."""
    called = array("q")
    due_ns = [int(offset_s * 1e9) for offset_s in requested.schedule()]

    async def run() -> None:
        over = asyncio.Event()
        start_ns = time.monotonic_ns() + 100_000_000

        def call() -> None:
            called.append(time.monotonic_ns() - start_ns)
            if len(called) < len(due_ns):
                timer.set(start_ns + due_ns[len(called)])
            else:
                over.set()

        timer = PreciseTimer(asyncio.get_running_loop(), call)
        timer.lead_ns = timer_lead_ns(requested.rate)
        timer.set(start_ns + due_ns[0])
        await over.wait()

    ask_for_short_slices()
    uvloop.run(run())
    pipe.send(called.tobytes())


def woken(requested: Requested) -> Times:
    """Return the times of `wake`, run in a separate process, in seconds."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=wake, args=(theirs, requested), daemon=True)
    process.start()
    times_ns = np.frombuffer(ours.recv(), dtype=np.int64)
    process.join()
    return times_ns / 1e9


def when(result: Result, times_s: Times, requested: Requested) -> str:
    """Say how late requests were, by the client's own figures and by the server's timestamps."""
    lag = result.client.send_lag_ms
    return (
        f"send lag p50 {lag.p50 or 0:.3f} p99 {lag.p99 or 0:.3f} ms   at the server "
        f"{lateness_ms(times_s, requested.schedule())}   {result.client.why or 'not limited'}"
    )


def poisson(rate: float, duration_s: float) -> None:
    """Print the rows of Poisson arrivals: the schedule, a timer alone, then W = 1 and 4."""
    requested = Requested(rate, duration_s, "uniform:2:8", 1)
    print(f"Poisson, {rate:g}/s for {duration_s:g} s; identical for W = 1, 2, 4, 8: {same_for_every_w(requested)}")
    print(f"{'schedule':<9} {law_of(requested.schedule(), requested)}")
    alone = woken(requested)
    print(f"{'timer':<9} {law_of(alone, requested)}   {lateness_ms(alone, requested.schedule())}", flush=True)
    for workers in (1, 4):
        requested = Requested(rate, duration_s, "uniform:2:8", workers)
        result, times_s = measure(requested)
        print(f"{f'W = {workers}':<9} {law_of(times_s, requested)}   {when(result, times_s, requested)}", flush=True)


def fast(rate: float, duration_s: float, workers: int) -> None:
    """Print the row of many short streams: achieved beside requested."""
    requested = Requested(rate, duration_s, 8, workers)
    result, times_s = measure(requested)
    stage, wanted = result.stages[0], len(requested.schedule())
    sent, completed = stage.requests.sent, stage.requests.completed
    print(
        f"{rate:g}/s of 8 tokens for {duration_s:g} s, W = {workers}: {wanted} asked, {sent} sent "
        f"({sent / wanted - 1:+.2%}), {completed} completed, {stage.throughput.requests_per_s or 0:.1f}/s measured; "
        f"{when(result, times_s, requested)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--duration", type=float, default=20.0, help="seconds of the Poisson rows")
    parser.add_argument("--fast-duration", type=float, default=30.0, help="seconds at 1,000/s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(Path(name))
        poisson(options.rate, options.duration)
        for workers in (1, 2):
            fast(1000.0, options.fast_duration, workers)


if __name__ == "__main__":
    main()
