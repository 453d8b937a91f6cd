"""`python -m benchmarks.hosts`: what a host of a cluster costs.

Every host is a Dask worker on loopback with vramp's actor and no load, so that only the layer between the machines is
measured: the time until all hosts have joined, the memory and CPU of each, what they cost the operator's vramp (which
runs the scheduler), the round trip of an exchange, and the uncertainty of the clock offset.
"""

from __future__ import annotations

import asyncio
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import dask
import distributed
import msgspec
import psutil

from benchmarks.running import cpu_s, read_options
from loadgen.cluster.facts import host_facts
from loadgen.cluster.link import ClusterHost
from loadgen.cluster.start import StartedHosts, joined
from loadgen.report.tabular import Column, markdown_table

_SETTINGS = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False", "DASK_LOGGING__DISTRIBUTED": "error"}
_WORKER = (sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--nthreads", "1", "--no-dashboard")


class Cost(msgspec.Struct, frozen=True):
    """What so many hosts cost; CPU in percent of a core, memory in MB."""

    hosts: int
    start_s: float
    rss_mb: list[float]  # of the operator's vramp, then of each host
    cpu_percent: list[float]
    rtts_ms: list[float]
    uncertainty_ms: float

    @property
    def exchange_ms(self) -> str:
        cuts = statistics.quantiles(self.rtts_ms, n=100)
        return f"{cuts[49]:.1f}, {cuts[98]:.1f}"


COLUMNS = (
    Column[Cost]("hosts", lambda cost: cost.hosts),
    Column[Cost]("joined after, s", lambda cost: cost.start_s, decimals=1),
    Column[Cost]("a host: memory, MB", lambda cost: statistics.mean(cost.rss_mb[1:]), decimals=0),
    Column[Cost]("a host: CPU, %", lambda cost: statistics.mean(cost.cpu_percent[1:]), decimals=1),
    Column[Cost]("operator: memory, MB", lambda cost: cost.rss_mb[0], decimals=0),
    Column[Cost]("operator: CPU, %", lambda cost: cost.cpu_percent[0], decimals=1),
    Column[Cost]("exchange p50, p99, ms", lambda cost: cost.exchange_ms),
    Column[Cost]("offset known to, ms", lambda cost: f"±{cost.uncertainty_ms:.2f}"),
)


@contextmanager
def dask_workers(scheduler: str, count: int) -> Iterator[list[psutil.Process]]:
    command = [*_WORKER, "--memory-limit", "0", scheduler]
    processes = [subprocess.Popen(command, env=os.environ | _SETTINGS, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield [psutil.Process(process.pid) for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


async def cost_of(count: int, seconds: float) -> Cost:
    began_s = time.monotonic()
    async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        with dask_workers(scheduler.address, count) as processes:
            async with distributed.Client(scheduler.address, asynchronous=True) as client:
                await client.wait_for_workers(count)
                names = enumerate(client.scheduler_info(n_workers=-1)["workers"])
                workers = tuple(
                    (msgspec.structs.replace(host_facts(), name=f"host-{number}", address=address), address)
                    for number, address in names
                )
                async with joined(StartedHosts(client, workers, owned=False)) as hosts:
                    start_s = time.monotonic() - began_s
                    return await idle(hosts, [psutil.Process(), *processes], start_s, seconds)


async def idle(hosts: Sequence[ClusterHost], processes: list[psutil.Process], start_s: float, seconds: float) -> Cost:
    used_before_s, until_s = [cpu_s(process) for process in processes], time.monotonic() + seconds
    rtts_ms: list[float] = []
    while time.monotonic() < until_s:
        await asyncio.sleep(0.25)
        rtts_ms += [host.rtt_ns / 1e6 for host in hosts]
    return Cost(
        hosts=len(hosts),
        start_s=start_s,
        rss_mb=[process.memory_info().rss / 1e6 for process in processes],
        cpu_percent=[
            100 * (cpu_s(process) - before_s) / seconds
            for process, before_s in zip(processes, used_before_s, strict=True)
        ],
        rtts_ms=rtts_ms,
        uncertainty_ms=max(host.uncertainty_ns for host in hosts) / 1e6,
    )


if __name__ == "__main__":
    options = read_options(__doc__, hosts=(1, 3, 8), seconds=10.0)
    dask.config.set({"distributed.worker.profile.enabled": False})
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    print(markdown_table(COLUMNS, [asyncio.run(cost_of(count, options.seconds)) for count in options.hosts]))
