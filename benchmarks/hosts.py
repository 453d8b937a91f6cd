"""What a host of a cluster costs: `python -m benchmarks.hosts [--hosts 1,3,8] [--seconds 10]`.

Every host is a Dask worker on loopback with vramp's actor and no load, so that only the layer between the machines is
measured: the time until all hosts have joined, the memory and CPU of each, what they cost the operator's vramp (which
runs the scheduler), the round trip of an exchange, and the uncertainty of the clock offset.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dask
import distributed
import msgspec
import psutil

from loadgen.cluster.connect import joined
from loadgen.cluster.facts import host_facts
from loadgen.cluster.link import ClusterHost
from loadgen.cluster.start import StartedHosts

_SETTINGS = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_LOGGING__DISTRIBUTED": "error",
}


class Cost(msgspec.Struct, frozen=True):
    """What so many hosts cost; CPU in percent of a core, memory in MB."""

    hosts: int
    start_s: float
    host_mb: float
    host_cpu_percent: float
    operator_mb: float
    operator_cpu_percent: float
    exchange_p50_ms: float
    exchange_p99_ms: float
    uncertainty_ms: float


@contextmanager
def dask_workers(scheduler: str, count: int) -> Iterator[list[psutil.Process]]:
    options = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0")
    command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *options]
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
                    return await idle(hosts, processes, start_s, seconds)


async def idle(hosts: Sequence[ClusterHost], processes: list[psutil.Process], start_s: float, seconds: float) -> Cost:
    operator = psutil.Process()
    used_before_s = [cpu_s(process) for process in (operator, *processes)]
    rtts_ms: list[float] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        await asyncio.sleep(0.25)
        rtts_ms += [host.rtt_ns / 1e6 for host in hosts]
    used_s = [cpu_s(process) - before for process, before in zip((operator, *processes), used_before_s, strict=True)]
    cuts = statistics.quantiles(rtts_ms, n=100)
    return Cost(
        hosts=len(hosts),
        start_s=start_s,
        host_mb=statistics.mean(process.memory_info().rss for process in processes) / 1e6,
        host_cpu_percent=100 * statistics.mean(used_s[1:]) / seconds,
        operator_mb=operator.memory_info().rss / 1e6,
        operator_cpu_percent=100 * used_s[0] / seconds,
        exchange_p50_ms=cuts[49],
        exchange_p99_ms=cuts[98],
        uncertainty_ms=max(host.uncertainty_ns for host in hosts) / 1e6,
    )


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def table(costs: Sequence[Cost]) -> str:
    head = (
        "| hosts | joined after | a host: memory | a host: CPU | operator: memory | operator: CPU | exchange p50, p99 "
        "| offset known to |\n|---|---|---|---|---|---|---|---|"
    )
    rows = [
        f"| {one.hosts} | {one.start_s:.1f} s | {one.host_mb:.0f} MB | {one.host_cpu_percent:.1f} % "
        f"| {one.operator_mb:.0f} MB | {one.operator_cpu_percent:.1f} % "
        f"| {one.exchange_p50_ms:.1f}, {one.exchange_p99_ms:.1f} ms | ±{one.uncertainty_ms:.2f} ms |"
        for one in costs
    ]
    return "\n".join([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="1,3,8")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dask.config.set({"distributed.worker.profile.enabled": False})
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    costs = [asyncio.run(cost_of(int(count), options.seconds)) for count in options.hosts.split(",")]
    print(table(costs))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.encode(costs))


if __name__ == "__main__":
    main()
