"""What many workers cost vramp's own process: the CPU, in shares of a core, for handling their ticks.

Part of `make bench`. The ticks of a real worker are recorded first. Then stand-ins for workers replay them, in real
time through real pipes and at almost no cost of their own, to an ordinary run whose server idles: this way a small
machine can measure what the workers of a large one would cost. Columns: ticks received; their size; reading them,
merging them, record and journal, snapshots; and all of vramp's process, with whatever else it does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.running import attach, finish, simulator
from loadgen.fleet import fleet, pipe
from loadgen.run.run import Run
from loadgen.run.writer import RunWriter
from loadgen.worker import messages
from loadgen.worker.messages import TICK_NS, BeginStage, EndLoad, Tick

ISL = OSL = 128
RECORD_S = 6
PARTS = ("decode", "merge", "record", "show")
HEAD = f"{'workers':>7} {'ticks/s':>8} {'bytes':>8} {' '.join(f'{part:>8}' for part in PARTS)} {'vramp':>8}"
_WARM_UP_TICKS = 8


# The stand-in for a worker.


async def replay(ticks: list[Tick]) -> None:
    """Replay a worker's ticks as the worker that the configuration names, until stdin closes."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    configure = messages.decode_command(await reader.readline())
    assert isinstance(configure, messages.Configure)
    ticking = loop.create_task(_tick_forever(ticks, configure.worker, reader))
    await ticking


async def _tick_forever(ticks: list[Tick], number: int, reader: asyncio.StreamReader) -> None:
    running: BeginStage | None = None
    command = asyncio.ensure_future(reader.readline())
    at = time.monotonic_ns() // TICK_NS
    while True:
        at += 1
        due_s = at * TICK_NS / 1e9 - time.monotonic()
        while (await asyncio.wait({command}, timeout=max(0.0, due_s)))[0]:
            line = command.result()
            if not line:
                return
            requested = messages.decode_command(line)
            if isinstance(requested, BeginStage | EndLoad):
                running = requested if isinstance(requested, BeginStage) else None
            command = asyncio.ensure_future(reader.readline())
            due_s = at * TICK_NS / 1e9 - time.monotonic()
        tick = _as_of(ticks[(at + number) % len(ticks)], number, at, running)
        os.write(1, messages.encode(tick) + b"\n")


def _as_of(tick: Tick, number: int, at: int, running: BeginStage | None) -> Tick:
    """Return a recorded tick as if it were a present one."""
    if running is None:
        return msgspec.structs.replace(
            tick, worker=number, number=at, stages={}, held=0, open_stages={}, running=None, open_sent=0
        )
    (delta,) = tick.stages.values()
    now = msgspec.structs.replace(delta, window_start_ns=running.start_ns, window_end_ns=time.monotonic_ns())
    return msgspec.structs.replace(
        tick,
        worker=number,
        number=at,
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
        load = {"isl": ISL, "osl": OSL, "concurrency": streams, "duration": f"{RECORD_S}s", "workers": 1, "seed": 1}
        await finish(attach(url, load, telemetry="off"))
    messages.decode_tick = decode
    full = [tick for tick in ticks if len(tick.stages) == 1 and tick.held >= streams]
    return full[_WARM_UP_TICKS:]


class Spent:
    """CPU time of this thread in some functions, and how often they were called."""

    def __init__(self) -> None:
        self.ns: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def count(self, owner: Any, name: str, label: str) -> None:
        """Replace a function of a class or module with one that is counted."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            before_ns = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.ns[label] += time.thread_time_ns() - before_ns
                self.calls[label] += 1

        setattr(owner, name, counted)


class Moment(NamedTuple):
    wall_ns: int
    cpu_ns: int
    spent_ns: Counter[str]
    calls: Counter[str]


async def row(workers: int, streams: int, said: list[Tick], file: Path, seconds: int, spent: Spent) -> None:
    """Measure a run without streams whose main process receives the ticks of many."""
    load = {"isl": ISL, "osl": OSL, "concurrency": streams, "duration": f"{seconds}s", "workers": workers, "seed": 1}
    moments: list[Moment] = []
    span_ns = (seconds - 4) * 1_000_000_000  # without the end of the run

    def look() -> None:
        now = Moment(time.monotonic_ns(), time.process_time_ns(), spent.ns.copy(), spent.calls.copy())
        if now.calls["merge"] >= _WARM_UP_TICKS and (not moments or now.wall_ns < moments[0].wall_ns + span_ns):
            moments.append(now)

    spent.calls.clear()
    pipe._PROGRAM = (sys.executable, __file__, "--replay", str(file))
    async with simulator(10) as url:
        await finish(attach(url, load, telemetry="off", canary={"enabled": False}), look)
    first, last = moments[0], moments[-1]
    wall_ns = last.wall_ns - first.wall_ns
    heard = (last.calls["decode"] - first.calls["decode"]) / wall_ns * 1e9
    mean_bytes = sum(len(messages.encode(tick)) for tick in said) / len(said)
    shares = [(last.spent_ns[part] - first.spent_ns[part]) / wall_ns for part in PARTS]
    words = " ".join(f"{share:>8.2%}" for share in shares)
    whole = (last.cpu_ns - first.cpu_ns) / wall_ns
    print(f"{workers:>7} {heard:>8.1f} {mean_bytes:>8.0f} {words} {whole:>8.2%}", flush=True)


async def everything(workers: list[int], streams: int, seconds: int, folder: Path) -> None:
    said = {count: await recorded(streams // count) for count in workers}
    spent = Spent()
    spent.count(messages, "decode_tick", "decode")
    spent.count(fleet.Fleet, "_merge", "merge")
    spent.count(RunWriter, "tick", "record")
    spent.count(Run, "_publish", "show")
    print(f"{streams} streams\n{HEAD}")
    for count, ticks in said.items():
        file = folder / f"{count}.json"
        file.write_bytes(messages.encode(ticks))
        await row(count, streams, ticks, file, seconds, spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,4,16")
    parser.add_argument("--streams", type=int, default=1024, help="of all workers together")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay is not None:
        asyncio.run(replay(msgspec.json.decode(options.replay.read_bytes(), type=list[Tick])))
        return
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
        counts = [int(count) for count in options.workers.split(",")]
        asyncio.run(everything(counts, options.streams, options.seconds, Path(name)))


if __name__ == "__main__":
    main()
