"""What happened in the running stage of a worker between two ticks: lists that the timed path appends to, and counts.

Appending an int to a list is the cheapest record there is; everything vectorised happens in `drain`, four times a
second. `StageSamples` belong to one stage. What is timed counts only while its window is open; streams of an earlier
stage that are still open record here too, because what happens under a load belongs to that load's stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.degenerate import degeneracy
from loadgen.metrics.deltas import MESSAGES_KEPT, ClientDelta, EncodedHistogram, StageCounts, StageDelta, StreamRow
from loadgen.metrics.histogram import Histogram


class StreamLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a good stream keeps to, in nanoseconds; None is no limit."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None

    @classmethod
    def of(cls, limits_ms: Mapping[str, float]) -> StreamLimits | None:
        """The limits that hold for each stream, by metric; None without any."""
        limits_ns = {metric: int(limit_ms * 1e6) for metric, limit_ms in limits_ms.items()}
        # The mean of a stream's ITLs is its TPOT.
        tpot_ns = min((limits_ns[name] for name in ("tpot", "itl") if name in limits_ns), default=None)
        return cls(ttft_ns=limits_ns.get("ttft"), tpot_ns=tpot_ns, e2e_ns=limits_ns.get("e2e")) if limits_ns else None

    def met(self, ttft_ns: int, tpot_ns: int, e2e_ns: int) -> bool:
        """Whether a stream with these times is good."""
        return (
            (self.ttft_ns is None or ttft_ns <= self.ttft_ns)
            and (self.tpot_ns is None or tpot_ns <= self.tpot_ns)
            and (self.e2e_ns is None or e2e_ns <= self.e2e_ns)
        )


class StageSamples(StageCounts, msgspec.Struct):
    """What happened in one stage since the last drain; times in nanoseconds.

    The lists are emptied in place and never replaced: streams hold on to their `append`.
    """

    limits: StreamLimits | None = None
    is_open: bool = True  # the window of the stage is open
    opened_ns: int = 0  # when it was opened (CLOCK_REALTIME)
    whole_only: bool = False  # requests bound the stage: only streams that were sent in its window are timed
    events_are_tokens: bool = True  # no usage at the end of a stream has said that its events carried several tokens
    first_wave_waiting: int = 0  # streams of the first wave without a first token, sent or to be sent
    rows: list[StreamRow] | None = None  # where a stream leaves its row when it is over; None if nobody asks for rows

    # Gaps between output events: where the later one carried exactly one token, and all others as (chunk gap, gap since
    # the last token, tokens).
    gaps_ns: list[int] = []
    odd_gaps: list[tuple[int, int, int]] = []

    # Samples that become the histograms of the same names. Those that are `censored` are waits of streams that had not
    # come so far when the window closed; those of the warm-up are for the time series only.
    ttft_ns: list[int] = []
    ttft_from_intended_ns: list[int] = []
    ttft_censored_ns: list[int] = []
    ttft_from_intended_censored_ns: list[int] = []
    first_wave_ttft_ns: list[int] = []
    tpot_ns: list[int] = []
    e2e_ns: list[int] = []
    e2e_censored_ns: list[int] = []
    normalized_ns: list[int] = []
    warmup_ttft_ns: list[int] = []
    warmup_tpot_ns: list[int] = []

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
        """Throw away every time since the last drain, as when the wall clock was stepped."""
        self.gaps_ns.clear()
        self.odd_gaps.clear()
        for name in _HISTOGRAMS:
            getattr(self, name).clear()

    def note_failure(self, kind: str, message: str, *, counted: bool = True) -> None:
        """Count a failure, unless it is of the warm-up, and keep its message if it is among the first of its kind."""
        if counted:
            self.errors[kind] = self.errors.get(kind, 0) + 1
        kept = self.messages.setdefault(kind, [])
        if len(kept) < MESSAGES_KEPT and message not in kept:
            kept.append(message)

    def note_answer(self, text: str) -> None:
        """Count an answer that was looked at, and what is wrong with it."""
        self.answers += 1
        kind, loop = degeneracy(text)
        if kind is not None:
            self.degenerate[kind] = self.degenerate.get(kind, 0) + 1
        if loop:
            self.loops[loop] = self.loops.get(loop, 0) + 1

    def drain(self, send_due: Callable[[], None] = lambda: None) -> StageDelta:
        """Everything since the last drain, as a delta whose window fields the worker fills in.

        `send_due` is called before each piece of the work; it may send requests, but not read answers.
        """
        latency = {}
        for name in _HISTOGRAMS:
            send_due()
            latency[name.removesuffix("_ns")] = encoded_histogram(getattr(self, name))
        send_due()
        if self.is_open:
            latency |= gap_histograms(self.gaps_ns, self.odd_gaps)
        send_due()
        delta = StageDelta(
            **{name: getattr(self, name) for name in StageCounts.__struct_fields__},
            latency={name: encoded for name, encoded in latency.items() if encoded is not None},
        )
        self.drop_samples()
        for name, nothing in msgspec.structs.asdict(StageCounts()).items():
            setattr(self, name, nothing)
        return delta


_HISTOGRAMS = [
    field.name for field in msgspec.structs.fields(StageSamples) if field.type == list[int] and field.name != "gaps_ns"
]


def gap_histograms(
    gaps_ns: Sequence[int], odd_gaps: Sequence[tuple[int, int, int]]
) -> dict[str, EncodedHistogram | None]:
    """ITL and chunk gaps from the two lists of a stage's samples; without chunk gaps where they are the same."""
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


class ClientSamples(msgspec.Struct, eq=False):
    """What one worker did since its last tick: shared by all its connections, which hold on to its lists."""

    output_tokens: int = 0  # that arrived, ever
    input_tokens: int = 0  # of prompts that the engine has read, ever
    requests: int = 0
    reads: int = 0
    coalesced_reads: int = 0
    unstamped_reads: int = 0
    unsure_ttfts: int = 0
    connects: int = 0
    read_lag_ns: list[int] = []  # of a sample of the stamped reads; under TLS, the loop's lag at other times
    send_lag_ns: list[int] = []
    drained_input_tokens: int = 0
    drained_tokens: int = 0
    drained_requests: int = 0

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
            requests=self.requests - self.drained_requests,
            input_tokens=self.input_tokens - self.drained_input_tokens,
            output_tokens=self.output_tokens - self.drained_tokens,
            connects=self.connects,
            read_lag=read_lag,
            send_lag=encoded_histogram(_rounded(self.send_lag_ns)),
        )
        self.drained_input_tokens, self.drained_tokens = self.input_tokens, self.output_tokens
        self.drained_requests = self.requests
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
