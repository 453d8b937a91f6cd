"""What happened in the running stage of a worker between two ticks: lists that the timed path appends to, and counts.

Appending an int to a list is the cheapest record there is; everything vectorised happens in `drain`, four times a
second. A samples belongs to one stage. What is timed counts only while its window is open; streams of an earlier stage
that are still open record here too, because what happens under a load belongs to that load's stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.deltas import MESSAGES_KEPT, ClientDelta, EncodedHistogram, StageDelta, StreamRow
from loadgen.metrics.histogram import Histogram

_COUNTERS = (
    "warmup",
    "warmup_failed",
    "first_wave",
    "sent",
    "completed",
    "good",
    "failed",
    "cancelled",
    "unfinished",
    "carried_over",
    "carried_in",
    "carried_failed",
    "beyond",
    "unsent",
    "unsent_wait_ns",
    "retried",
    "clock_steps",
    "tpot_parts",
    "input_tokens",
    "output_tokens",
    "counted_by_events",
)
_SAMPLES = (
    "ttft_ns",
    "ttft_from_intended_ns",
    "ttft_censored_ns",
    "ttft_from_intended_censored_ns",
    "first_wave_ttft_ns",
    "tpot_ns",
    "e2e_ns",
    "e2e_censored_ns",
    "normalized_ns",
    "warmup_ttft_ns",
    "warmup_tpot_ns",
)


class StreamLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a good stream keeps to, in nanoseconds; None is no limit."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None

    def met(self, ttft_ns: int, tpot_ns: int, e2e_ns: int) -> bool:
        """Whether a stream with these times is good."""
        return (
            (self.ttft_ns is None or ttft_ns <= self.ttft_ns)
            and (self.tpot_ns is None or tpot_ns <= self.tpot_ns)
            and (self.e2e_ns is None or e2e_ns <= self.e2e_ns)
        )


class StageSamples:
    """What happened in one stage since the last drain; times in nanoseconds.

    The lists are emptied in place and never replaced: streams hold on to their `append`.
    """

    __slots__ = (
        *_COUNTERS,
        *_SAMPLES,
        "first_wave_waiting",
        "errors",
        "events_are_tokens",
        "gaps_ns",
        "is_open",
        "limits",
        "messages",
        "models",
        "odd_gaps",
        "opened_ns",
        "rows",
        "whole_only",
    )

    def __init__(
        self,
        limits: StreamLimits | None = None,
        *,
        is_open: bool = True,
        whole_only: bool = False,
        rows: list[StreamRow] | None = None,
    ) -> None:
        self.limits = limits
        self.is_open = is_open  # the window of the stage is open
        self.opened_ns = 0  # when it was opened (CLOCK_REALTIME)
        self.whole_only = whole_only  # requests bound the stage: only streams that were sent in its window are timed
        self.events_are_tokens = True  # no usage at the end of a stream has said that its events carried several tokens
        self.first_wave_waiting = 0  # streams of the first wave without a first token, sent or to be sent
        self.rows = rows  # where a stream leaves its row when it is over; None if nobody asks for rows
        self.gaps_ns: list[int] = []  # gaps between output events, where the later one carried one token
        self.odd_gaps: list[tuple[int, int, int]] = []
        """(chunk gap, gap since the last token, tokens) of the events that did not carry exactly one token."""
        self.ttft_ns: list[int] = []
        self.ttft_from_intended_ns: list[int] = []
        self.ttft_censored_ns: list[int] = []
        """Waits of streams that had no first token when the window closed; so the three that are `censored`."""
        self.ttft_from_intended_censored_ns: list[int] = []
        self.first_wave_ttft_ns: list[int] = []
        self.tpot_ns: list[int] = []
        self.e2e_ns: list[int] = []
        self.e2e_censored_ns: list[int] = []
        self.normalized_ns: list[int] = []
        self.warmup_ttft_ns: list[int] = []
        """Of streams that no statistic of the stage takes, for the time series; so `warmup_tpot_ns`."""
        self.warmup_tpot_ns: list[int] = []
        self._clear_counts()

    def _clear_counts(self) -> None:
        self.warmup = 0
        self.warmup_failed = 0
        self.first_wave = 0
        self.sent = 0
        self.completed = 0
        self.good = 0
        self.failed = 0
        self.cancelled = 0
        self.unfinished = 0
        self.carried_over = 0
        self.carried_in = 0
        self.carried_failed = 0
        self.beyond = 0
        self.unsent = 0
        self.unsent_wait_ns = 0
        self.retried = 0
        self.clock_steps = 0
        self.tpot_parts = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.counted_by_events = 0
        self.models: dict[str, int] = {}  # requests sent, by their model; only where there are several
        self.errors: dict[str, int] = {}
        self.messages: dict[str, list[str]] = {}

    def open(self) -> None:
        """Begin to measure: what was timed until now is of the warm-up."""
        self.is_open = True
        self.opened_ns = time.time_ns()
        self.gaps_ns.clear()
        self.odd_gaps.clear()

    def close(self) -> None:
        """Measure no more; what was measured has been drained."""
        self.is_open = False
        self.first_wave_waiting = 0

    def note_unsent(self, intended_ns: int, now_ns: int) -> None:
        """Count an arrival that was due and is not sent any more."""
        wait_ns = now_ns - intended_ns
        self.unsent += 1
        self.unsent_wait_ns = max(self.unsent_wait_ns, wait_ns)
        self.ttft_from_intended_censored_ns.append(wait_ns)

    def drop_samples(self) -> None:
        """Throw away every time since the last drain: the wall clock was stepped."""
        for name in (*_SAMPLES, "gaps_ns", "odd_gaps"):
            getattr(self, name).clear()

    def note_failure(self, kind: str, message: str, *, counted: bool = True) -> None:
        """Count a failure, unless it is of the warm-up, and keep its message if it is among the first of its kind."""
        if counted:
            self.errors[kind] = self.errors.get(kind, 0) + 1
        kept = self.messages.setdefault(kind, [])
        if len(kept) < MESSAGES_KEPT and message not in kept:
            kept.append(message)

    def drain(self, send_due: Callable[[], None] = lambda: None) -> StageDelta:
        """Everything since the last drain, as a delta whose window fields the worker fills in.

        `send_due` is called before each piece of the work; it may send requests, but not read answers.
        """
        latency = {}
        for name in _SAMPLES:
            send_due()
            latency[name.removesuffix("_ns")] = encoded_histogram(getattr(self, name))
        send_due()
        if self.is_open:
            latency |= gap_histograms(self.gaps_ns, self.odd_gaps)
        send_due()
        delta = StageDelta(
            **{counter: getattr(self, counter) for counter in _COUNTERS},
            models=self.models,
            errors=self.errors,
            messages=self.messages,
            latency={name: encoded for name, encoded in latency.items() if encoded is not None},
        )
        self.drop_samples()
        self._clear_counts()
        return delta


def gap_histograms(
    gaps_ns: Sequence[int], odd_gaps: Sequence[tuple[int, int, int]]
) -> dict[str, EncodedHistogram | None]:
    """ITL and chunk gaps from the two lists of a samples; without chunk gaps where they are the same."""
    if not odd_gaps:
        return {"itl": encoded_histogram(gaps_ns)}
    chunk_gaps, token_gaps, tokens = np.array(odd_gaps, dtype=np.int64).T
    if (tokens == 1).all() and (chunk_gaps == token_gaps).all():
        # Two events in one read: odd, and still the same.
        return {"itl": encoded_histogram(np.concatenate([gaps_ns, chunk_gaps]).astype(np.int64))}
    itl, chunk_gap = Histogram(), Histogram()
    itl.record_ns(gaps_ns)
    # A gap in which k tokens arrived together is k inter-token latencies of a k-th each.
    itl.record_ns(token_gaps // np.maximum(tokens, 1), weights=tokens)
    chunk_gap.record_ns(gaps_ns)
    chunk_gap.record_ns(chunk_gaps)
    return {"itl": itl.encode() if itl.count else None, "chunk_gap": chunk_gap.encode()}


class ClientSamples:
    """What one worker did since its last tick: shared by all its connections, which hold on to its lists."""

    __slots__ = (
        "_drained_requests",
        "_drained_tokens",
        "coalesced_reads",
        "connects",
        "input_tokens",
        "output_tokens",
        "read_lag_ns",
        "reads",
        "requests",
        "send_lag_ns",
        "unstamped_reads",
        "unsure_ttfts",
    )

    def __init__(self) -> None:
        self.output_tokens = 0
        """Output tokens that arrived, ever; `input_tokens` and `requests` of streams that completed, ever."""
        self.input_tokens = 0
        self.requests = 0
        self.reads = 0
        self.coalesced_reads = 0
        self.unstamped_reads = 0
        self.unsure_ttfts = 0
        self.connects = 0
        self.read_lag_ns: list[int] = []
        """Of a sample of the reads that the kernel stamped; under TLS, how late the loop was at other times."""
        self.send_lag_ns: list[int] = []
        self._drained_tokens = self._drained_requests = 0

    def drain(self, cpu_ns: int, realtime_ns: int = 0, send_due: Callable[[], None] = lambda: None) -> ClientDelta:
        """Everything since the last drain, with the CPU that it took; `send_due` as in `StageSamples.drain`."""
        send_due()
        read_lag = encoded_histogram(_rounded(self.read_lag_ns))
        send_due()
        delta = ClientDelta(
            cpu_ns=cpu_ns,
            realtime_ns=realtime_ns,
            reads=self.reads,
            coalesced_reads=self.coalesced_reads,
            unstamped_reads=self.unstamped_reads,
            unsure_ttfts=self.unsure_ttfts,
            requests=self.requests - self._drained_requests,
            output_tokens=self.output_tokens - self._drained_tokens,
            connects=self.connects,
            read_lag=read_lag,
            send_lag=encoded_histogram(_rounded(self.send_lag_ns)),
        )
        self._drained_tokens, self._drained_requests = self.output_tokens, self.requests
        self.reads = self.coalesced_reads = self.unstamped_reads = self.unsure_ttfts = self.connects = 0
        self.read_lag_ns.clear()
        self.send_lag_ns.clear()
        return delta


def _rounded(values_ns: list[int]) -> NDArray[np.int64]:
    """Rounded by a 32nd at most: a lag says whether the client keeps up, and each of its digits swells the journal."""
    values = np.asarray(values_ns, dtype=np.int64)
    shift = np.maximum(np.frexp(values.astype(np.float64))[1] - 5, 0)
    rounded: NDArray[np.int64] = (values + (1 << shift >> 1)) >> shift << shift
    return rounded


def encoded_histogram(values_ns: Sequence[int] | NDArray[np.int64]) -> EncodedHistogram | None:
    """The histogram of some durations in nanoseconds, as it travels; None without any."""
    if len(values_ns) == 0:
        return None
    histogram = Histogram()
    histogram.record_ns(values_ns)
    return histogram.encode()
