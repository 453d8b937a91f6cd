"""Worker processes that die, hang, flood or talk nonsense: each ends well, with real processes and real signals."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import psutil
import pytest

from loadgen.errors import WorkerError
from loadgen.fleet import host
from loadgen.fleet.host import LocalHost, LocalPipe
from loadgen.fleet.worker import Worker
from loadgen.worker.messages import OpenWindow

TICKS = """
import os, signal, sys, time
from loadgen.metrics.stage import ClientDelta
from loadgen.worker import messages
from loadgen.worker.messages import TICK_NS, Tick

def tick(held=0, open_sent=0, worker=7, ahead=1):
    number = time.monotonic_ns() // TICK_NS + ahead
    counts = dict(held=held, queued=0, open_stages={}, running=3, open_sent=open_sent, first_wave_waiting=0)
    line = Tick(worker, number, {}, ClientDelta(), finished=None, rss_bytes=0, **counts)
    sys.stdout.write(messages.encode(line).decode() + "\\n")
    sys.stdout.flush()

def beat():
    time.sleep(TICK_NS / 1e9)
"""
WAITS = "sys.stdin.read()\n"


class Talk:
    """A child and the event that it is heard by."""

    def __init__(self, program: Sequence[str]) -> None:
        self.heard = asyncio.Event()
        self.worker = Worker(7, 0, LocalHost(), LocalPipe(program), self.heard.set)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                self.heard.clear()
                await self.heard.wait()

    async def gone(self) -> str:
        """Wait for its death, and that nothing is left of the process."""
        await self.until(lambda: not self.worker.alive)
        return self.worker.take_death() or ""

    async def looked_at_until_gone(self) -> str:
        while self.worker.alive:
            self.worker.check_silence(0.25)
            await asyncio.sleep(0)
        return await self.gone()


@asynccontextmanager
async def talk(code: str) -> AsyncIterator[Talk]:
    talking = Talk([sys.executable, "-c", TICKS + code])
    await talking.worker.start()
    pid = talking.worker.pid
    assert pid is not None
    try:
        yield talking
    finally:
        await talking.worker.close()
    assert not psutil.pid_exists(pid)


async def test_worker_ends_with_its_stdin() -> None:
    async with talk("tick()\nbeat()\ntick()\n" + WAITS) as talking:
        await talking.until(lambda: talking.worker.ready)
        first = talking.worker.last
        await talking.until(lambda: talking.worker.last is not first)
        assert len(talking.worker.take()) == 2
        assert not talking.worker.has_ticked
    assert (talking.worker.alive, talking.worker.pid, talking.worker.take_death()) == (False, None, None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('no memory')", "worker 7 died with status 1: no memory"),
        ("tick()\nos.kill(os.getpid(), signal.SIGKILL)", "worker 7 was killed by SIGKILL"),
        ("tick()\nos.kill(os.getpid(), 40)", "worker 7 was killed by signal 40"),
        # In the midst of a line.
        ("tick()\nos.write(1, b'{')\nos.kill(os.getpid(), signal.SIGKILL)", "worker 7 was killed by SIGKILL"),
        ("tick()\nsys.stderr.write('x' * 10**6 + '\\nthe end')\nos._exit(3)", "worker 7 died with status 3: the end"),
        ("tick()\nos._exit(0)", "worker 7 died with status 0"),
        ("print('hello', flush=True)\n" + WAITS, "worker 7 sent an invalid tick and was killed: JSON is malformed"),
        ("tick()\nprint('{}', flush=True)\n" + WAITS, "was killed: Object missing required field"),
        ("tick()\nsys.stdout.buffer.write(b'\\xff\\n')\nsys.stdout.flush()\n" + WAITS, "sent an invalid tick"),
        ("tick(worker=8)\n" + WAITS, "of worker 8"),
        ("tick(ahead=100)\n" + WAITS, "sent an invalid tick"),
        ("tick(ahead=-100)\n" + WAITS, "sent an invalid tick"),
        # Of three, two are in the same quarter of a second.
        ("tick()\ntick()\ntick()\n" + WAITS, "sent an invalid tick"),
        ("while True: print('nonsense' * 1000)", "sent an invalid tick"),
        ("while True: tick()", "sent an invalid tick"),
    ],
)
async def test_deaths_and_nonsense_are_reported_once(code: str, words: str) -> None:
    async with talk(code) as talking:
        assert words in await talking.gone()
        assert talking.worker.take_death() is None


async def test_a_line_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_LINE_LIMIT", 100_000)
    async with talk("while True: sys.stdout.write('x' * 10_000)") as talking:
        assert "sent an invalid tick" in await talking.gone()


async def test_the_streams_of_one_that_dies_are_lost_once() -> None:
    async with talk("tick(7, 5)\nos._exit(1)") as talking:
        assert (await talking.gone()).endswith("; 7 streams are lost with it")
        talking.worker.take()
        lost = {index: (delta.unfinished, delta.lost) for index, delta in talking.worker.stages.items()}
        assert lost == {3: (5, 5)}
        talking.worker.take()
        assert talking.worker.stages == {}


async def test_a_stopped_one_is_ended_after_a_while() -> None:
    async with talk("tick(4, 4)\nos.kill(os.getpid(), signal.SIGSTOP)") as talking:
        await talking.until(lambda: talking.worker.ready)
        talking.worker.take()
        assert (
            await talking.looked_at_until_gone()
        ) == "worker 7 sent no tick for 5 s and was killed; 4 streams are lost with it"


async def test_one_that_closed_its_output_is_silent() -> None:
    async with talk("tick()\nos.close(1)\n" + WAITS) as talking:
        await talking.until(lambda: talking.worker.ready)
        talking.worker.take()
        assert "sent no tick for 5 s" in await talking.looked_at_until_gone()


async def test_one_that_stops_while_it_starts() -> None:
    async with talk("os.kill(os.getpid(), signal.SIGSTOP)") as talking:
        assert await talking.looked_at_until_gone() == "worker 7 did not start within 60 s and was killed"


async def test_ticks_end_the_silence() -> None:
    async with talk("while True:\n    beat()\n    tick()") as talking:
        for _ in range(2):
            await talking.until(lambda: talking.worker.has_ticked)
            talking.worker.take()
            talking.worker.check_silence(4.0)
            await talking.until(lambda: talking.worker.has_ticked)
            talking.worker.check_silence(4.0)
        assert talking.worker.alive


@pytest.mark.parametrize("code", ["os.kill(os.getpid(), signal.SIGSTOP)", "while True: time.sleep(1)"])
async def test_one_that_does_not_end_by_itself_is_killed(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(host, "CLOSE_S", 0.1)
    async with talk("tick(1, 1)\n" + code) as talking:
        await talking.until(lambda: talking.worker.ready)
    talking.worker.take()
    assert talking.worker.stages[3].lost == 1
    assert "did not exit" in (talking.worker.take_death() or "")


async def test_a_program_that_is_not_there() -> None:
    talking = Talk(["/no/such/program"])
    with pytest.raises(WorkerError, match="worker 7 could not be started: No such file"):
        await talking.worker.start()
    await talking.worker.close()
    assert (talking.worker.alive, talking.worker.ready, talking.worker.pid) == (False, False, None)


async def test_commands_to_a_dead_or_stopped_worker() -> None:
    async with talk("tick()\nos.kill(os.getpid(), signal.SIGSTOP)") as talking:
        await talking.until(lambda: talking.worker.ready)
        big = OpenWindow(index=10**9)
        for _ in range(10_000):
            talking.worker.send(big)
        pid = talking.worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await talking.gone()
        talking.worker.send(big)
