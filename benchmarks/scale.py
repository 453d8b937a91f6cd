"""`python -m benchmarks.scale`: how far one box scales, against what the simulator truly served.

Thousands of streams at 20 tok/s each, ten thousand open at once, long prompts, long answers. Each: mean TTFT against
the truth, which begins when the server has the whole request; the time it took to receive that from the first byte on,
which is part of the client's TTFT; the workers' memory, and whether the result calls the client the limit. Before that,
`--starts` times, how long it takes to send 4,096 streams. Server and client share the machine.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.running import Table, attach, began_ns, fetch_truth, finish, read_options, scratch, simulator
from loadgen.report.tabular import Column
from loadgen.schema.result import Result, StageResult


class Case(NamedTuple):
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


class Row(NamedTuple):
    case: Case
    result: Result
    true_ms: dict[str, Any]

    @property
    def stage(self) -> StageResult:
        return self.result.stages[0]

    @property
    def rss_mb(self) -> float:
        return max(float(value or 0.0) for value in self.result.series["client_rss_mb"])


COLUMNS = (
    Column[Row]("case", lambda row: row.case.name, words=True, width=14),
    Column[Row]("streams", lambda row: row.case.streams),
    Column[Row]("ISL", lambda row: row.case.isl),
    Column[Row]("OSL", lambda row: row.case.osl),
    Column[Row]("peak", lambda row: row.stage.concurrency.peak),
    Column[Row]("TTFT mean, ms", lambda row: row.stage.latency_ms["ttft"].mean, decimals=1),
    Column[Row]("truth", lambda row: row.true_ms["ttft"]["mean"], decimals=1),
    Column[Row]("receive", lambda row: row.true_ms["receive"]["mean"], decimals=1),
    Column[Row]("RSS, MB", lambda row: row.rss_mb, decimals=0),
    Column[Row]("KB/stream", lambda row: 1000 * row.rss_mb / row.case.streams, decimals=0),
    Column[Row]("  verdict", lambda row: f"  {row.result.client.why or 'not limited'}", words=True),
)


async def measured(case: Case) -> Row:
    """Run a closed loop whose first requests count, as they do in the truth."""
    load = {"isl": case.isl, "osl": case.osl, "seed": 1, "first_wave": "counted", "timeout_s": 3600}
    load |= {"concurrency": case.streams, "requests": case.rounds * case.streams}
    async with simulator(case.step_ms, "--max-num-seqs", "16384") as url:
        return Row(case, await finish(attach(url, load)), (await fetch_truth(url))["latency_ms"])


async def start_s(streams: int) -> float:
    """Return the seconds from the beginning of a stage until the last of its streams is sent."""
    load = {"isl": 128, "osl": 4, "seed": 1, "workers": 1, "concurrency": streams, "requests": streams}
    async with simulator(50, "--max-num-seqs", "16384") as url:
        result = await finish(attach(url, load), records="jsonl")
    return last_sent_s() - began_ns(result.stages[0]) / 1e9


def last_sent_s() -> float:
    """Return when the newest run sent its last request, in unix seconds."""
    records = max(Path("runs").glob("*/records.jsonl"), key=lambda path: path.stat().st_mtime)
    return max(json.loads(line)["sent_unix_s"] or 0.0 for line in records.read_text().splitlines())


async def measure(names: list[str], starts: int) -> None:
    for _ in range(starts):
        print(f"4,096 streams were sent within {await start_s(4096):.2f} s", flush=True)
    table = Table(COLUMNS)
    for case in CASES:
        if case.name in names:
            table.add(await measured(case))


if __name__ == "__main__":
    options = read_options(__doc__, cases=tuple(case.name for case in CASES), starts=3)
    with scratch():
        asyncio.run(measure(options.cases, options.starts))
