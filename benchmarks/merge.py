"""What many workers cost vramp's own process: the CPU, in shares of a core, for handling their ticks.

Part of `make bench`. The ticks of a real worker are recorded first. Then stand-ins for workers replay them, in real
time through real pipes and at almost no cost of their own, to an ordinary run whose server idles: this way a small
machine can measure what the workers of a large one would cost. Columns: ticks received; their size; reading them,
merging them, record and journal, snapshots; and all of vramp's process, with whatever else it does. `--streams` is of
all workers together.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from benchmarks.running import ROOT, Table, attach, finish, read_options, scratch, simulator
from loadgen.fleet import fleet, pipe
from loadgen.report.tabular import Column
from loadgen.run.run import Run
from loadgen.run.writer import RunWriter
from loadgen.worker import messages
from loadgen.worker.messages import TICK_NS, BeginStage, Configure, EndLoad, Tick

_WARM_UP_TICKS = 8


# The stand-in for a worker.


async def replay(ticks: list[Tick]) -> None:
    """Replay a worker's ticks as the worker that the configuration names, until stdin closes."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    configure = messages.decode_command(await reader.readline())
    assert isinstance(configure, Configure)
    running: BeginStage | None = None

    async def listen() -> None:
        nonlocal running
        async for line in reader:
            requested = messages.decode_command(line)
            if isinstance(requested, BeginStage | EndLoad):
                running = requested if isinstance(requested, BeginStage) else None

    listening, at = loop.create_task(listen()), time.monotonic_ns() // TICK_NS
    while not listening.done():
        at += 1
        await asyncio.wait({listening}, timeout=max(0.0, at * TICK_NS / 1e9 - time.monotonic()))
        tick = _as_of(ticks[(at + configure.worker) % len(ticks)], running)
        present = msgspec.structs.replace(tick, worker=configure.worker, number=at)
        os.write(1, messages.encode(present) + b"\n")


def _as_of(tick: Tick, running: BeginStage | None) -> Tick:
    """Return a recorded tick as if it were of the stage that is running, or of none."""
    if running is None:
        return msgspec.structs.replace(tick, stages={}, held=0, open_stages={}, running=None, open_sent=0)
    (delta,) = tick.stages.values()
    now = msgspec.structs.replace(delta, window_start_ns=running.start_ns, window_end_ns=time.monotonic_ns())
    return msgspec.structs.replace(
        tick,
        stages={running.index: now},
        open_stages={running.index: tick.held},
        running=running.index,
        first_wave_waiting=0,
    )


# The measurement.


async def recorded(streams: int) -> list[Tick]:
    """Return the ticks of a real worker that holds so many streams."""
    ticks: list[Tick] = []
    decode = messages.decode_tick

    def keep(line: Any) -> Tick:
        ticks.append(decode(line))
        return ticks[-1]

    messages.decode_tick = keep
    async with simulator(10) as url:
        load = {"isl": 128, "osl": 128, "concurrency": streams, "duration": "6s", "workers": 1, "seed": 1}
        await finish(attach(url, load, telemetry="off"))
    messages.decode_tick = decode
    full = [tick for tick in ticks if len(tick.stages) == 1 and tick.held >= streams]
    return full[_WARM_UP_TICKS:]


class Spent:
    """CPU time of this thread in some functions, and how often they were called."""

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        for owner, name, label in (
            (messages, "decode_tick", "decode"),
            (fleet.Fleet, "_merge", "merge"),
            (RunWriter, "tick", "record"),
            (Run, "_publish", "show"),
        ):
            setattr(owner, name, self._counted(getattr(owner, name), label))

    def _counted(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            before_ns = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.ns[label] += time.thread_time_ns() - before_ns
                self.calls[label] += 1

        return counted

    def now(self) -> Counter[str]:
        """Return all counts, and the clocks, as one."""
        clocks = Counter(wall=time.monotonic_ns(), vramp=time.process_time_ns(), ticks=self.calls["decode"])
        return clocks + self.ns


class Row(NamedTuple):
    workers: int
    size: float
    used: Counter[str]  # in nanoseconds

    def share(self, part: str) -> str:
        return f"{self.used[part] / self.used['wall']:.2%}"


COLUMNS = (
    Column[Row]("workers", lambda row: row.workers),
    Column[Row]("ticks/s", lambda row: row.used["ticks"] / row.used["wall"] * 1e9, decimals=1),
    Column[Row]("bytes", lambda row: row.size, decimals=0),
    Column[Row]("decode", lambda row: row.share("decode")),
    Column[Row]("merge", lambda row: row.share("merge")),
    Column[Row]("record", lambda row: row.share("record")),
    Column[Row]("show", lambda row: row.share("show")),
    Column[Row]("vramp", lambda row: row.share("vramp")),
)


async def measured(workers: int, streams: int, ticks: list[Tick], file: Path, seconds: int, spent: Spent) -> Row:
    """Measure a run without streams whose main process receives the ticks of many."""
    load = {"isl": 128, "osl": 128, "concurrency": streams, "duration": f"{seconds}s", "workers": workers, "seed": 1}
    moments: list[Counter[str]] = []
    span_ns = (seconds - 4) * 1_000_000_000  # without the end of the run

    def look() -> None:
        now = spent.now()
        if spent.calls["merge"] >= _WARM_UP_TICKS and (not moments or now["wall"] < moments[0]["wall"] + span_ns):
            moments.append(now)

    spent.calls.clear()
    pipe._PROGRAM = (sys.executable, __file__, "--replay", str(file))
    async with simulator(10) as url:
        await finish(attach(url, load, telemetry="off", canary={"enabled": False}), look)
    return Row(workers, fmean(len(messages.encode(tick)) for tick in ticks), moments[-1] - moments[0])


async def tell(workers: list[int], streams: int, seconds: int, folder: Path) -> None:
    said = {count: await recorded(streams // count) for count in workers}
    spent, table = Spent(), Table(COLUMNS)
    for count, ticks in said.items():
        (folder / f"{count}.json").write_bytes(messages.encode(ticks))
        table.add(await measured(count, streams, ticks, folder / f"{count}.json", seconds, spent))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--replay"]:
        asyncio.run(replay(msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=list[Tick])))
    else:
        options = read_options(__doc__, workers=(1, 4, 16), streams=1024, seconds=20)
        os.environ["PYTHONPATH"] = str(ROOT)
        with scratch() as folder:
            asyncio.run(tell(options.workers, options.streams, options.seconds, folder))
