"""The table of one publication beside what vramp measures on a simulator that was fitted to it.

GPT-OSS 120B on one MI300X: 80 requests of 4096/1024 by 8 streams, 171 s. By default the simulator's costs are halved,
as if its clock ran at twice the speed, and measurements are scaled back: all ten waves are there, and the first one,
which meets an empty engine and forms the tail of TTFT, has its true weight. `--full` runs in real time. A busy machine
of two cores is 0.2 ms late for every step, which weighs more the faster the clock is. Only the means were fitted:
medians and tails show how closely the simulator resembles the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from benchmarks.running import finish
from loadgen.profile.document import load_profile
from loadgen.profile.schema import Profile, Server
from loadgen.schema.result import StageResult
from loadgen.server.supervisor import ManagedServer
from loadgen.simulator.physics import PRESETS

PROFILE = Path(__file__).parents[1] / "profiles/mi300x-gpt-oss-120b.toml"
COSTS = ("base_ms", "per_seq_ms", "per_prefill_token_ms")
FITTED = ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms", "output_tokens_per_s")
SHOWN = (*FITTED, "total_tokens_per_s", "duration_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms")
TOLERANCE = 0.05


def server_of(speed: float) -> Server:
    """Return the fitted simulator with its clock `speed` times faster."""
    physics = PRESETS["published"]
    costs = {name.replace("_", "-"): getattr(physics, name) / speed for name in COSTS}
    return Server(engine="simulator", args={"preset": "published", **costs})


def load_of(profile: Profile, url: str, requests: int | None) -> Profile:
    """Return a profile that sends the publication's load to the simulator."""
    load = profile.load.model_copy(update={"seed": 1, "workers": 1, "requests": requests or profile.load.requests})
    server = Server(engine="attach", url=url)
    return profile.model_copy(update={"server": server, "load": load, "telemetry": "off", "reference": None})


async def measure(profile: Profile, speed: float, requests: int | None, folder: Path) -> StageResult:
    """Run the published load once."""
    async with ManagedServer(server_of(speed), log_path=folder / "server.log") as server:
        await server.wait_ready()
        result = await finish(load_of(profile, server.base_url, requests))
    return result.stages[0]


def figure(stage: StageResult, name: str, speed: float) -> float | None:
    """Return a measured figure by its published name, scaled to the time of the publication."""
    if name == "duration_s":
        return stage.duration_s * speed
    if name.endswith("_per_s"):
        rate: float | None = getattr(stage.throughput, name)
        return None if rate is None else rate / speed
    metric, statistic, _ = name.split("_")
    value: float | None = getattr(stage.latency_ms[metric], statistic)
    return None if value is None else value * speed


def line(name: str, published: float, measured: float | None) -> str:
    if measured is None:
        return f"{name:<20} {published:>10.2f} {'-':>10}"
    difference = measured / published - 1
    verdict = ""
    if name in FITTED:
        verdict = "within 5%" if abs(difference) <= TOLERANCE else "MORE THAN 5% OFF"
    return f"{name:<20} {published:>10.2f} {measured:>10.2f} {difference:>+8.1%}  {verdict}"


async def table(speed: float, requests: int | None, folder: Path) -> None:
    profile = load_profile(PROFILE)
    assert profile.reference is not None
    published = profile.reference.points[0].figures
    stage = await measure(profile, speed, requests, folder)
    clock = "in real time" if speed == 1 else f"at {speed:g} times its speed"
    print(f"{stage.requests.completed} requests, the simulator's clock {clock}; {stage.why or 'client not limited'}")
    print(f"{'':<20} {'published':>10} {'measured':>10} {'diff':>8}")
    for name in SHOWN:
        print(line(name, published[name], figure(stage, name, speed)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--speed",
        type=float,
        default=2.0,
        help="speed of the simulator's clock (2); with shorter steps, what the machine adds to them counts more",
    )
    parser.add_argument("--full", action="store_true", help="in real time, three minutes: --speed 1")
    parser.add_argument("--requests", type=int, help="fewer than published; the first wave then weighs more")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        asyncio.run(table(1.0 if options.full else options.speed, options.requests, Path(name)))


if __name__ == "__main__":
    main()
