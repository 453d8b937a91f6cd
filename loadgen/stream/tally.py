"""Raw samples of a stage between two ticks: lists that the timed path appends to, drained into histograms.

Appending an int to a list is the cheapest record there is; everything vectorised happens in `drain`, four times a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.histogram import EncodedHistogram, Histogram
from loadgen.metrics.stage import MESSAGES_KEPT, ClientDelta, StageDelta
from loadgen.metrics.stream_rows import StreamRow

_COUNTERS = (
    "sent",
    "completed",
    "good",
    "failed",
    "cancelled",
    "unfinished",
    "retried",
    "clock_steps",
    "input_tokens",
    "output_tokens",
    "counted_by_events",
)
_SAMPLES = ("ttft_ns", "ttft_from_intended_ns", "tpot_ns", "e2e_ns", "normalized_ns")


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


class Tally:
    """What happened to the streams of one stage since the last drain; times in nanoseconds.

    The lists are emptied in place and never replaced: streams hold on to their `append`.
    """

    __slots__ = (
        *_COUNTERS,
        *_SAMPLES,
        "errors",
        "gaps_ns",
        "limits",
        "messages",
        "models",
        "odd_gaps",
        "rows",
        "warmup",
    )

    def __init__(
        self, limits: StreamLimits | None = None, *, warmup: bool = False, rows: list[StreamRow] | None = None
    ) -> None:
        self.limits = limits
        self.warmup = warmup
        self.rows = rows
        """Where a stream leaves its row when it is over; None if nobody asks for rows."""
        self.ttft_ns: list[int] = []
        self.ttft_from_intended_ns: list[int] = []
        self.gaps_ns: list[int] = []
        """Gaps between output events, where the later one carried one token."""
        self.odd_gaps: list[tuple[int, int, int]] = []
        """(chunk gap, gap since the last token, tokens) of the events that did not carry exactly one token."""
        self.tpot_ns: list[int] = []
        self.e2e_ns: list[int] = []
        self.normalized_ns: list[int] = []
        self._clear_counts()

    def _clear_counts(self) -> None:
        self.sent = 0
        self.completed = 0
        self.good = 0
        self.failed = 0
        self.cancelled = 0
        self.unfinished = 0
        self.retried = 0
        self.clock_steps = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.counted_by_events = 0
        self.models: dict[str, int] = {}
        """Requests sent, by their model; only where there are several."""
        self.errors: dict[str, int] = {}
        self.messages: dict[str, list[str]] = {}

    def drop_samples(self) -> None:
        """Throw away every time since the last drain: the wall clock was stepped."""
        for name in (*_SAMPLES, "gaps_ns", "odd_gaps"):
            getattr(self, name).clear()

    def note_failure(self, kind: str, message: str) -> None:
        """Count a failure and keep its message if it is among the first of its kind."""
        self.errors[kind] = self.errors.get(kind, 0) + 1
        kept = self.messages.setdefault(kind, [])
        if len(kept) < MESSAGES_KEPT and message not in kept:
            kept.append(message)

    def drain(self, urgent: Callable[[], None] = lambda: None) -> StageDelta:
        """Everything since the last drain, as a delta whose window fields the worker fills in.

        `urgent` is called before each piece of the work; it may send requests, but not read answers.
        """
        latency = {}
        for name in _SAMPLES:
            urgent()
            latency[name.removesuffix("_ns")] = _histogram(getattr(self, name))
        urgent()
        latency |= self._gap_histograms()
        urgent()
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

    def _gap_histograms(self) -> dict[str, EncodedHistogram | None]:
        if not self.odd_gaps:
            # The chunk gaps are the same.
            return {"itl": _histogram(self.gaps_ns)}
        chunk_gaps, token_gaps, tokens = np.array(self.odd_gaps, dtype=np.int64).T
        if (tokens == 1).all() and (chunk_gaps == token_gaps).all():
            # Two events in one read: odd, and still the same.
            return {"itl": _histogram(np.concatenate([self.gaps_ns, chunk_gaps]).astype(np.int64))}
        itl, chunk_gap = Histogram(), Histogram()
        itl.record_ns(self.gaps_ns)
        # A gap in which k tokens arrived together is k inter-token latencies of a k-th each.
        itl.record_ns(token_gaps // np.maximum(tokens, 1), weights=tokens)
        chunk_gap.record_ns(self.gaps_ns)
        chunk_gap.record_ns(chunk_gaps)
        return {"itl": itl.encode() if itl.count else None, "chunk_gap": chunk_gap.encode()}


class Meter:
    """What one worker did since its last tick: shared by all its connections, which hold on to its lists."""

    __slots__ = (
        "_drained_tokens",
        "coalesced_reads",
        "connects",
        "input_tokens",
        "output_tokens",
        "read_lag_ns",
        "requests",
        "send_lag_ns",
        "unstamped_reads",
    )

    def __init__(self) -> None:
        self.output_tokens = 0
        """Output tokens that arrived, ever; `input_tokens` and `requests` of streams that completed, ever."""
        self.input_tokens = 0
        self.requests = 0
        self.coalesced_reads = 0
        self.unstamped_reads = 0
        self.connects = 0
        self.read_lag_ns: list[int] = []
        """One for each read that the kernel stamped."""
        self.send_lag_ns: list[int] = []
        self._drained_tokens = 0

    def drain(self, cpu_ns: int, realtime_ns: int = 0, urgent: Callable[[], None] = lambda: None) -> ClientDelta:
        """Everything since the last drain, with the CPU that it took; `urgent` as in `Tally.drain`."""
        urgent()
        read_lag = _histogram(_rounded(self.read_lag_ns))
        urgent()
        delta = ClientDelta(
            cpu_ns=cpu_ns,
            realtime_ns=realtime_ns,
            reads=len(self.read_lag_ns) + self.unstamped_reads,
            coalesced_reads=self.coalesced_reads,
            unstamped_reads=self.unstamped_reads,
            output_tokens=self.output_tokens - self._drained_tokens,
            connects=self.connects,
            read_lag=read_lag,
            send_lag=_histogram(_rounded(self.send_lag_ns)),
        )
        self._drained_tokens = self.output_tokens
        self.coalesced_reads = self.unstamped_reads = self.connects = 0
        self.read_lag_ns.clear()
        self.send_lag_ns.clear()
        return delta


def _rounded(values_ns: list[int]) -> NDArray[np.int64]:
    """Rounded by a 32nd at most: a lag says whether the client keeps up, and each of its digits swells the journal."""
    values = np.asarray(values_ns, dtype=np.int64)
    shift = np.maximum(np.frexp(values.astype(np.float64))[1] - 5, 0)
    rounded: NDArray[np.int64] = (values + (1 << shift >> 1)) >> shift << shift
    return rounded


def _histogram(values_ns: Sequence[int] | NDArray[np.int64]) -> EncodedHistogram | None:
    if len(values_ns) == 0:
        return None
    histogram = Histogram()
    histogram.record_ns(values_ns)
    return histogram.encode()
