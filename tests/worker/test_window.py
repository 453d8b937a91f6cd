"""The measured window: what arrived in it, and how many streams were open on average."""

import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.schema.deltas import LoadBin
from loadgen.stream.samples import ClientSamples, StageSamples
from loadgen.worker.window import LoadBins, Window

S = 1_000_000_000


def test_only_what_arrives_while_it_is_open_counts() -> None:
    client = ClientSamples()
    window = Window(client)
    client.output_tokens, client.requests = 100, 3
    assert window.take(5 * S) == {}
    window.open(10 * S)
    client.output_tokens, client.requests, client.input_tokens = 130, 5, 40
    first = window.take(11 * S)
    assert (first["window_start_ns"], first["window_end_ns"]) == (10 * S, 11 * S)
    assert (first["window_output_tokens"], first["window_requests"], first["window_input_tokens"]) == (30, 2, 40)
    client.output_tokens = 131
    assert window.take(12 * S)["window_output_tokens"] == 1
    window.close()
    client.output_tokens = 999
    assert window.take(13 * S) == {}


def test_mean_and_peak_of_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    # A clock of the test's own: the integral is exact.
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    window = Window(ClientSamples())
    window.held_changed(2)
    window.open(0)
    now_ns = 1 * S
    window.held_changed(6)
    now_ns = 3 * S
    window.held_changed(1)
    taken = window.take(4 * S)
    assert taken["held_area_ns"] == (2 * 1 + 6 * 2 + 1 * 1) * S
    assert taken["peak"] == 6


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
    samples, client = StageSamples(), ClientSamples()
    bins = LoadBins([1, 4, 8], samples, client)
    bins.begin(1)
    samples.gaps_ns += [5 * MS] * 3
    samples.ttft_ns.append(7 * MS)
    client.output_tokens += 4
    clock.now_ns = 1 * S
    bins.step = 1
    bins.note_held(4)
    samples.gaps_ns += [6 * MS] * 10
    client.output_tokens += 10
    clock.now_ns = 3 * S
    drained = bins.drain()
    assert {step: gaps_of(part) for step, part in drained.items()} == {0: (3, 5_000), 1: (10, 6_000)}
    assert [(part.span_ns, part.held_area_ns, part.output_tokens) for part in drained.values()] == [
        (1 * S, 1 * S, 4),
        (2 * S, 8 * S, 10),
    ]
    # The stage as a whole has them too.
    assert len(samples.gaps_ns) == 13 and samples.ttft_ns == [7 * MS]


def test_wall_clock_step_discards_times_of_all_steps(clock: Clock) -> None:
    samples, client = StageSamples(), ClientSamples()
    bins = LoadBins([1, 4], samples, client)
    bins.begin(1)
    samples.gaps_ns += [5 * MS] * 3
    samples.ttft_ns.append(7 * MS)
    client.output_tokens += 4
    clock.now_ns = 1 * S
    bins.note_held(4)
    samples.note_clock_step()
    bins.drop_samples()
    (first, _) = bins.drain().values()
    assert (first.span_ns, first.output_tokens, first.ttft, first.itl) == (1 * S, 4, None, None)
    assert samples.gaps_ns == samples.ttft_ns == []


def test_on_the_way_down_what_is_held_counts_and_not_what_is_wanted(clock: Clock) -> None:
    samples = StageSamples()
    bins = LoadBins([8, 4, 1], samples, ClientSamples())
    bins.begin(8)
    bins.step = 2
    for held, gap_ms in ((7, 7), (5, 5), (3, 3), (1, 1)):
        bins.note_held(held)
        samples.gaps_ns.append(gap_ms * MS)
    assert {step: gaps_of(part) for step, part in bins.drain().items()} == {
        0: (1, 7_000),
        1: (2, 5_000),
        2: (1, 1_000),
    }


def test_of_steps_with_the_same_share_the_schedule_decides(clock: Clock) -> None:
    """Four workers share steps of one stream: most of their shares stay as they are."""
    samples = StageSamples()
    bins = LoadBins([1, 1, 1, 2], samples, ClientSamples())
    bins.begin(1)
    for step in range(3):
        bins.step = step
        bins.note_held(1)
        samples.gaps_ns.append((step + 1) * MS)
    assert {step: gaps_of(part) for step, part in bins.drain().items()} == {
        0: (1, 1_000),
        1: (1, 2_000),
        2: (1, 3_000),
    }


def test_in_open_loop_the_schedule_is_the_step(clock: Clock) -> None:
    samples = StageSamples()
    bins = LoadBins([None, None], samples, ClientSamples())
    bins.begin(0)
    samples.gaps_ns.append(1 * MS)
    bins.note_held(17)
    samples.gaps_ns.append(1 * MS)
    bins.step = 1
    bins.note_held(17)
    samples.gaps_ns.append(2 * MS)
    assert {step: gaps_of(part) for step, part in bins.drain().items()} == {0: (2, 1_000), 1: (1, 2_000)}
