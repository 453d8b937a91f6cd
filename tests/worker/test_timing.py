"""The precise timer: never early, once a setting, silent when cancelled."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.worker.timing import STEP_NS, ClockWatch, LoopLag, PreciseTimer, timer_lead_ns


class Timer(PreciseTimer):
    """Keeps when it called back."""

    def __init__(self, lead_ns: int = 0) -> None:
        self.calls_ns: list[int] = []
        self.called = asyncio.Event()
        super().__init__(asyncio.get_running_loop(), self._call_back)
        self.lead_ns = lead_ns

    def _call_back(self) -> None:
        self.calls_ns.append(time.monotonic_ns())
        self.called.set()


Make = Callable[..., Timer]


@pytest.fixture
async def timers() -> AsyncIterator[Make]:
    made: list[Timer] = []

    def make(lead_ns: int = 0) -> Timer:
        made.append(Timer(lead_ns))
        return made[-1]

    yield make
    for timer in made:
        timer.close()


@pytest.mark.parametrize(("lead_ns", "in_ns"), [(0, 20_000_000), (5_000_000, 10_000_000)])
async def test_timer_calls_once_and_never_early(timers: Make, lead_ns: int, in_ns: int) -> None:
    timer = timers(lead_ns)
    due_ns = time.monotonic_ns() + in_ns
    timer.set(due_ns)
    await timer.called.wait()
    assert len(timer.calls_ns) == 1 and timer.calls_ns[0] >= due_ns


async def test_time_that_has_passed_calls_at_once_and_replaces_another(timers: Make) -> None:
    timer = timers()
    timer.set(time.monotonic_ns() + 3_600_000_000_000)
    timer.set(0)
    await timer.called.wait()


async def test_cancelled_timer_does_not_call(timers: Make) -> None:
    timer, other = timers(), timers()
    timer.set(time.monotonic_ns() + 5_000_000)
    timer.cancel()
    other.set(time.monotonic_ns() + 20_000_000)
    await other.called.wait()
    assert not timer.calls_ns


async def test_check_waits_for_a_time_that_is_near_and_leaves_one_that_is_far(timers: Make) -> None:
    timer = timers(lead_ns=20_000_000)
    timer.set(time.monotonic_ns() + 3_600_000_000_000)
    timer.check()
    assert not timer.calls_ns
    due_ns = time.monotonic_ns() + 10_000_000
    timer.set(due_ns)
    timer.check()
    timer.check()
    assert len(timer.calls_ns) == 1 and timer.calls_ns[0] >= due_ns


@pytest.mark.parametrize(("rate", "lead_ns"), [(0.01, 100_000), (500, 100_000), (1000, 100_000), (10_000, 10_000)])
def test_the_lead_is_a_tenth_of_the_time_at_most(rate: float, lead_ns: int) -> None:
    assert timer_lead_ns(rate) == lead_ns
    assert rate * timer_lead_ns(rate) <= 0.1 * 1e9


async def test_a_loop_that_is_held_up_is_late() -> None:
    late_ns: list[int] = []
    over = asyncio.Event()

    def record(lag_ns: int) -> None:
        late_ns.append(lag_ns)
        over.set()

    LoopLag(asyncio.get_running_loop(), record)
    time.sleep(0.1)  # noqa: ASYNC251 - what holds it up
    await over.wait()
    assert late_ns[0] >= 80_000_000
    over.clear()
    await over.wait()


class Clocks:
    """Two clocks that go on between the readings, now and then for long: another process had the core."""

    def __init__(self, seed: int, interrupted: float) -> None:
        self._random = random.Random(seed)
        self._interrupted = interrupted
        self.now_ns = 10**15
        self.offset_ns = 1_700_000_000 * 10**9

    def _pass(self) -> int:
        self.now_ns += self._random.randrange(100, 400)
        if self._random.random() < self._interrupted:
            self.now_ns += self._random.randrange(1_000, 10_000_000)
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self._pass()

    def realtime_ns(self) -> int:
        return self._pass() + self.offset_ns


def watched(clocks: Clocks) -> ClockWatch:
    return ClockWatch(clocks.monotonic_ns, clocks.realtime_ns)


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_without_a_step_none_is_reported(seed: int, interrupted: float) -> None:
    watch = watched(Clocks(seed, interrupted))
    assert not any(watch.stepped() for _ in range(50))


@given(st.integers(0, 2**32), st.floats(0, 0.6), st.integers(STEP_NS, 10**12), st.sampled_from([1, -1]))
def test_a_step_is_reported_once(seed: int, interrupted: float, step_ns: int, direction: int) -> None:
    clocks = Clocks(seed, interrupted)
    watch = watched(clocks)
    assert not watch.stepped()
    clocks.offset_ns += direction * step_ns
    assert watch.stepped()
    assert not any(watch.stepped() for _ in range(20))


@pytest.mark.parametrize("direction", [1, -1])
def test_a_step_made_in_parts_is_reported_too(direction: int) -> None:
    clocks = Clocks(1, 0.1)
    watch = watched(clocks)
    reported = []
    for _ in range(10):
        clocks.offset_ns += direction * 30_000
        reported.append(watch.stepped())
    assert sum(reported) == 2
    assert not watch.stepped()


def test_an_interrupted_look_hides_a_step_only_until_the_next() -> None:
    clocks = Clocks(1, 0.0)
    watch = watched(clocks)
    clocks.offset_ns += 200_000
    clocks._interrupted = 1.0
    reported = [watch.stepped()]
    clocks._interrupted = 0.0
    reported.append(watch.stepped())
    assert sum(reported) == 1


def test_the_clocks_of_this_machine_are_not_stepped_by_being_read() -> None:
    watch = ClockWatch()
    assert not any(watch.stepped() for _ in range(2000))
