"""Streams that something before the client holds back: said where it is so, and where the client is late it is not."""

from loadgen.metrics.buffering import buffered, held_back
from loadgen.metrics.deltas import ClientDelta
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage_record import StageRecord
from tests.metrics.test_crosscheck import client


def stage(delta: ClientDelta, *, events: int = 1000) -> StageRecord:
    """A stage with so many gaps, of 10 ms between tokens."""
    record = client(first_tokens=0)
    record.client.add(delta)
    gaps, tpot = Histogram(), Histogram()
    gaps.record_ns([10_000_000] * events)
    tpot.record_ns([10_000_000] * 8)
    record.metrics.latency |= {"chunk_gap": gaps, "tpot": tpot}
    return record


def lag(ns: int) -> ClientDelta:
    histogram = Histogram()
    histogram.record_ns([ns] * 100)
    return ClientDelta(read_lag=histogram.encode())


def test_held_back_streams_have_figures_and_switches() -> None:
    record = stage(ClientDelta(reads=60, coalesced_reads=50, held_reads=48, held_events=912))
    record.client.add(lag(100_000))
    found = held_back(record)
    assert found is not None
    assert (found.share, found.events_at_once) == (0.96, 20.0)
    assert found.delay_ms is not None and round(found.delay_ms) == 190
    words = buffered(record) or ""
    assert "96% of the output events" in words and "about 190 ms" in words
    for switch in ("proxy_buffering off", "X-Accel-Buffering: no", "option http-no-delay"):
        assert switch in words
    assert record.client.late_share == 0.0


def test_a_late_client_is_not_a_held_back_stream() -> None:
    late = ClientDelta(reads=1000, coalesced_reads=400, held_reads=100, held_events=100)
    assert buffered(stage(late)) is None
    assert stage(late).client.late_share == 0.3


def test_few_reads_or_few_events_say_nothing() -> None:
    assert buffered(stage(ClientDelta(reads=20, coalesced_reads=9, held_reads=9, held_events=300))) is None
    assert buffered(stage(ClientDelta(reads=1000, coalesced_reads=30, held_reads=30, held_events=30))) is None
    assert buffered(stage(ClientDelta(reads=1000))) is None
    assert buffered(stage(ClientDelta(reads=60, coalesced_reads=50, held_reads=50, held_events=900), events=0)) is None


def test_without_kernel_stamps_the_loop_decides() -> None:
    unstamped = ClientDelta(
        reads=60, coalesced_reads=50, unstamped_coalesced_reads=50, unstamped_coalesced_events=900, unstamped_reads=60
    )
    for lag_ns, held in ((200_000, True), (8_000_000, False)):
        record = stage(unstamped)
        record.client.add(lag(lag_ns))
        assert (buffered(record) is not None) == held
    assert buffered(stage(unstamped)) is None  # nothing is known
