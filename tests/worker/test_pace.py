"""The precise timer: never early, once a setting, silent when cancelled."""

import asyncio
import time

from loadgen.worker.pace import PreciseTimer


async def test_it_wakes_at_or_after_its_time_and_only_once() -> None:
    woken: list[int] = []
    over = asyncio.Event()

    def wake() -> None:
        woken.append(time.monotonic_ns())
        over.set()

    timer = PreciseTimer(asyncio.get_running_loop(), wake)
    due_ns = time.monotonic_ns() + 20_000_000
    timer.set(due_ns)
    await over.wait()
    assert len(woken) == 1
    assert woken[0] >= due_ns
    timer.close()


async def test_a_time_that_has_passed_wakes_at_once_and_the_last_setting_holds() -> None:
    over = asyncio.Event()
    timer = PreciseTimer(asyncio.get_running_loop(), over.set)
    timer.set(time.monotonic_ns() + 3_600_000_000_000)
    timer.set(0)
    await over.wait()
    timer.close()


async def test_cancelled_it_stays_silent() -> None:
    cancelled, other = asyncio.Event(), asyncio.Event()
    timer = PreciseTimer(asyncio.get_running_loop(), cancelled.set)
    witness = PreciseTimer(asyncio.get_running_loop(), other.set)
    timer.set(time.monotonic_ns() + 5_000_000)
    timer.cancel()
    witness.set(time.monotonic_ns() + 20_000_000)
    await other.wait()
    assert not cancelled.is_set()
    timer.close()
    witness.close()
