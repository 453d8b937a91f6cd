"""What a worker reports about its streams at each tick, and how latencies are encoded.

Structs only: `loadgen.metrics.stage` sums them, and `loadgen.metrics.histogram` computes with latencies.
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

HISTOGRAM_LENGTH = 23_552  # counters of a histogram of 1 us to an hour with three digits, as HdrHistogram numbers them
_ABOVE_US = 1 << 32  # the first value beyond the last counter
_MAX_COUNT = 1 << 40
_FIRST = struct.Struct("<H")
_MAX_PACKED = 4 + HISTOGRAM_LENGTH * (2 + 8)
_EXACT = 1 << 53  # up to here a float holds every integer

Count = Annotated[int, msgspec.Meta(ge=0, le=_EXACT)]
Change = Annotated[int, msgspec.Meta(ge=-_EXACT, le=_EXACT)]  # a count that may be corrected downwards
Moment = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]  # nanoseconds of a monotonic clock

LATENCIES = ("ttft", "ttft_from_intended", "tpot", "itl", "chunk_gap", "e2e", "normalized")
"""Names of the latency histograms, in the order of the result."""
OPTIONAL_LATENCIES = ("answer_ttft", "ttft_first_turn", "ttft_later_turns", "e2e_per_token", "session_time")
"""Those that a stage has only if there was such a thing: reasoning before an answer, sessions."""
MAIN_LATENCIES = ("ttft", "tpot", "itl", "e2e")  # shown during a run, and compared
OUTCOMES = ("completed", "failed", "cancelled", "unfinished", "carried_over")
"""The outcomes of a sent stream once its stage has ended: the counts add up to `sent`."""
MAX_SESSION_ROWS = 12  # sessions reported one by one
MESSAGES_KEPT = 3  # first messages kept per kind of failure and tick


class EncodedHistogram(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A histogram in pipes and journals: the nonzero counters, and exact sums.

    A tick touches a few hundred of the 23,552 counters. Packed they take about a byte each, a tenth of the time and a
    quarter of the room of HdrHistogram's own encoding.
    """

    packed: bytes = b""  # the counters, see `pack_counters`
    count: int
    sum_us: int
    sum_squares_us: int
    min_us: int
    max_us: int
    clipped: int = 0

    def __post_init__(self) -> None:
        """Raise `ValueError` for an impossible histogram: a damaged journal must not become numbers."""
        if not 0 <= self.min_us <= self.max_us < _ABOVE_US:
            raise ValueError("a histogram whose values are not within its counters")
        steps, counts = unpack_counters(self.packed)
        in_order = steps[:1].min(initial=0) >= 0 and steps[1:].min(initial=1) >= 1
        within = steps.max(initial=0) < HISTOGRAM_LENGTH and steps.sum() < HISTOGRAM_LENGTH
        if len(steps) != len(counts) or not in_order or not within:
            raise ValueError(f"a histogram whose counters are not {HISTOGRAM_LENGTH} in order")
        if counts.min(initial=1) < 1 or counts.max(initial=0) > _MAX_COUNT or int(counts.sum()) != self.count:
            raise ValueError("a histogram whose counts do not add up")
        if not self.sum_us**2 <= self.sum_squares_us * self.count <= (self.max_us * self.count) ** 2 or self.sum_us < 0:
            raise ValueError("a histogram whose sums contradict each other")


class Summary(msgspec.Struct, frozen=True):
    """The statistics of a histogram in milliseconds; everything but `count` is None when it is empty.

    Values still awaited are `censored`: they enter the statistics with their time so far. A statistic that their true
    values could change is a lower bound.
    """

    count: int  # without the censored ones
    mean: float | None = None
    stddev: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    hdr: str | None = None  # HdrHistogram's encoding, including the censored values so far
    censored: int = 0
    lower_bounds: tuple[str, ...] = ()  # names of the statistics that are lower bounds


class LoadBin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened while a moving load held about as many streams as one of its steps wants."""

    span_ns: Count = 0  # its duration, summed over workers
    held_area_ns: Change = 0  # open streams integrated over that time
    output_tokens: Change = 0
    hits: dict[str, Count] = {}  # the counts of that name of `StageCounts`
    ttft: EncodedHistogram | None = None
    itl: EncodedHistogram | None = None


class SessionCounts(msgspec.Struct, omit_defaults=True):
    """What became of a worker's live sessions in a stage; what they hold is integrated over its window."""

    begun: Count = 0
    begun_inside: Count = 0  # of these, at a point within the recording
    finished: Count = 0
    cut: Count = 0  # stopped because fewer were wanted
    over_context: Count = 0  # ended before a request longer than the context
    failed: Count = 0  # ended by a request that failed
    lost: Count = 0  # with their worker
    primed: Count = 0  # requests for one token, which bring the context of a session begun inside; not measured
    gaps_cut: Count = 0  # pauses that were cut short
    skipped_ms: Count = 0  # by how much in all
    live_ms: Count = 0  # live sessions integrated over the window
    context_ms: Count = 0  # the tokens of their contexts, likewise


SESSION_COUNTERS = SessionCounts.__struct_fields__


