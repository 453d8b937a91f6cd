"""The precise timer: never early, once a setting, silent when cancelled."""

import asyncio
import time

import pytest

from loadgen.worker.pace import Lateness, PreciseTimer, lead_for


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


async def test_a_check_waits_for_a_time_that_is_near_and_leaves_one_that_is_far() -> None:
    woken: list[int] = []
    timer = PreciseTimer(asyncio.get_running_loop(), lambda: woken.append(time.monotonic_ns()))
    timer.lead_ns = 20_000_000
    timer.set(time.monotonic_ns() + 3_600_000_000_000)
    timer.check()
    assert not woken
    due_ns = time.monotonic_ns() + 10_000_000
    timer.set(due_ns)
    timer.check()
    timer.check()
    assert len(woken) == 1
    assert woken[0] >= due_ns
    timer.close()


async def test_woken_early_it_still_calls_back_at_its_time() -> None:
    woken: list[int] = []
    over = asyncio.Event()

    def wake() -> None:
        woken.append(time.monotonic_ns())
        over.set()

    timer = PreciseTimer(asyncio.get_running_loop(), wake)
    timer.lead_ns = 5_000_000
    due_ns = time.monotonic_ns() + 10_000_000
    timer.set(due_ns)
    await over.wait()
    assert woken[0] >= due_ns
    timer.close()


@pytest.mark.parametrize(("rate", "lead_ns"), [(0.01, 100_000), (500, 100_000), (1000, 100_000), (10_000, 10_000)])
def test_the_lead_is_a_tenth_of_the_time_at_most(rate: float, lead_ns: int) -> None:
    assert lead_for(rate) == lead_ns
    assert rate * lead_for(rate) <= 0.1 * 1e9


async def test_a_loop_that_is_held_up_is_late() -> None:
    late_ns: list[int] = []
    over = asyncio.Event()

    def record(lag_ns: int) -> None:
        late_ns.append(lag_ns)
        over.set()

    lateness = Lateness(asyncio.get_running_loop(), record)
    time.sleep(0.1)  # noqa: ASYNC251 - what holds it up
    await over.wait()
    assert late_ns[0] >= 80_000_000
    over.clear()
    await over.wait()
    lateness.close()
