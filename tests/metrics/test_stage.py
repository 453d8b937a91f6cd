"""Stage metrics are a commutative monoid: no result depends on how ticks were cut or who sent them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.schema.deltas import COUNTERS, HIT_COUNTS, LATENCIES, ClientDelta, LoadBin, SessionCounts, StageDelta

counts = st.integers(0, 1000)
stamps = st.none() | st.integers(0, 10**15)


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    histogram = Histogram()
    histogram.record_ns(draw(st.lists(st.integers(0, 10**10), min_size=1, max_size=5)))
    return histogram


@st.composite
def bins(draw: st.DrawFn) -> LoadBin:
    return LoadBin(
        span_ns=draw(counts),
        held_area_ns=draw(counts),
        output_tokens=draw(counts),
        hits=draw(st.dictionaries(st.sampled_from(HIT_COUNTS), st.integers(1, 2**40), max_size=2)),
        ttft=draw(st.none() | histograms().map(Histogram.encode)),
        itl=draw(st.none() | histograms().map(Histogram.encode)),
    )


@st.composite
def deltas(draw: st.DrawFn) -> StageDelta:
    return StageDelta(
        **draw(st.dictionaries(st.sampled_from(COUNTERS), counts, max_size=5)),
        sessions=draw(st.none() | st.builds(SessionCounts, begun=counts, lost=counts)),
        window_start_ns=draw(stamps),
        window_end_ns=draw(stamps),
        tail_start_ns=draw(stamps),
        unsent_wait_ns=draw(counts),
        peak=draw(counts),
        bins=draw(st.dictionaries(st.integers(0, 3), bins(), max_size=2)),
        models=draw(st.dictionaries(st.sampled_from(["base", "adapter"]), counts, max_size=2)),
        finish_reasons=draw(st.dictionaries(st.sampled_from(["stop", "length"]), counts, max_size=2)),
        errors=draw(st.dictionaries(st.sampled_from(["reset", "stall"]), counts, max_size=2)),
        degenerate=draw(st.dictionaries(st.sampled_from(["blank", "repeating"]), counts, max_size=2)),
        loops=draw(st.dictionaries(st.text(max_size=2), counts, max_size=2)),
        messages=draw(
            st.dictionaries(st.sampled_from(["reset"]), st.lists(st.text(max_size=3), max_size=4), max_size=1)
        ),
        latency={name: draw(histograms()).encode() for name in draw(st.sets(st.sampled_from(LATENCIES), max_size=2))},
    )


@settings(max_examples=30)
@given(st.lists(deltas(), max_size=3), st.randoms())
def test_the_order_of_ticks_does_not_matter(ticks: list[StageDelta], random: object) -> None:
    shuffled = list(ticks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert StageMetrics.of(*ticks).encode() == StageMetrics.of(*shuffled).encode()


@settings(max_examples=30)
@given(st.lists(deltas(), max_size=3), st.integers(0, 3))
def test_sums_of_sums_are_sums(ticks: list[StageDelta], cut: int) -> None:
    left, right = StageMetrics.of(*ticks[:cut]), StageMetrics.of(*ticks[cut:])
    by_encoding = StageMetrics.of(left.encode(), right.encode())
    left.merge(right)
    assert by_encoding.encode() == left.encode() == StageMetrics.of(*ticks).encode()


def test_the_window_reaches_from_the_first_start_to_the_last_end() -> None:
    early = StageDelta(window_start_ns=1_000_000_000, window_end_ns=3_000_000_000, window_output_tokens=5)
    late = StageDelta(window_start_ns=2_000_000_000, window_end_ns=5_000_000_000, window_output_tokens=7)
    metrics = StageMetrics.of(early, late)
    assert metrics.window_s == 4.0
    assert metrics.counters["window_output_tokens"] == 12


def test_client_metrics_add_up_and_survive_encoding() -> None:
    lag = Histogram()
    lag.record_ns([1_000_000, 2_000_000])
    tick = ClientDelta(cpu_ns=5, realtime_ns=3, reads=4, coalesced_reads=1, output_tokens=4, read_lag=lag.encode())
    total = ClientMetrics()
    total.add(tick)
    total.add(tick)
    assert (total.counters["reads"], total.counters["realtime_ns"], total.coalesced_share, total.read_lag.count) == (
        8,
        6,
        0.25,
        4,
    )
    again = ClientMetrics()
    again.add(total.encode())
    assert again.encode() == total.encode()
