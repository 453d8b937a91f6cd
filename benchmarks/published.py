"""The table of one publication beside what vramp measures on a simulator that was fitted to it.

GPT-OSS 120B on one MI300X: 80 requests of 4096/1024 by 8 streams, 171 s. By default the simulator's costs are halved,
as if its clock ran at twice the speed, and measurements are scaled back: all ten waves are there, and the first one,
which meets an empty engine and forms the tail of TTFT, has its true weight. `--speed 1` runs in real time. A busy
machine of two cores is 0.2 ms late for every step, which weighs more the faster the clock is. Only the means were
fitted: medians and tails show how closely the simulator resembles the machine. With fewer `--requests` than published
the first wave weighs more.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from benchmarks.running import ROOT, finish, read_options, scratch
from loadgen.profile.document import load_profile
from loadgen.profile.schema import Profile, Server
from loadgen.report.tabular import Column, text_lines
from loadgen.schema.result import StageResult
from loadgen.server.supervisor import ManagedServer
from loadgen.simulator.physics import PRESETS

PROFILE = ROOT / "profiles/mi300x-gpt-oss-120b.toml"
COSTS = ("base_ms", "per_seq_ms", "per_prefill_token_ms")
FITTED = ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms", "output_tokens_per_s")
SHOWN = (*FITTED, "total_tokens_per_s", "duration_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms")
TOLERANCE = 0.05


def server_of(speed: float) -> Server:
    """Return the fitted simulator with its clock `speed` times faster."""
    costs = {name.replace("_", "-"): getattr(PRESETS["published"], name) / speed for name in COSTS}
    return Server(engine="simulator", args={"preset": "published", **costs})


def load_of(profile: Profile, url: str, requests: int) -> Profile:
    """Return a profile that sends the publication's load to the simulator."""
    load = profile.load.model_copy(update={"seed": 1, "workers": 1, "requests": requests or profile.load.requests})
    server = Server(engine="attach", url=url)
    return profile.model_copy(update={"server": server, "load": load, "telemetry": "off", "reference": None})


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


class Row(NamedTuple):
    name: str
    published: float
    measured: float | None

    @property
    def difference(self) -> float:
        return (self.measured or 0.0) / self.published - 1

    @property
    def verdict(self) -> str:
        if self.name not in FITTED:
            return ""
        return "  within 5%" if abs(self.difference) <= TOLERANCE else "  MORE THAN 5% OFF"


COLUMNS = (
    Column[Row]("", lambda row: row.name, words=True),
    Column[Row]("published", lambda row: row.published),
    Column[Row]("measured", lambda row: row.measured),
    Column[Row]("diff", lambda row: f"{row.difference:+.1%}"),
    Column[Row]("", lambda row: row.verdict, words=True),
)


async def compare(speed: float, requests: int, folder: Path) -> None:
    """Run the published load once, and print its figures beside those that were published."""
    profile = load_profile(PROFILE)
    assert profile.reference is not None
    async with ManagedServer(server_of(speed), log_path=folder / "server.log") as server:
        await server.wait_ready()
        stage = (await finish(load_of(profile, server.base_url, requests))).stages[0]
    print(f"{stage.requests.completed} requests, the clock {speed:g} times as fast; {stage.why or 'not limited'}")
    published = profile.reference.points[0].figures
    rows = [Row(name, published[name], figure(stage, name, speed)) for name in SHOWN]
    print(*text_lines(COLUMNS, rows), sep="\n")


if __name__ == "__main__":
    options = read_options(__doc__, speed=2.0, requests=0)
    with scratch() as folder:
        asyncio.run(compare(options.speed, options.requests, folder))
