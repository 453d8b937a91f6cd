"""How a run's extras affect its figures: each switched on and off in turn, on one simulator, with the same load.

Extras are what vramp does beside the load: it checks a sample of the answers, sends canaries, serves a metrics port.
Each run is compared with the one without extras just before it, so that a slowdown of the machine affects both; a cost
within the spread of the runs without extras cannot be resolved on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Any, NamedTuple

import httpx

from benchmarks.running import attach, finish, simulator
from benchmarks.truth import fetch_truth
from loadgen.run.metrics_port import MetricsPort

ISL = OSL = 128
EXTRAS: dict[str, dict[str, Any]] = {
    "nothing": {"canary": {"enabled": False}},
    "answers": {"canary": {"enabled": True, "interval_s": 3600}},
    "canaries": {"canary": {"enabled": True}},
    "port": {"canary": {"enabled": False}},
}
SCRAPED_EVERY_S = 1.0


class Cost(NamedTuple):
    """What one run saw and used."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    ttft_error_ms: float  # mean TTFT minus the true one
    itl_p99_ms: float
    cpu_us: float  # of the workers, per token


@asynccontextmanager
async def scraped(port: MetricsPort | None) -> AsyncIterator[None]:
    """Scrape the port once a second, more often than Prometheus would."""
    if port is None:
        yield
        return

    async def scrape(url: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                (await client.get(url)).raise_for_status()
                await asyncio.sleep(SCRAPED_EVERY_S)

    scraping = asyncio.ensure_future(scrape(port.url))
    try:
        yield
    finally:
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping


async def cost_of(url: str, extra: str, streams: int, rounds: int) -> Cost:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(f"{url}/truth/reset")).raise_for_status()
    load = {"isl": ISL, "osl": OSL, "workers": 1, "seed": 1, "first_wave": "counted"}
    load |= {"concurrency": streams, "requests": rounds * streams}
    port = MetricsPort("127.0.0.1", 0) if extra == "port" else None
    async with scraped(port):
        result = await finish(attach(url, load, **EXTRAS[extra]), metrics_port=port)
    stage, truth = result.stages[0], await fetch_truth(url)
    ttft, itl = stage.latency_ms["ttft"], stage.latency_ms["itl"]
    assert ttft.p50 is not None and ttft.p99 is not None and ttft.mean is not None and itl.p99 is not None
    error_ms = ttft.mean - truth["latency_ms"]["ttft"]["mean"]
    return Cost(ttft.p50, ttft.p99, error_ms, itl.p99, result.client.cpu_s / stage.tokens.output * 1e6)


async def compare(extras: list[str], streams: int, rounds: int, repeats: int) -> None:
    """Run off, on, off, on; print the medians with each extra, what it added, and the spread of runs without any."""
    print(
        f"{streams} streams, {rounds} requests each; medians of {repeats} runs, and of the difference to the run before"
    )
    print(_row("", Cost._fields))
    without: list[Cost] = []
    async with simulator(10) as url:
        for extra in extras:
            off, on = [], []
            for _ in range(repeats):
                off.append(await cost_of(url, "nothing", streams, rounds))
                on.append(await cost_of(url, extra, streams, rounds))
            without += off
            added = [
                [value - before for value, before in zip(*pair, strict=True)] for pair in zip(on, off, strict=True)
            ]
            cells = zip(_medians(on), _medians(added), strict=True)
            print(_row(extra, [f"{value:.3f} {more:+.3f}" for value, more in cells]), flush=True)
    spans = [f"{min(values):.3f} to {max(values):.3f}" for values in zip(*without, strict=True)]
    print(_row("nothing", [f"{value:.3f}" for value in _medians(without)]), _row("", spans), sep="\n")


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [median(values) for values in zip(*rows, strict=True)]


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:10}" + "".join(f"{cell:>20}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=4, help="requests a stream")
    parser.add_argument("--repeats", type=int, default=6, help="runs with each extra, and as many without")
    parser.add_argument("--only", default="answers,canaries,port", help="which extras")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        asyncio.run(compare(options.only.split(","), options.streams, options.rounds, options.repeats))


if __name__ == "__main__":
    main()
