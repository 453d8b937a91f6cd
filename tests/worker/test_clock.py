"""Every step of the wall clock is seen and nothing else, whatever interrupts the readings."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.worker.clock import STEP_NS, ClockWatch


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
def test_without_a_step_none_is_told(seed: int, interrupted: float) -> None:
    watch = watched(Clocks(seed, interrupted))
    assert not any(watch.stepped() for _ in range(50))


@given(st.integers(0, 2**32), st.floats(0, 0.6), st.integers(STEP_NS, 10**12), st.sampled_from([1, -1]))
def test_a_step_is_told_once(seed: int, interrupted: float, step_ns: int, direction: int) -> None:
    clocks = Clocks(seed, interrupted)
    watch = watched(clocks)
    assert not watch.stepped()
    clocks.offset_ns += direction * step_ns
    assert watch.stepped()
    assert not any(watch.stepped() for _ in range(20))


@pytest.mark.parametrize("direction", [1, -1])
def test_a_step_made_in_parts_is_told_too(direction: int) -> None:
    clocks = Clocks(1, 0.1)
    watch = watched(clocks)
    told = []
    for _ in range(10):
        clocks.offset_ns += direction * 30_000
        told.append(watch.stepped())
    assert sum(told) == 2
    assert not watch.stepped()


def test_an_interrupted_look_hides_a_step_only_until_the_next() -> None:
    clocks = Clocks(1, 0.0)
    watch = watched(clocks)
    clocks.offset_ns += 200_000
    clocks._interrupted = 1.0
    told = [watch.stepped()]
    clocks._interrupted = 0.0
    told.append(watch.stepped())
    assert sum(told) == 1


def test_the_clocks_of_this_machine_are_not_stepped_by_being_read() -> None:
    watch = ClockWatch()
    assert not any(watch.stepped() for _ in range(2000))
