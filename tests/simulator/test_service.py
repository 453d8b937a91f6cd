import asyncio
import time

import pytest

from loadgen.simulator.service import Timer


@pytest.mark.parametrize("delay_ns", [-1_000_000, 0, 2_000_000])
async def test_rings_once_and_never_early(delay_ns: int) -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    timer = Timer(loop, rung.set)
    due = time.monotonic_ns() + delay_ns
    timer.set(due)
    await rung.wait()
    assert time.monotonic_ns() >= due


async def test_without_timerfd_the_loop_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    timer = Timer(loop, rung.set)
    timer.set(time.monotonic_ns() + 1_000_000)
    await rung.wait()
