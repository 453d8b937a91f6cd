"""`make bench`: what vramp measures beside what the simulator truly served, on the machine at hand.

The simulator emits like a continuous-batching engine: one global step every 10 ms, every running stream gets one
token in the step, the first token is due 50 ms after the request. It records its own times at the system call, so
every line compares two ends of the same streams. Server and client share the machine; close everything else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import httpx

from benchmarks import floor
from benchmarks.running import attach, finish, simulator
from benchmarks.screen import run_in_terminal
from loadgen.schema.result import Result
from loadgen.store.runs import read_result

ISL = OSL = 128
ROUNDS = 4
HEAD = (
    f"{'streams':>7} {'step':>5} {'peak':>5} {'tok/s':>8} {'of ideal':>8} "
    f"{'TTFT mean':>10} {'truth':>8} {'diff':>7} {'TPOT p99':>9} {'truth':>8} {'diff':>7} "
    f"{'us/token':>8} {'lag p99':>8} {'coalesced':>9}  verdict"
)


async def headless(url: str, streams: int, rounds: int) -> Result:
    """The run under test: closed loop, `rounds` requests a stream, one worker."""
    # The simulator's truth includes the first wave.
    load = {"isl": ISL, "osl": OSL, "workers": 1, "seed": 1, "first_wave": "counted"}
    return await finish(attach(url, load | {"concurrency": streams, "requests": rounds * streams}))


async def fetch_truth(url: str, **window: int) -> dict[str, Any]:
    """Return what the simulator served, if given between `since` and `until` in unix nanoseconds."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        document: dict[str, Any] = (await client.get(f"{url}/truth", params=window)).json()
        return document


def line(streams: int, step_ms: int, result: Result, truth: dict[str, Any]) -> str:
    stage = result.stages[0]
    ttft, tpot = stage.latency_ms["ttft"].mean, stage.latency_ms["tpot"].p99
    rate = stage.throughput.output_tokens_per_s
    if ttft is None or tpot is None or rate is None:
        return f"{streams:>7} nothing was measured: {stage.stop_reason}"
    ideal = streams * OSL / (0.050 + 0.005 + step_ms / 1000 * (OSL - 1))
    true_ttft, true_tpot = truth["latency_ms"]["ttft"]["mean"], truth["latency_ms"]["tpot"]["p99"]
    lag, coalesced = result.client.read_lag_ms.p99 or 0.0, result.client.coalesced_reads or 0.0
    cpu_us = result.client.cpu_s / stage.tokens.output * 1e6
    return (
        f"{streams:>7} {step_ms:>5} {stage.concurrency.peak:>5} {rate:>8.0f} {rate / ideal:>8.1%} "
        f"{ttft:>10.2f} {true_ttft:>8.2f} {ttft - true_ttft:>+7.2f} {tpot:>9.3f} {true_tpot:>8.3f} "
        f"{tpot / true_tpot - 1:>+7.2%} {cpu_us:>8.2f} {lag:>8.2f} {coalesced:>9.2%}  "
        f"{result.client.why or 'not limited'}"
    )


async def accuracy(streams: list[int], rounds: int, folder: Path) -> None:
    """Print the table of measured figures beside the truth, and that of the CPU beside the floor."""
    program = floor.build(folder)
    rows = []
    print(HEAD)
    for count in streams:
        step_ms = 10 if count <= 1024 else 20
        least = None if isinstance(program, str) else await least_cost(program, count, step_ms, rounds)
        async with simulator(step_ms) as url:
            result = await headless(url, count, rounds)
            truth = await fetch_truth(url)
        print(line(count, step_ms, result, truth), flush=True)
        if least is not None:
            async with simulator(step_ms) as url:
                whole_us = await floor.whole_tool_us(url, count, isl=ISL, osl=OSL)
            rows.append(floor.Row(count, *least, workers_cost(result), mean_ttft_ms(truth), whole_us))
    print(floor.HEAD if rows else f"\nno floor beside it: {program}", *rows, sep="\n")


async def least_cost(program: Path, streams: int, step_ms: int, rounds: int) -> tuple[floor.Cost, float]:
    """Run the floor with a load; return its cost, and the true mean TTFT."""
    async with simulator(step_ms) as url:
        cost = await floor.run_floor(program, url, streams, requests=rounds * streams, isl=ISL, osl=OSL)
        return cost, mean_ttft_ms(await fetch_truth(url))


def workers_cost(result: Result) -> floor.Cost:
    """Return the CPU that the workers of a run used, and the TTFT that they saw."""
    stage = result.stages[0]
    return floor.Cost(result.client.cpu_s / stage.tokens.output * 1e6, stage.latency_ms["ttft"].mean or 0.0)


def mean_ttft_ms(truth: dict[str, Any]) -> float:
    return float(truth["latency_ms"]["ttft"]["mean"])


async def beside_the_cockpit(folder: Path, streams: int = 256) -> None:
    """Compare a load with the cockpit open in a 240x60 terminal with the same load headless."""
    async with simulator(10) as url:
        quiet = await headless(url, streams, ROUNDS * 2)
    async with simulator(10) as url:
        load = f"--concurrency {streams} --requests {ROUNDS * 2 * streams} --isl {ISL} --osl {OSL} --workers 1 --seed 1"
        words = ["--url", url, *load.split(), "--json", str(folder / "c.json")]
        screen = await asyncio.to_thread(run_in_terminal, words, columns=240, rows=60)
    watched = read_result(folder / "c.json")
    headless_p99, cockpit_p99 = quiet.stages[0].latency_ms["ttft"].p99, watched.stages[0].latency_ms["ttft"].p99
    assert headless_p99 is not None and cockpit_p99 is not None
    print(
        f"\ncockpit open, {streams} streams: TTFT p99 {cockpit_p99:.2f} ms, headless {headless_p99:.2f} ms "
        f"({cockpit_p99 / headless_p99 - 1:+.1%}); cockpit process {screen.cpu_share:.1%} of a core, "
        f"{screen.bytes_per_s / 1000:.0f} kB/s to the terminal"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="64,256,1024,2048")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="requests a stream")
    parser.add_argument("--no-cockpit", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        asyncio.run(accuracy([int(count) for count in options.streams.split(",")], options.rounds, folder))
        if not options.no_cockpit:
            asyncio.run(beside_the_cockpit(folder))


if __name__ == "__main__":
    main()
