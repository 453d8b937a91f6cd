"""A worker process: commands on stdin, one line a tick on stdout, streams in between.

Shares no memory with the process that started it, and exits when its stdin closes, or is silent for longer than its
lifeline, or when its parent dies, even while it is stopped (SIGSTOP): a worker cannot outlive its run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import ssl
import sys
import time
import traceback
from typing import Any

import msgspec
import uvloop

from loadgen.errors import VrampError, WorkerError
from loadgen.format import ranges
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.system import raise_open_files, resident_bytes, signal_when_parent_dies
from loadgen.worker import messages
from loadgen.worker.driver import Driver
from loadgen.worker.messages import TICK_NS, BeginStage, Configure, EndLoad, OpenWindow, Tick, prompts_of
from loadgen.worker.realtime import RealtimePriority, ask_for_short_slices, waited_ns
from loadgen.worker.timing import ClockWatch, standstill_ns

_NOTHING = StageDelta()
_STILL_THERE = b"\n"
_LINE_LIMIT = 64 * 1024 * 1024


async def run_worker() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_end_with)
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    output, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    settings = messages.decode_command(await reader.readline())
    assert isinstance(settings, Configure)
    if settings.cpus:
        try:
            os.sched_setaffinity(0, settings.cpus)  # threads that start later inherit it
        except OSError as error:
            raise WorkerError(f"cannot run on CPUs {ranges(settings.cpus)}: {error.strerror}") from None
    tls = None if settings.address.tls_name is None else ssl.create_default_context()
    driver = Driver(settings, prompts_of(settings.vocabulary, settings.seed), tls)
    # What exists now is permanent: the garbage collector need not visit it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    ticker = loop.create_task(_tick_forever(driver, settings, output))
    ticker.add_done_callback(lambda done: done.cancelled() or done.result())
    while line := await _next_line(reader, settings.lifeline_s):
        if line != _STILL_THERE:
            _obey(driver, messages.decode_command(line))
    os._exit(0)


async def _next_line(reader: asyncio.StreamReader, lifeline_s: float) -> bytes:
    try:
        async with asyncio.timeout(lifeline_s or None):
            return await reader.readline()
    except TimeoutError:
        print(f"heard nothing for {lifeline_s:g} s", file=sys.stderr, flush=True)
        os._exit(1)


def _end_with(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the worker on an exception in a callback: the loop would only log it, and the stage would never end."""
    error = context.get("exception")
    # An OSError outside a callback is a lost connection, which its stream reports.
    if error is None or (isinstance(error, OSError) and "handle" not in context):
        loop.default_exception_handler(context)
        return
    if isinstance(error, VrampError):
        print(error, file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)
    os._exit(1)


def _obey(driver: Driver, command: messages.Command) -> None:
    match command:
        case BeginStage():
            driver.begin_stage(command)
        case OpenWindow(index=index):
            driver.open_window(index)
        case EndLoad(abort=abort, ends_sessions=ends_sessions):
            driver.end_load(abort=abort, ends_sessions=ends_sessions)
        case Configure():
            raise AssertionError("a worker is configured once")


async def _tick_forever(driver: Driver, settings: Configure, output: asyncio.WriteTransport) -> None:
    clock = ClockWatch()
    priority = RealtimePriority(settings.realtime_share)
    waited_now_ns = waited_ns()
    number = 0
    while True:
        # The loop may wake slightly early; no tick is sent twice because of that.
        number = max(number, time.monotonic_ns() // TICK_NS) + 1
        await asyncio.sleep(number * TICK_NS / 1e9 - time.monotonic())
        cpu_ns, realtime_ns = priority.update()
        waited_before_ns, waited_now_ns = waited_now_ns, waited_ns()
        stood_still_ns = standstill_ns(number * TICK_NS, cpu_ns + waited_now_ns - waited_before_ns)
        if stood_still_ns:
            driver.note_standstill(stood_still_ns)
        driver.fail_overdue()
        driver.sampler.tick()
        if clock.stepped():
            driver.discard_times()
        driver.send_due()
        client = driver.client.drain(cpu_ns, realtime_ns, driver.send_due)
        client = msgspec.structs.replace(
            client, waited_ns=waited_now_ns - waited_before_ns, stood_still_ns=stood_still_ns
        )
        tick = _collect(driver, settings.worker, number, client, resident_bytes())
        driver.send_due()
        output.write(messages.encode(tick) + b"\n")


def _collect(driver: Driver, worker: int, number: int, client: ClientDelta, rss_bytes: int) -> Tick:
    current, sessions = driver.current, driver.sessions
    rows = driver.rows if driver.rows is not None else []
    deltas = {index: run.drain(driver.send_due) for index, run in driver.stages.items()}
    tick = Tick(
        worker=worker,
        number=number,
        stages={index: delta for index, delta in deltas.items() if delta != _NOTHING},
        client=client,
        held=len(driver.open),
        queued=len(driver.arrivals.waiting),
        open_stages={index: run.open for index, run in driver.stages.items() if run.open},
        running=current.command.index if current is not None else None,
        open_sent=current.open_sent if current is not None else 0,
        first_wave_waiting=current.first_waiting if current is not None else 0,
        finished=current.command.index if current is not None and current.finished else None,
        rss_bytes=rss_bytes,
        sessions=None if sessions is None else sessions.now(),
        most_held=driver.take_most_open(),
        rows=rows.copy(),
    )
    rows.clear()
    driver.stages = {index: run for index, run in driver.stages.items() if not run.over}
    return tick


def main() -> None:
    signal_when_parent_dies(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports its end; no traceback is needed
    raise_open_files()
    ask_for_short_slices()
    try:
        uvloop.run(run_worker())
    except VrampError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
