"""`python -m benchmarks.scale`: how far one box scales, beside what the simulator truly served.

Thousands of streams at 20 tok/s each, ten thousand open at once, long prompts, long answers. For each: mean TTFT beside
the truth, which begins when the server has the whole request; the time it took to receive that from the first byte on,
which is part of the client's TTFT; the workers' memory, and whether the result calls the client the limit. Before that,
how long it takes to send 4,096 streams. Server and client share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import tempfile
import time
from dataclasses import dataclass

from benchmarks.running import attach, finish, simulator
from benchmarks.truth import fetch_truth, mean_ttft_ms
from loadgen.fleet.fleet import Fleet
from loadgen.plan.stage import Stage
from loadgen.schema.deltas import StreamRow
from loadgen.stream.request import ServerAddress, common_fields, host_and_port, request_template
from loadgen.worker.messages import Configure, Vocabulary

_HEAD = (
    f"{'case':<14} {'streams':>7} {'ISL':>6} {'OSL':>5} {'peak':>6} {'TTFT mean, ms':>14} {'truth':>9} {'diff':>7} "
    f"{'receive':>9} {'RSS, MB':>8} {'KB/stream':>9}  verdict"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A load; `step_ms` is the time between a stream's tokens."""

    name: str
    streams: int
    isl: int
    osl: int
    step_ms: int
    rounds: int = 1


CASES = (
    Case("20 tok/s", 4096, 128, 64, 50, rounds=2),
    Case("open", 10_000, 128, 16, 1000),
    Case("long prompts", 1024, 50_000, 64, 100, rounds=2),
    Case("long answers", 1024, 128, 8192, 10),
)


async def measured(case: Case) -> str:
    """Return a line of the table: a closed loop whose first requests count, as they do in the truth."""
    load = {"isl": case.isl, "osl": case.osl, "seed": 1, "first_wave": "counted", "timeout_s": 3600}
    load |= {"concurrency": case.streams, "requests": case.rounds * case.streams}
    async with simulator(case.step_ms, "--max-num-seqs", "16384") as url:
        result = await finish(attach(url, load))
        truth = await fetch_truth(url)
    true_ms, receive_ms = mean_ttft_ms(truth), truth["latency_ms"]["receive"]["mean"]
    stage = result.stages[0]
    ttft_ms = stage.latency_ms["ttft"].mean or 0.0
    rss_mb = max(float(value or 0.0) for value in result.series["client_rss_mb"])
    return (
        f"{case.name:<14} {case.streams:>7} {case.isl:>6} {case.osl:>5} {stage.concurrency.peak:>6} {ttft_ms:>14.1f} "
        f"{true_ms:>9.1f} {ttft_ms / true_ms - 1:>+7.2%} {receive_ms:>9.1f} {rss_mb:>8.0f} "
        f"{1000 * rss_mb / case.streams:>9.0f}  {result.client.why or 'not limited'}"
    )


async def start_s(streams: int) -> float:
    """Return the seconds from the command to begin a stage until the last of its streams is sent."""
    async with simulator(50) as url:
        host, port = host_and_port(url)
        address = ServerAddress(family=socket.AF_INET, ip=host, port=port)
        settings = Configure(
            address=address,
            vocabulary=Vocabulary(ids=tuple(range(300, 1000))),
            seed=1,
            timeout_s=60,
            stall_timeout_s=60,
            connect_timeout_s=10,
            rows=True,
        )
        fields = common_fields("completions", model=None, temperature=0.0, options={}, extra={"ignore_eos": True})
        fleet = Fleet(1)
        try:
            await fleet.start(settings, [address], 1)
            await fleet.wait_ready()
            stage = Stage(concurrency=streams, rate=None, isl=128, osl=4, requests=streams)
            template = request_template(url, "completions", fields, osl=4, api_key=None)
            began_s = time.time()
            fleet.begin_stage(0, stage, [template], waits=False, first_wave_apart=True)
            return max(row.sent_unix_s or 0.0 for row in await _rows(fleet)) - began_s
        finally:
            await fleet.close()


async def _rows(fleet: Fleet) -> list[StreamRow]:
    """Return all rows of the running stage, once it has finished."""
    rows: list[StreamRow] = []
    while True:
        tick = await fleet.tick()
        for some in tick.rows.values():
            rows += some
        if tick.finished is not None:
            return rows


async def measure(names: list[str], starts: int) -> None:
    for _ in range(starts):
        print(f"4,096 streams were sent within {await start_s(4096):.2f} s")
    print(_HEAD)
    for case in CASES:
        if case.name in names:
            print(await measured(case), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="default: all of them")
    parser.add_argument("--starts", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        asyncio.run(measure(options.case or [case.name for case in CASES], options.starts))


if __name__ == "__main__":
    main()
