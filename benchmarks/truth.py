"""`make bench`: what vramp measures against what the simulator truly served, on the machine at hand.

The simulator emits like a continuous-batching engine: one global step every 10 ms, every running stream gets one
token in the step, the first token is due 50 ms after the request. It records its own times at the system call, so
every line compares two ends of the same streams. Beside what all of vramp and its worker use of the CPU for a token is
the floor, with the same load. Server and client share the machine; close everything else. `--rounds` is requests a
stream.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.clients import FLOOR, OSL, VRAMP
from benchmarks.peers import NoFigures, driven
from benchmarks.running import Table, read_options
from loadgen.report.tabular import Column
from loadgen.schema.result import Result, StageResult
from loadgen.store.runs import read_result

ONE_WORKER = replace(VRAMP, command=lambda program, load: [*VRAMP.command(program, load), "--workers", "1"])


class Row(NamedTuple):
    streams: int
    step_ms: int
    result: Result
    truth: dict[str, Any]
    whole_us: float | None
    floor_us: float | None

    @property
    def stage(self) -> StageResult:
        return self.result.stages[0]

    @property
    def of_ideal(self) -> str:
        ideal = self.streams * OSL / (0.050 + 0.005 + self.step_ms / 1000 * (OSL - 1))
        return f"{(self.stage.throughput.output_tokens_per_s or 0) / ideal:.1%}"


COLUMNS = (
    Column[Row]("streams", lambda row: row.streams),
    Column[Row]("step, ms", lambda row: row.step_ms),
    Column[Row]("peak", lambda row: row.stage.concurrency.peak),
    Column[Row]("tok/s", lambda row: row.stage.throughput.output_tokens_per_s, decimals=0),
    Column[Row]("of ideal", lambda row: row.of_ideal),
    Column[Row]("TTFT mean, ms", lambda row: row.stage.latency_ms["ttft"].mean),
    Column[Row]("truth", lambda row: row.truth["latency_ms"]["ttft"]["mean"]),
    Column[Row]("TPOT p99, ms", lambda row: row.stage.latency_ms["tpot"].p99, decimals=3),
    Column[Row]("truth", lambda row: row.truth["latency_ms"]["tpot"]["p99"], decimals=3),
    Column[Row]("us/token: worker", lambda row: row.result.client.cpu_s / row.stage.tokens.output * 1e6),
    Column[Row]("all", lambda row: row.whole_us),
    Column[Row]("floor", lambda row: row.floor_us),
    Column[Row]("lag p99, ms", lambda row: row.result.client.read_lag_ms.p99),
    Column[Row]("coalesced", lambda row: f"{row.result.client.coalesced_reads or 0:.2%}"),
    Column[Row]("  verdict", lambda row: f"  {row.result.client.why or 'not limited'}", words=True),
)


async def measure(streams: int, rounds: int) -> Row:
    """Drive a closed loop by the floor, then by vramp."""
    step_ms = 10 if streams <= 1024 else 20
    floor_us = None
    try:
        async with driven(FLOOR, FLOOR.find(), streams, rounds, step_ms) as (_, ended, _, _):
            floor_us = ended.us_per_token
    except NoFigures as error:
        print(f"no floor: {error}")
    async with driven(ONE_WORKER, ONE_WORKER.find(), streams, rounds, step_ms) as (load, ended, _, truth):
        result = read_result(load.folder / VRAMP.file)
    return Row(streams, step_ms, result, truth, ended.us_per_token, floor_us)


async def accuracy(streams: list[int], rounds: int) -> None:
    table = Table(COLUMNS)
    for count in streams:
        table.add(await measure(count, rounds))


if __name__ == "__main__":
    options = read_options(__doc__, streams=(64, 256, 1024, 2048), rounds=4)
    asyncio.run(accuracy(options.streams, options.rounds))
