"""Samples of a worker's running stage between two ticks: lists to which the timed path appends, and counts.

Appending an int to a list is the cheapest way to record; everything vectorised happens in `drain`, four times a second.
`StageSamples` belong to one stage, and times count only while its window is open. Streams carried over from an earlier
stage record here too: what happens under a stage's load belongs to that stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.degenerate import degeneracy
from loadgen.metrics.histogram import Histogram
from loadgen.schema.deltas import (
    BURST_COUNTS,
    MESSAGES_KEPT,
    ClientDelta,
    EncodedHistogram,
    StageCounts,
    StageDelta,
    StreamRow,
)


class StreamLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The SLO limits for a single stream, in nanoseconds; None is no limit."""

    ttft_ns: int | None = None
    tpot_ns: int | None = None
    e2e_ns: int | None = None

    @classmethod
    def of(cls, limits_ms: Mapping[str, float]) -> StreamLimits | None:
        """The per-stream limits among `limits_ms` (by metric); None if there are none."""
        limits_ns = {metric: int(limit_ms * 1e6) for metric, limit_ms in limits_ms.items()}
        # The mean of a stream's ITLs is its TPOT.
        tpot_ns = min((limits_ns[name] for name in ("tpot", "itl") if name in limits_ns), default=None)
        return cls(ttft_ns=limits_ns.get("ttft"), tpot_ns=tpot_ns, e2e_ns=limits_ns.get("e2e")) if limits_ns else None

    def met(self, ttft_ns: int, tpot_ns: int, e2e_ns: int) -> bool:
        """Whether a stream with these times met every limit."""
        return (
            (self.ttft_ns is None or ttft_ns <= self.ttft_ns)
            and (self.tpot_ns is None or tpot_ns <= self.tpot_ns)
            and (self.e2e_ns is None or e2e_ns <= self.e2e_ns)
        )


