"""The interval of a clock's offset holds the true one, whatever the network does, and shows that a clock was moved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cluster.clock import ClockOffset

MS = 1_000_000
SECOND = 1_000_000_000
ways = st.integers(10_000, 400 * MS)  # how long a message takes, one way
exchanges = st.lists(st.tuples(ways, st.integers(0, 50 * MS), ways, st.integers(0, 5 * SECOND)), min_size=1)


class Probed:
    """Messages between our clock and one that is ahead by `ahead_ns` and drifts."""

    def __init__(self, ahead_ns: int, drift: float) -> None:
        self.clock = ClockOffset()
        self.ahead_ns = ahead_ns
        self.drift = drift
        self.now_ns = 1_000 * SECOND

    @property
    def truth_ns(self) -> float:
        return self.ahead_ns + self.drift * self.now_ns

    def _there_ns(self) -> int:
        return round(self.now_ns + self.truth_ns)

    def exchange(self, out_ns: int, held_ns: int, back_ns: int, pause_ns: int = 0) -> int:
        sent_ns = self.now_ns
        self.now_ns += out_ns
        received_ns = self._there_ns()
        self.now_ns += held_ns
        answered_ns = self._there_ns()
        self.now_ns += back_ns
        moved_ns = self.clock.add(sent_ns, received_ns, answered_ns, self.now_ns)
        assert abs(self.clock.offset_ns - self.truth_ns) <= self.clock.uncertainty_ns + 2
        self.now_ns += pause_ns
        return moved_ns


@given(st.integers(-3 * SECOND, 3 * SECOND), st.floats(-5e-4, 5e-4), exchanges)
def test_the_true_offset_is_in_the_interval_and_no_move_is_claimed(
    ahead_ns: int, drift: float, times: list[tuple[int, int, int, int]]
) -> None:
    probed = Probed(ahead_ns, drift)
    assert all(probed.exchange(*one) == 0 for one in times)
    fastest_ns = min(out_ns + back_ns for out_ns, _, back_ns, _ in times)
    assert probed.clock.uncertainty_ns >= 0
    if len(times) == 1:
        assert probed.clock.uncertainty_ns == pytest.approx(
            fastest_ns / 2, abs=fastest_ns * 1e-3 + times[0][1] * 2e-3 + 2
        )


@given(exchanges, st.integers(1, 3 * SECOND), st.sampled_from((-1, 1)), ways, ways)
def test_a_clock_that_is_moved_is_noticed_as_soon_as_it_can_be_known(
    times: list[tuple[int, int, int, int]], step_ns: int, sign: int, out_ns: int, back_ns: int
) -> None:
    probed = Probed(0, 0.0)
    for one in times:
        probed.exchange(*one)
    known_ns = probed.clock.uncertainty_ns + times[-1][3] * 1e-3 + 2 * (out_ns + back_ns)
    # A step that could as well be the network's doing is not a proof.
    step_ns = round(step_ns + 2 * known_ns)
    probed.ahead_ns += sign * step_ns
    moved_ns = probed.exchange(out_ns, 0, back_ns)
    assert moved_ns != 0
    assert abs(moved_ns - sign * step_ns) <= known_ns + probed.clock.uncertainty_ns + 2
    assert probed.exchange(out_ns, 0, back_ns) == 0


def test_a_slow_message_does_not_spoil_what_is_known() -> None:
    probed = Probed(-2 * SECOND, 0.0)
    probed.exchange(1 * MS, 0, 1 * MS)
    known_ns = probed.clock.uncertainty_ns
    probed.exchange(300 * MS, 0, 2 * MS)
    assert probed.clock.uncertainty_ns <= known_ns + MS
    assert probed.clock.offset_ns == pytest.approx(-2 * SECOND, abs=2 * MS)
