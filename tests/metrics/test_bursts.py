"""Reads of several output events: who caused them, and where that must not be said."""

from collections.abc import Mapping

import pytest

from loadgen.metrics.bursts import buffered_words, bursts_of, on_host
from loadgen.metrics.histogram import Histogram
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import ClientDelta
from loadgen.schema.result import Bursts
from tests.record.test_crosscheck import client

MS = 1_000_000
HELD = {  # 12 streams of 200 tokens and 2 s, whose tokens come by twenty, 200 ms apart
    "bursts": 120,
    "burst_events": 2400,
    "burst_gap_ns": 120 * 200 * MS,
    "burst_moments": 60,
    "first_bursts": 12,
    "first_burst_events": 240,
    "first_burst_gap_ns": 12 * 200 * MS,
    "held_area_ns": 12 * 2000 * MS,
}


def found(
    counts: Mapping[str, int] = HELD,
    *,
    output_events: int = 2400,
    first_tokens: int = 12,
    ttft_ns: float = 12 * 200 * MS,
    busy: float | None = 0.1,
    **changed: int,
) -> Bursts | None:
    return bursts_of(
        {**counts, **changed},
        output_events=output_events,
        first_tokens=first_tokens,
        ttft_ns=ttft_ns,
        busy_share=busy,
    )


def test_streams_that_something_gathers_have_figures_and_switches() -> None:
    bursts = found()
    assert bursts is not None and bursts.held_back is True
    assert (bursts.share, bursts.first_share, bursts.events_at_once, bursts.gap_ms) == (1.0, 1.0, 20.0, 200.0)
    assert round(bursts.overdue, 2) == 0.95
    words = buffered_words(bursts) or ""
    assert "100% of the output events came several at a time, 20 together after 200 ms" in words
    for switch in ("proxy_buffering off", "X-Accel-Buffering: no", "option http-no-delay"):
        assert switch in words


@pytest.mark.parametrize(
    ("counts", "held_back"),
    [
        ({"busy": 0.7}, False),  # so much may have been the client
        ({"busy": None}, None),  # nothing is known of it
        ({"burst_moments": 2}, None),  # two interruptions that nothing accounts for are possible
        ({"output_events": 100_000, "first_tokens": 200}, False),  # a few bursts among many events
    ],
)
def test_it_is_not_said_where_the_evidence_does_not_reach(
    counts: dict[str, int | float | None], *, held_back: bool | None
) -> None:
    bursts = found(**counts)  # type: ignore[arg-type]
    assert bursts is not None and bursts.held_back is held_back
    assert buffered_words(bursts) is None


@pytest.mark.parametrize(
    ("full_share", "held_back"),
    [
        (1.0, None),  # the engine may have waited for a core
        (0.2, None),  # while it ran; the rest of the time it stood still
        (0.05, True),
        (None, None),
    ],
)
def test_it_is_said_only_of_a_host_with_a_core_to_spare(full_share: float | None, *, held_back: bool | None) -> None:
    bursts = on_host(found(), full_share)
    assert bursts is not None and bursts.held_back is held_back
    assert (buffered_words(bursts) is None) == (held_back is None)


def test_no_bursts_are_nothing() -> None:
    assert found(dict.fromkeys(HELD, 0)) is None
    assert found(output_events=0) is None


def test_a_path_that_holds_only_the_beginning_of_each_answer() -> None:
    """Ten tokens of 400, in streams of 4 s: their TTFT is 95 ms too long, of 120."""
    first = {
        "bursts": 50,
        "burst_events": 500,
        "burst_gap_ns": 50 * 120 * MS,
        "first_bursts": 50,
        "first_burst_events": 500,
        "first_burst_gap_ns": 50 * 120 * MS,
        "held_area_ns": 50 * 4000 * MS,
    }
    many = {"output_events": 20_000, "first_tokens": 50, "ttft_ns": 50 * 120 * MS}
    bursts = found(**first, **many)  # type: ignore[arg-type]
    assert bursts is not None and bursts.held_back is True and bursts.share < 0.1


def test_the_processing_of_a_long_prompt_is_not_overdue_output() -> None:
    """Two tokens come together after 4 s of prefill; with more than one it says more."""
    prefill = {
        "bursts": 50,
        "burst_events": 100,
        "burst_gap_ns": 50 * 4000 * MS,
        "first_bursts": 50,
        "first_burst_events": 100,
        "first_burst_gap_ns": 50 * 4000 * MS,
        "held_area_ns": 50 * 5000 * MS,
    }
    bursts = found(**prefill, output_events=5000, first_tokens=50, ttft_ns=50 * 4000 * MS)  # type: ignore[arg-type]
    assert bursts is not None and bursts.held_back is False


def stage(busy_share: float, **counts: int) -> StageRecord:
    record = client(first_tokens=0)
    record.metrics.counters |= {**HELD, **counts}
    gaps, ttft = Histogram(), Histogram()
    gaps.record_ns([10 * MS] * 2388)
    ttft.record_ns([200 * MS] * 12)
    record.metrics.latency |= {"chunk_gap": gaps, "ttft": ttft}
    record.client_span_ns = 10_000 * MS
    busy_ns = int(busy_share * record.client_span_ns)
    record.client.add(
        ClientDelta(cpu_ns=busy_ns - MS, waited_ns=MS, reads=120, coalesced_reads=120, coalesced_ttfts=12)
    )
    return record


def test_bursts_are_put_down_to_the_client_only_if_possible() -> None:
    assert stage(0.1).limit() is None
    assert "carried several events because they were late" in (stage(0.7).limit() or "")
    assert stage(0.1, burst_moments=1).limit() is None  # not known whose they are


def of_hosts(*coalesced_reads: int) -> StageRecord:
    """A stage of hosts whose every read, or none, carried several events."""
    whole = client(first_tokens=0)
    for number, reads in enumerate(coalesced_reads):
        part = stage(0.1)
        part.host, part._whole = f"host-{'abc'[number]}", whole
        if not reads:
            part.metrics.counters |= dict.fromkeys(HELD, 0)
            part.client.counters |= {"coalesced_reads": 0, "coalesced_ttfts": 0}
        whole.hosts.append(part)
    return whole


def test_a_host_that_alone_gets_bursts_is_named_with_its_own_path() -> None:
    whole = of_hosts(0, 120, 0)
    words = "100.0% of its reads carried several events, unlike those of host-a: packets were lost or held back"
    assert (whole.limit() or "").startswith(f"host-b: {words}")
    assert [part.limit() is None for part in whole.hosts] == [True, False, True]


def test_hosts_that_all_get_bursts_are_not_the_cause() -> None:
    assert of_hosts(120, 120, 120).limit() is None
    assert of_hosts(120).limit() is None