class StageSamples(StageCounts, msgspec.Struct):
    """What happened in one stage since the last drain; times in nanoseconds.

    The lists are emptied in place and never replaced: streams hold their bound `append`.
    """

    limits: StreamLimits | None = None
    is_open: bool = True  # the window of the stage is open
    opened_ns: int = 0  # when it was opened (CLOCK_REALTIME)
    whole_only: bool = False  # the stage is bounded by requests: only streams sent in its window are timed
    events_are_tokens: bool = True  # until usage at the end of a stream shows that its events carried several tokens
    reasons: bool = False  # the output of one of its streams began with reasoning
    first_wave_waiting: int = 0  # streams of the first wave without a first token, sent or to be sent
    rows: list[StreamRow] | None = None  # takes a row per ended stream; None if rows are not wanted

    # Gaps between output events: those whose later event carried exactly one token, and all others as (chunk gap, gap
    # since the last token, tokens).
    gaps_ns: list[int] = []
    odd_gaps: list[tuple[int, int, int]] = []

    # Samples for the histograms of the same names. `censored`: waits of streams that were still waiting when the window
    # closed, or the client hung up. `failed`: of streams that failed later, which are in the other histogram, too.
    # `warmup`: for the time series only; `priming`: for comparing with the engine only. `turn`, `session`,
    # `e2e_per_token`: only if the load is sessions.
    ttft_ns: list[int] = []
    ttft_from_intended_ns: list[int] = []
    ttft_censored_ns: list[int] = []
    ttft_from_intended_censored_ns: list[int] = []
    ttft_failed_ns: list[int] = []
    ttft_from_intended_failed_ns: list[int] = []
    ttft_first_turn_ns: list[int] = []
    ttft_later_turns_ns: list[int] = []
    ttft_first_turn_censored_ns: list[int] = []
    ttft_later_turns_censored_ns: list[int] = []
    answer_ttft_ns: list[int] = []
    answer_ttft_censored_ns: list[int] = []
    first_wave_ttft_ns: list[int] = []
    tpot_ns: list[int] = []
    e2e_ns: list[int] = []
    e2e_censored_ns: list[int] = []
    normalized_ns: list[int] = []
    e2e_per_token_ns: list[int] = []
    session_time_ns: list[int] = []
    session_time_censored_ns: list[int] = []
    warmup_ttft_ns: list[int] = []
    warmup_tpot_ns: list[int] = []
    priming_ttft_ns: list[int] = []

    def open(self) -> None:
        """Begin to measure; what was timed so far is warm-up."""
        self.is_open = True
        self.opened_ns = time.time_ns()
        self.gaps_ns.clear()
        self.odd_gaps.clear()

    def close(self) -> None:
        """Stop measuring, after the last drain of the window."""
        self.is_open = False
        self.first_wave_waiting = 0

    def note_unsent(self, intended_ns: int, now_ns: int) -> None:
        """Count an arrival that was due and will not be sent."""
        wait_ns = now_ns - intended_ns
        self.unsent += 1
        self.unsent_wait_ns = max(self.unsent_wait_ns, wait_ns)
        self.ttft_from_intended_censored_ns.append(wait_ns)

    def note_clock_step(self) -> None:
        """Discard all times since the last drain, and counts based on times, because the wall clock was stepped."""
        self.clock_steps += len(self.e2e_ns)
        self.good = self.tpot_parts = 0
        for name in BURST_COUNTS:
            setattr(self, name, 0)
        self._drop_samples()
        if self.rows is not None:
            replace = msgspec.structs.replace
            self.rows[:] = [replace(row, ttft_ms=None, tpot_ms=None, e2e_ms=None) for row in self.rows]
        # If the clock was stepped back, `opened_ns` would lie in the future, and until then no gap would be recorded.
        self.opened_ns = min(self.opened_ns, time.time_ns())

    def _drop_samples(self) -> None:
        self.gaps_ns.clear()
        self.odd_gaps.clear()
        for name in _HISTOGRAMS:
            getattr(self, name).clear()

    def note_failure(self, kind: str, message: str, *, counted: bool) -> None:
        """Count a failure unless it belongs to the warm-up; keep its message if among the first of its kind."""
        if counted:
            self.errors[kind] = self.errors.get(kind, 0) + 1
        kept = self.messages.setdefault(kind, [])
        if len(kept) < MESSAGES_KEPT and message not in kept:
            kept.append(message)

    def note_answer(self, text: str) -> None:
        """Count a sampled answer, and whether it is degenerate."""
        self.answers += 1
        kind, loop = degeneracy(text)
        if kind is not None:
            self.degenerate[kind] = self.degenerate.get(kind, 0) + 1
        if loop:
            self.loops[loop] = self.loops.get(loop, 0) + 1

    def drain(self, send_due: Callable[[], None] = lambda: None) -> StageDelta:
        """Everything since the last drain; the worker fills in the window's fields.

        `send_due` is called before each piece of work; it may send requests, but must not read answers.
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
        self._drop_samples()
        for name, nothing in msgspec.structs.asdict(StageCounts()).items():
            setattr(self, name, nothing)
        return delta


_HISTOGRAMS = [
    field.name for field in msgspec.structs.fields(StageSamples) if field.type == list[int] and field.name != "gaps_ns"
]


def gap_histograms(
    gaps_ns: Sequence[int], odd_gaps: Sequence[tuple[int, int, int]]
) -> dict[str, EncodedHistogram | None]:
    """Histograms of ITL and chunk gaps from the two lists of `StageSamples`; no chunk gaps where the two are equal."""
    if not odd_gaps:
        return {"itl": encoded_histogram(gaps_ns)}
    chunk_gaps, token_gaps, tokens = np.array(odd_gaps, dtype=np.int64).T
    if (tokens == 1).all() and (chunk_gaps == token_gaps).all():
        # Two single-token events in one read: listed as odd, yet both gaps are the same.
        return {"itl": encoded_histogram(np.concatenate([gaps_ns, chunk_gaps]).astype(np.int64))}
    itl, chunk_gap = Histogram(), Histogram()
    itl.record_ns(gaps_ns)
    # k tokens that arrive together after a gap are k inter-token latencies of gap / k.
    itl.record_ns(token_gaps // np.maximum(tokens, 1), weights=tokens)
    chunk_gap.record_ns(gaps_ns)
    chunk_gap.record_ns(chunk_gaps)
    return {"itl": itl.encode() if itl.count else None, "chunk_gap": chunk_gap.encode()}


_TOTALS = ("requests", "input_tokens", "output_tokens")  # since the worker started
_COUNTS = "reads coalesced_reads coalesced_ttfts unstamped_reads unsure_ttfts connects resent_requests".split()


class ClientSamples(msgspec.Struct, eq=False):
    """What one worker did since its last tick; shared by all its connections, which hold references to its lists."""

    output_tokens: int = 0  # received since the worker started
    input_tokens: int = 0  # of prompts that the engine has processed, since the worker started
    requests: int = 0
    primed_output_tokens: int = 0  # of these totals, what requests that prime a session's context have in them
    primed_input_tokens: int = 0
    primed_requests: int = 0
    reads: int = 0
    coalesced_reads: int = 0
    coalesced_ttfts: int = 0
    burst_ns: int = 0  # when several output events of a stream last came at once
    unstamped_reads: int = 0
    unsure_ttfts: int = 0
    connects: int = 0
    resent_requests: int = 0
    read_lag_ns: list[int] = []  # of a sample of the stamped reads; under TLS, the event loop's lag instead
    send_lag_ns: list[int] = []
    drained: dict[str, int] = {}  # what the totals were at the last drain

    @property
    def output_tokens_of_load(self) -> int:
        return self.output_tokens - self.primed_output_tokens

    def drain(self, cpu_ns: int, realtime_ns: int = 0, send_due: Callable[[], None] = lambda: None) -> ClientDelta:
        """Everything since the last drain, given the CPU time since then; `send_due` as in `StageSamples.drain`."""
        send_due()
        read_lag = encoded_histogram(_rounded(self.read_lag_ns))
        send_due()
        before, self.drained = self.drained, {name: getattr(self, name) for name in _TOTALS}
        delta = ClientDelta(
            cpu_ns=cpu_ns,
            realtime_ns=realtime_ns,
            read_lag=read_lag,
            send_lag=encoded_histogram(_rounded(self.send_lag_ns)),
            **{name: total - before.get(name, 0) for name, total in self.drained.items()},
            **{name: getattr(self, name) for name in _COUNTS},
        )
        for name in _COUNTS:
            setattr(self, name, 0)
        self.read_lag_ns.clear()
        self.send_lag_ns.clear()
        return delta


def _rounded(values_ns: list[int]) -> NDArray[np.int64]:
    """Round by at most a 32nd, which is exact enough for a lag; further digits would only swell the journal."""
    values = np.asarray(values_ns, dtype=np.int64)
    shift = np.maximum(np.frexp(values.astype(np.float64))[1] - 5, 0)
    rounded: NDArray[np.int64] = (values + (1 << shift >> 1)) >> shift << shift
    return rounded


def encoded_histogram(values_ns: Sequence[int] | NDArray[np.int64]) -> EncodedHistogram | None:
    """The encoded histogram of durations in nanoseconds; None if there are none."""
    if len(values_ns) == 0:
        return None
    histogram = Histogram()
    histogram.record_ns(values_ns)
    return histogram.encode()
