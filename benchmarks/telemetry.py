"""What telemetry costs the load: the same streams without it, with eight GPUs, and with children that hang or flood.

Part of `make bench`. All rows are of one run, because the machine is noisy: compare them only with each other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.running import attach, finish, simulator
from benchmarks.truth import ISL, OSL
from loadgen.telemetry.backends import BackendOption, backend_options
from loadgen.telemetry.monitor import Monitor
from loadgen.vendors import VendorName

_HANGS = "import time; time.sleep(3600)"
_FLOODS = "import os\nwhile True: os.write(1, b'{}' * 30000)"


def _stand_in(code: str) -> dict[VendorName, list[BackendOption]]:
    return {"sim": [BackendOption("stand-in", "sim", program=(sys.executable, "-c", code))]}


async def row(name: str, streams: int, replay: dict[VendorName, list[BackendOption]] | None, mode: str) -> None:
    async with simulator(10) as url:
        if mode == "sim":
            replay = backend_options("sim", url=url)
        load = {"isl": ISL, "osl": OSL, "concurrency": streams, "duration": "12s", "workers": 1, "seed": 1}
        beats: list[float] = []
        profile = attach(url, load, telemetry="off")
        result = await finish(profile, lambda: beats.append(time.monotonic()), replay=replay)
    stage = result.stages[0]
    gaps = sorted(after - before for before, after in pairwise(beats))
    lag = result.client.read_lag_ms
    print(
        f"{name:<22} TTFT p99 {stage.latency_ms['ttft'].p99 or 0:>7.2f} ms   read lag p50 {lag.p50 or 0:>5.2f} "
        f"p99 {lag.p99 or 0:>6.2f} ms   {stage.throughput.output_tokens_per_s or 0:>7.0f} tok/s   "
        f"longest wait for a snapshot {gaps[-1] * 1000:>4.0f} ms",
        flush=True,
    )


async def parent_cost(folder: Path, seconds: float = 10.0) -> None:
    """Print the CPU of this process while it watches eight GPUs at 1 Hz."""
    monitor = Monitor(backend_options("sim"), folder=folder)
    monitor.start()
    while not monitor.settled:
        await monitor.change()
    cpu_s, began_s, samples = time.process_time(), time.monotonic(), 0
    while time.monotonic() - began_s < seconds:
        await monitor.change()
        samples += len(monitor.take())
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - began_s
    await monitor.close()
    print(
        f"watching {len(monitor.gpus)} GPUs: {samples} samples in {wall_s:.1f} s, {cpu_s / wall_s:.3%} of a core here"
    )


async def everything(folder: Path, streams: int) -> None:
    await row("without telemetry", streams, {}, "off")
    await row("8 GPUs", streams, None, "sim")
    await row("a child that hangs", streams, _stand_in(_HANGS), "")
    await row("a child that floods", streams, _stand_in(_FLOODS), "")
    await row("without telemetry", streams, {}, "off")
    await parent_cost(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        asyncio.run(everything(Path(name), options.streams))


if __name__ == "__main__":
    main()
