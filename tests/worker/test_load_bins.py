"""A moving load: what is timed is kept by the step that was held when it arrived."""

import pytest

from loadgen.metrics.deltas import LoadBin
from loadgen.metrics.histogram import Histogram
from loadgen.stream.samples import ClientSamples, StageSamples
from loadgen.worker.load_bins import LoadBins

MS = 1_000_000
S = 1_000_000_000


class Clock:
    """A clock of the test's own: spans are exact."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic_ns", clock.monotonic_ns)
    return clock


def gaps_of(part: LoadBin) -> tuple[int, int]:
    histogram = Histogram() if part.itl is None else Histogram.decode(part.itl)
    return histogram.count, histogram.max_us


def test_a_step_has_what_arrived_while_it_was_held(clock: Clock) -> None:
    tally, meter = StageSamples(), ClientSamples()
    bins = LoadBins([1, 4, 8], tally, meter)
    bins.begin(1)
    tally.gaps_ns += [5 * MS] * 3
    tally.ttft_ns.append(7 * MS)
    meter.output_tokens += 4
    clock.now_ns = 1 * S
    bins.step = 1
    bins.note_held(4)
    tally.gaps_ns += [6 * MS] * 10
    meter.output_tokens += 10
    clock.now_ns = 3 * S
    drained = bins.drain()
    assert {step: gaps_of(part) for step, part in drained.items()} == {0: (3, 5_000), 1: (10, 6_000)}
    assert [(part.span_ns, part.held_area_ns, part.output_tokens) for part in drained.values()] == [
        (1 * S, 1 * S, 4),
        (2 * S, 8 * S, 10),
    ]
    # The stage as a whole has them too.
    assert len(tally.gaps_ns) == 13 and tally.ttft_ns == [7 * MS]


def test_on_the_way_down_what_is_held_counts_and_not_what_is_wanted(clock: Clock) -> None:
    tally = StageSamples()
    bins = LoadBins([8, 4, 1], tally, ClientSamples())
    bins.begin(8)
    bins.step = 2
    for held, gap_ms in ((7, 7), (5, 5), (3, 3), (1, 1)):
        bins.note_held(held)
        tally.gaps_ns.append(gap_ms * MS)
    assert {step: gaps_of(part) for step, part in bins.drain().items()} == {
        0: (1, 7_000),
        1: (2, 5_000),
        2: (1, 1_000),
    }


def test_of_steps_with_the_same_share_the_schedule_decides(clock: Clock) -> None:
    """Four workers share steps of one stream: most of their shares stay as they are."""
    tally = StageSamples()
    bins = LoadBins([1, 1, 1, 2], tally, ClientSamples())
    bins.begin(1)
    for step in range(3):
        bins.step = step
        bins.note_held(1)
        tally.gaps_ns.append((step + 1) * MS)
    assert {step: gaps_of(part) for step, part in bins.drain().items()} == {
        0: (1, 1_000),
        1: (1, 2_000),
        2: (1, 3_000),
    }


def test_in_open_loop_the_schedule_is_the_step(clock: Clock) -> None:
    tally = StageSamples()
    bins = LoadBins([None, None], tally, ClientSamples())
    bins.begin(0)
    tally.gaps_ns.append(1 * MS)
    bins.note_held(17)
    tally.gaps_ns.append(1 * MS)
    bins.step = 1
    bins.note_held(17)
    tally.gaps_ns.append(2 * MS)
    assert {step: gaps_of(part) for step, part in bins.drain().items()} == {0: (2, 1_000), 1: (1, 2_000)}
