"""Open-loop arrivals as scheduled and as received: are they Poisson, on time, and as many as asked for?

The simulator notes the kernel's receive timestamp of every request. A row shows how far the gaps between them are from
exponential (Kolmogorov-Smirnov, next to the distance of the schedule itself and the critical value at 1 %; no
measurement can be closer than the schedule), the dispersion of the counts in 10 ms (variance / mean, 1 for Poisson),
and how late requests were sent, by the client, and received. The least lateness at the server is the transport's and
counts as 0.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.running import Table, attach, finish, read_options, scratch, simulator
from loadgen.report.tabular import Column
from loadgen.schema.result import Result
from loadgen.simulator.__main__ import main as simulate
from loadgen.simulator.__main__ import main_parser
from loadgen.simulator.ground_truth import GroundTruth, ServedStream
from loadgen.workload.arrivals import arrival_offsets_s

SEED = 1
BIN_S = 0.010
STAMPS = Path("stamps")
Times = NDArray[np.float64]
CASES = ((500.0, "uniform:2:8", 1), (500.0, "uniform:2:8", 4), (1000.0, "8", 1), (1000.0, "8", 2))
"""Rate, output tokens and workers."""


class Row(NamedTuple):
    rate: float
    workers: int
    schedule: Times  # in seconds
    times: Times
    result: Result

    @property
    def late_ms(self) -> Times:
        both = min(len(self.times), len(self.schedule))
        late: Times = (self.times[:both] - self.schedule[:both]) * 1000
        return late - float(late.min())

    @property
    def critical(self) -> float:
        return 1.628 / float(np.sqrt(len(self.times) - 1))

    @property
    def dispersion(self) -> float:
        counts = np.histogram(self.times, bins=np.arange(0.0, self.schedule[-1], BIN_S))[0]
        return float(counts.var() / counts.mean())


def distance_from_exponential(times: Times, rate: float) -> float:
    """Return the Kolmogorov-Smirnov statistic of the gaps against the exponential law with mean 1/rate."""
    law = 1 - np.exp(-np.sort(np.diff(times)) * rate)
    ranks = np.arange(len(law) + 1) / len(law)
    return float(max(np.max(ranks[1:] - law), np.max(law - ranks[:-1])))


COLUMNS = (
    Column[Row]("rate", lambda row: row.rate, decimals=0),
    Column[Row]("workers", lambda row: row.workers),
    Column[Row]("scheduled", lambda row: len(row.schedule)),
    Column[Row]("received", lambda row: len(row.times)),
    Column[Row]("completed", lambda row: row.result.stages[0].requests.completed),
    Column[Row]("KS schedule", lambda row: distance_from_exponential(row.schedule, row.rate), decimals=4),
    Column[Row]("KS received", lambda row: distance_from_exponential(row.times, row.rate), decimals=4),
    Column[Row]("critical", lambda row: row.critical, decimals=4),
    Column[Row]("dispersion", lambda row: row.dispersion, decimals=3),
    Column[Row]("send lag p99, ms", lambda row: row.result.client.send_lag_ms.p99, decimals=3),
    Column[Row]("at the server p50, ms", lambda row: float(np.percentile(row.late_ms, 50)), decimals=3),
    Column[Row]("p99", lambda row: float(np.percentile(row.late_ms, 99)), decimals=3),
    Column[Row]("  verdict", lambda row: f"  {row.result.client.why or 'not limited'}", words=True),
)


def note_stamps() -> None:
    """Let the simulator of this process write when each request was received, in nanoseconds."""
    file = os.open(STAMPS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    arrived = GroundTruth.arrived

    def noted(self: GroundTruth, received_ns: int, **rest: Any) -> ServedStream:
        os.write(file, received_ns.to_bytes(8, sys.byteorder))
        return arrived(self, received_ns, **rest)

    GroundTruth.arrived = noted  # type: ignore[method-assign]


async def measure(rate: float, osl: str, workers: int, duration_s: float) -> Row:
    load = {"rate": rate, "duration": duration_s, "workers": workers, "isl": 16, "osl": osl, "seed": SEED}
    async with simulator(10, program=("-m", "benchmarks.arrivals", "--serve")) as url:
        result = await finish(attach(url, load, telemetry="off", canary={"enabled": False}))
    # A run sends probe requests before its load; those of the stage came last.
    stamps = np.sort(np.fromfile(STAMPS, dtype=np.int64)[-result.stages[0].requests.sent :])
    schedule = takewhile(lambda offset: offset < duration_s, arrival_offsets_s(rate, "poisson", SEED))
    return Row(rate, workers, np.fromiter(schedule, dtype=np.float64), (stamps - stamps[0]) / 1e9, result)


async def tell(duration_s: float) -> None:
    table = Table(COLUMNS)
    for rate, osl, workers in CASES:
        table.add(await measure(rate, osl, workers, duration_s))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        note_stamps()
        simulate(main_parser().parse_args(sys.argv[2:]))
    else:
        options = read_options(__doc__, duration=20.0)
        with scratch():
            asyncio.run(tell(options.duration))