class SessionRow(msgspec.Struct, frozen=True, array_like=True):
    """One live session."""

    session: Count
    trace: Count  # its number in the file
    request: Count  # the latest that was sent, from 1
    requests: Count  # of the whole session
    open: Count
    waits: bool  # a request of it is due and held back by `max_concurrency`
    context_tokens: Count
    cached_share: float | None  # of the tokens of its prompts so far; None if the server does not say


class SessionsNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sessions at a tick."""

    live: Count = 0
    stopped: Count = 0  # no longer live, with open requests
    pausing: Count = 0  # live ones without an open or due request: between an answer and the next request
    due: Count = 0  # requests that are due and not yet sent
    context_tokens: Count = 0
    rows: list[SessionRow] = []  # at most `MAX_SESSION_ROWS`, the longest contexts first


class StageCounts(msgspec.Struct):
    """Outcomes and counts of a stage's streams on one worker."""

    warmup: Count = 0  # streams sent before the window was opened
    warmup_failed: Count = 0
    first_wave: Count = 0  # streams that filled the closed loop at once: in no latency but `first_wave_ttft`
    sent: Count = 0
    completed: Count = 0
    good: Count = 0  # completed streams that met every per-stream limit
    failed: Count = 0
    cancelled: Count = 0  # the client hung up as the profile asks: neither completed nor failed
    unfinished: Count = 0  # streams cut off by an abort, or lost with their worker: neither completed nor failed
    carried_over: Count = 0  # streams that were open when the stage ended
    carried_in: Count = 0  # streams of earlier stages that were open when this one began
    carried_failed: Count = 0  # those of them that failed in this stage
    beyond: Count = 0  # streams carried over or cancelled that had already missed a per-stream limit
    unsent: Count = 0  # arrivals that were due but not sent when the stage ended
    unsent_wait_ns: Count = 0  # the longest wait of one of them
    retried: Count = 0  # requests sent again because a reused connection died before the first byte of its response
    clock_steps: Count = 0  # streams whose times were discarded: the wall clock was stepped, or vramp stood still
    tpot_parts: Count = 0  # how many values of `tpot` are of parts of streams
    input_tokens: Count = 0
    output_tokens: Count = 0  # of completed streams; the tokens that arrived in the window are `window_output_tokens`
    counted_by_events: Count = 0
    """Completed streams whose server reported no usage, so that events were counted as tokens."""
    unknown_input: Count = 0  # completed streams whose prompt tokens nobody reported
    cached_input_tokens: Count = 0  # of completed streams whose server said how much of the prompt it had cached
    cached_tokens: Count = 0  # and those of them that were cached
    recorded_tokens: Count = 0  # of the prompts of completed streams of sessions, by the recording
    infinite_hit_tokens: Count = 0  # those of them that a prefix cache without limit would hold
    pool_hit_tokens: Count = 0  # or one of the size of the engine's KV cache; 0 if that is unknown
    hidden_tokens: Count = 0  # of `output_tokens`: reasoning that was never streamed
    uneven_streams: Count = 0
    """Streams that completed in it, and whose total shows that an event did not carry one token: ITL is unknown."""
    reasoned: Count = 0  # measured streams whose output began with reasoning
    unanswered: Count = 0  # completed ones of these that ended before an answer
    unknown_tpot: Count = 0  # completed streams whose TPOT is unknown: usage counts tokens that were not streamed
    bursts: Count = 0  # reads in the window with several output events of a stream
    burst_events: Count = 0  # the output events in them
    burst_gap_ns: Count = 0  # summed over bursts: since the stream's previous output, or since it was sent
    burst_moments: Count = 0  # moments at which there were bursts, of any stream
    first_bursts: Count = 0  # of `bursts`, those with the stream's first token; likewise the next two
    first_burst_events: Count = 0
    first_burst_gap_ns: Count = 0
    requested_tokens: Count = 0  # OSL of completed streams whose answers may not end earlier
    short_answers: Count = 0  # those of them that did
    answers: Count = 0  # sampled, with their beginning checked
    degenerate: dict[str, Count] = {}  # degenerate ones of these, by kind
    loops: dict[str, Count] = {}  # those that repeat themselves, by the repeated text
    models: dict[str, Count] = {}  # streams sent by model; empty if there is only one
    finish_reasons: dict[str, Count] = {}  # of completed streams; `none` if only `[DONE]` came
    errors: dict[str, Count] = {}
    messages: dict[str, list[str]] = {}


HIT_COUNTS = ("cached_input_tokens", "cached_tokens", "recorded_tokens", "infinite_hit_tokens", "pool_hit_tokens")
BURST_COUNTS = tuple(name for name in StageCounts.__struct_fields__ if "burst" in name)


class StageDelta(StageCounts, msgspec.Struct, frozen=True, omit_defaults=True):  # type: ignore[misc]
    """What happened to one stage on one worker since its last tick."""

    lost: Count = 0  # unfinished streams whose worker died or fell silent
    window_requests: Count = 0
    window_input_tokens: Change = 0
    window_output_tokens: Change = 0
    held_area_ns: Change = 0  # open streams integrated over the window: divided by its length, the mean concurrency
    window_start_ns: Moment | None = None
    window_end_ns: Moment | None = None
    tail_start_ns: Moment | None = None
    """When a stage bounded by requests ran out of them: from then on fewer streams are open than asked for."""
    peak: Count = 0
    sessions: SessionCounts | None = None  # None where the load is not sessions
    bins: dict[Count, LoadBin] = {}  # by step, of a stage whose load moves
    latency: dict[str, EncodedHistogram] = {}
    """Without `chunk_gap` if it equals `itl`: every event brought one token."""


class ClientDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker did since its last tick, and how late it was."""

    cpu_ns: Count = 0
    realtime_ns: Count = 0  # time at realtime priority
    waited_ns: Count = 0  # time runnable without a core
    stood_still_ns: Count = 0  # time stopped, frozen or suspended; of several workers the longest, with vramp's own
    workers_lost: Count = 0  # workers that died or had to be killed
    reads: Count = 0
    coalesced_reads: Count = 0
    """Reads with more than one output event: all but the last of these are stamped late."""
    coalesced_ttfts: Count = 0  # streams whose first token was read together with later ones, whose stamp it got
    unstamped_reads: Count = 0  # reads without a kernel timestamp, stamped by the user-space clock
    unsure_ttfts: Count = 0
    """Streams whose TTFT may be more than a millisecond too long, because the client lost its core while sending."""
    requests: Count = 0  # streams that completed, measured or not
    input_tokens: Change = 0  # of prompts, counted at the first token, or at the last if usage comes only then
    output_tokens: Change = 0  # output tokens that arrived, measured or not
    connects: Count = 0
    resent_requests: Count = 0  # first requests of connections that the kernel sent again: that is in their TTFT
    read_lag: EncodedHistogram | None = None
    send_lag: EncodedHistogram | None = None


COUNTERS = tuple(
    field.name
    for field in msgspec.structs.fields(StageDelta)
    if field.type in (Count, Change) and field.name not in ("unsent_wait_ns", "peak")
)
"""The fields of a `StageDelta` that add up."""
CLIENT_COUNTERS = tuple(field.name for field in msgspec.structs.fields(ClientDelta) if field.type in (Count, Change))


class StreamRow(msgspec.Struct, frozen=True, array_like=True):
    """One stream; None is unknown. Times are CLOCK_REALTIME, seconds since 1970, to the microsecond."""

    stage: int  # `index` of the stage in the result: the one in which the stream was sent
    request: int  # number in the stage over all workers; the conversation's number, if requests are its turns
    turn: int
    outcome: str  # `completed`, `failed:` and the kind of failure, `cancelled`, `unfinished`
    warmup: bool  # sent before the measurement began: in no latency of the result
    intended_unix_s: float  # when it was due by the schedule; in closed loop, when its slot became free
    sent_unix_s: float | None
    first_unix_s: float | None  # when the first output arrived
    last_unix_s: float | None  # when the last output arrived
    input_tokens: int | None
    output_tokens: int  # those that arrived, if it did not complete
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    model: str | None = None
    first_wave: bool = False  # one of those that filled the closed loop at once: its times are kept apart
    priming: bool = False  # for one token, to bring the context of a session into the cache: in no figure of the load


def pack_counters(indices: NDArray[np.int64], counts: NDArray[np.int64]) -> bytes:
    """Two bytes with the widths of steps and counts, the first index, each index's distance from the previous, counts.

    Steps and counts are nearly always small: they are as wide as the largest one needs, and compressed.
    """
    if len(indices) == 0:
        return b""
    steps = np.diff(indices)
    widths = _width(steps), _width(counts)
    raw = (bytes(widths), _FIRST.pack(indices[0]), steps.astype(f"<u{widths[0]}").tobytes())
    return zlib.compress(b"".join((*raw, counts.astype(f"<u{widths[1]}").tobytes())), level=1, wbits=-zlib.MAX_WBITS)


def unpack_counters(packed: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first index with the distances from each to the next, and the counts; raises `ValueError` for other bytes."""
    if not packed:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    unpacking = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        raw = unpacking.decompress(packed, _MAX_PACKED)
        of_steps, of_counts = raw[0], raw[1]
        number, rest = divmod(len(raw) - 4 + of_steps, of_steps + of_counts)
        counts_at = len(raw) - number * of_counts
        later = np.frombuffer(raw[4:counts_at], dtype=f"<u{of_steps}").astype(np.int64)
        counts = np.frombuffer(raw[counts_at:], dtype=f"<u{of_counts}").astype(np.int64)
    except (zlib.error, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"a histogram whose counters are not packed: {error}") from None
    if rest or len(later) != number - 1 or not unpacking.eof or unpacking.unused_data:
        raise ValueError("a histogram whose counters are not packed")
    return np.concatenate([np.array(_FIRST.unpack_from(raw, 2), dtype=np.int64), later]), counts


def _width(values: NDArray[np.int64]) -> int:
    largest = int(values.max(initial=0))
    return next(width for width in (1, 2, 4, 8) if largest < 1 << 8 * width)
