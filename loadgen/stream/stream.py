"""One request and its streamed answer: what has arrived so far, and how it ended.

A stream records into the samples of the running stage, which may be later than the stage in which it was sent. Its
outcome counts in the stage in which it was sent, until that ends; then it is carried over into the next, where only its
gaps and its part of a TPOT count. Times are nanoseconds of CLOCK_REALTIME, the clock of the kernel's receive
timestamps; only `quiet_since_s` is monotonic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from loadgen.metrics.deltas import StreamRow
from loadgen.stream.events import Choice
from loadgen.stream.samples import StageSamples

Failure = Literal[
    "connect",
    "timeout",
    "stall",
    "reset",
    "http_4xx",
    "http_429",
    "http_5xx",
    "protocol",
    "bad_event",
    "engine_error",
    "empty",
]
"""Every way in which a stream can fail; the result counts failures by these names."""

LEAST_PART_TOKENS = 8  # a shorter part of a stream has no TPOT


def http_failure(status: int) -> Failure:
    """The kind of failure for a response whose status is not 200."""
    if status == 429:
        return "http_429"
    if 400 <= status < 500:
        return "http_4xx"
    return "http_5xx" if status >= 500 else "protocol"


@dataclass(slots=True, eq=False, kw_only=True)
class Stream:
    """A request in flight; exactly one of `finish`, `fail`, `cancel` and `cut_off` ends it."""

    stage: int
    samples: StageSamples
    wire: bytes  # the request's bytes; empty once they are on their way, because many long prompts would fill memory
    intended_ns: int
    measured: bool = True  # sent while the window is open, and counted in `sent`
    first_wave: bool = False  # one of those that filled the closed loop all at once: its TTFT is kept apart
    request: tuple[int, int] = (0, 0)  # its number in the stage, and its turn in the conversation
    model: str | None = None  # the model drawn for it, where there are several
    cancel_after_s: float | None = None  # how long after sending the client hangs up
    deadline_s: float = 0.0
    quiet_since_s: float = 0.0
    retried: bool = False
    carried: bool = False  # its stage has ended
    clock_stepped: bool = False  # the wall clock was stepped while this stream was open: its times are invalid
    warmup: bool = field(init=False)
    pieces: list[Choice] | None = None  # the output so far, if its answer is sampled
    due_ns: int = field(init=False)  # intended, or when `max_concurrency` first let the client send it
    muted: bool = field(init=False)  # its gaps are not recorded for now
    record_gap: Callable[[int], None] = field(init=False)
    record_odd_gap: Callable[[tuple[int, int, int]], None] = field(init=False)

    # Reset by `restart`.
    sent_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    held_ns: int = 0  # when the last token came, if text without a new token has come since; else 0
    plain: bool = False  # a next event with one token ends an ordinary gap
    part_ns: int = 0  # the first output since the window opened; 0 before it
    part_tokens: int = 0  # tokens up to and including that output
    first_tokens: int = 0
    tokens: int = 0  # output tokens so far: cumulative usage where each chunk brings it, else output events
    usage_tokens: int | None = None
    prompt_tokens: int = 0
    counted_input: int = 0  # prompt tokens that `ClientSamples` has counted already
    events: int = 0
    events_at_check: int = 0
    done: bool = False  # a finish reason or `[DONE]` was seen

    def __post_init__(self) -> None:
        self.warmup = not self.measured
        self.due_ns = self.intended_ns
        # A first wave meets an idle engine, so neither its TTFT nor its gaps show a steady state.
        self._record_into(self.samples, muted=self.first_wave if self.measured else self.samples.whole_only)

    def _record_into(self, samples: StageSamples, *, muted: bool) -> None:
        """Record into these samples: binds the lists' `append` once, as the lists live as long as the samples."""
        self.samples = samples
        self.muted = muted or self.clock_stepped
        self.record_gap = _forget if self.muted else samples.gaps_ns.append
        self.record_odd_gap = _forget if self.muted else samples.odd_gaps.append

    def restart(self) -> None:
        """Reset everything that was observed, before the request is sent again."""
        self.sent_ns = self.first_ns = self.last_ns = self.held_ns = self.part_ns = 0
        self.tokens = self.first_tokens = self.part_tokens = self.prompt_tokens = self.counted_input = 0
        self.events = self.events_at_check = 0
        self.usage_tokens = None
        self.plain = self.done = False
        if self.pieces is not None:
            self.pieces.clear()

    # Its metrics.

    @property
    def ttft_ns(self) -> int:
        """Time to first token: from the hand-over of the request's last byte to the kernel to the first output."""
        return self.first_ns - self.sent_ns

    @property
    def e2e_ns(self) -> int:
        return self.last_ns - self.sent_ns

    @property
    def output_tokens(self) -> int:
        return self.tokens if self.usage_tokens is None else self.usage_tokens

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first output; None if there was no further output."""
        later = self.output_tokens - self.first_tokens
        return (self.last_ns - self.first_ns) / later if later > 0 else None

    @property
    def _is_timed(self) -> bool:
        """Whether its waits belong to the statistics of the stage in which it was sent."""
        return self.measured and self.sent_ns > 0 and not (self.first_wave or self.clock_stepped)

    # Windows.

    def enter_window(self, samples: StageSamples) -> None:
        """Record into the samples of another window from now on."""
        self.plain = False
        self.part_ns = 0
        self._record_into(samples, muted=samples.whole_only)

    def leave_window(self, now_ns: int) -> None:
        """Record what belongs to the stage that ends while this stream is open."""
        samples = self.samples
        if samples.is_open:
            self._record_part()
        if self.measured:
            samples.carried_over += 1
        if self._is_timed:
            self._record_waits(now_ns)
        self.measured = False
        self.carried = True

    def _record_waits(self, now_ns: int) -> None:
        """Record the waits so far as lower bounds of times that are not known yet."""
        samples, limits, age_ns = self.samples, self.samples.limits, now_ns - self.sent_ns
        samples.e2e_censored_ns.append(age_ns)
        ttft_ns = self.ttft_ns if self.first_ns else age_ns
        if not self.first_ns:
            self._record_first_wait(now_ns)
        if limits is not None and not limits.met(ttft_ns, 0, age_ns):
            samples.beyond += 1

    def _record_first_wait(self, now_ns: int) -> None:
        """Record the wait so far as a lower bound of TTFT, as no first token will come within this stage."""
        self.samples.ttft_censored_ns.append(now_ns - self.sent_ns)
        self.samples.ttft_from_intended_censored_ns.append(now_ns - self.intended_ns)

    def _record_part(self) -> None:
        """Record the TPOT of the part within the window, if it is long enough and its tokens are known."""
        samples, tokens = self.samples, self.tokens - self.part_tokens
        counted = self.usage_tokens is not None or samples.events_are_tokens
        if counted and not self.muted and self.part_ns and tokens >= LEAST_PART_TOKENS:
            samples.tpot_ns.append((self.last_ns - self.part_ns) // tokens)
            samples.tpot_parts += 1

    # What arrives.

    def record_first_token(self, stamp_ns: int, tokens: int) -> None:
        """Record the arrival of the first output, with this many tokens."""
        samples, in_first_wave = self.samples, self.first_wave and not self.carried
        samples.first_wave_waiting -= in_first_wave
        self.first_ns = stamp_ns
        self.first_tokens = tokens
        self.begin_part(stamp_ns, tokens)
        if self.clock_stepped:
            return
        if in_first_wave:
            samples.first_wave_ttft_ns.append(self.ttft_ns)
        elif self.measured:
            samples.ttft_ns.append(self.ttft_ns)
            samples.ttft_from_intended_ns.append(stamp_ns - self.intended_ns)
        else:
            samples.warmup_ttft_ns.append(self.ttft_ns)

    def begin_part(self, stamp_ns: int, tokens: int) -> None:
        """Begin the part within the open window at its first event, whose gap began earlier and is not recorded.

        Bytes that arrived before the window opened, but were read after it, do not belong to it.
        """
        if stamp_ns >= self.samples.opened_ns or not self.samples.is_open:
            self.part_ns = stamp_ns
            self.part_tokens = self.tokens + tokens
            self.held_ns = 0
            self.plain = self.pieces is None

    def note_clock_step(self) -> None:
        """Stop timing this stream, because the wall clock was stepped."""
        self.clock_stepped = True
        self._record_into(self.samples, muted=True)

    # How it ends.

    def finish(self) -> None:
        """Record a stream that completed."""
        samples, tokens = self.samples, self.output_tokens
        if tokens != self.tokens:
            samples.events_are_tokens = False
        self._end("completed")
        if self.measured:
            samples.completed += 1
            samples.counted_by_events += self.usage_tokens is None
            samples.input_tokens += self.prompt_tokens
            samples.output_tokens += tokens
            samples.clock_steps += self.clock_stepped
        if self.clock_stepped:
            return
        tpot_ns = None if self.tpot_ns is None else int(self.tpot_ns)
        if self.measured and not self.first_wave:
            self._record_whole(tokens, tpot_ns)
        elif samples.is_open:
            self._record_part()
        elif tpot_ns is not None:
            samples.warmup_tpot_ns.append(tpot_ns)

    def _record_whole(self, tokens: int, tpot_ns: int | None) -> None:
        """Record the times of a stream that was sent and completed within the window."""
        samples = self.samples
        samples.e2e_ns.append(self.e2e_ns)
        if self.prompt_tokens:
            samples.normalized_ns.append(self.e2e_ns // (self.prompt_tokens + tokens))
        if tpot_ns is not None:
            samples.tpot_ns.append(tpot_ns)
        if samples.limits is not None and samples.limits.met(self.ttft_ns, tpot_ns or 0, self.e2e_ns):
            samples.good += 1

    def fail(self, kind: Failure, message: str) -> None:
        """Record a stream that failed; a failure is data, not an exception."""
        samples = self.samples
        if self.measured:
            samples.failed += 1
        elif self.carried:
            samples.carried_failed += 1
        else:
            samples.warmup_failed += 1
        if self._is_timed and self.first_ns:
            samples.ttft_failed_ns.append(self.ttft_ns)
            samples.ttft_from_intended_failed_ns.append(self.first_ns - self.intended_ns)
        samples.note_failure(kind, message, counted=self.measured or self.carried)
        self._end(f"failed:{kind}")

    def cancel(self, now_ns: int) -> None:
        """Record a stream on which the client hung up.

        Its waits count: without the longest ones, TTFT and E2E would look too good.
        """
        self.samples.cancelled += self.measured
        if self._is_timed:
            self._record_waits(now_ns)
        self._end("cancelled")

    def cut_off(self) -> None:
        """Record a stream that was cut off because the load ended."""
        self.samples.unfinished += self.measured
        self._end("unfinished")

    def _end(self, outcome: str) -> None:
        if self.first_wave and not self.first_ns and not self.carried:
            self.samples.first_wave_waiting -= 1
        if self.samples.rows is not None:
            self.samples.rows.append(self._row(outcome))

    def _row(self, outcome: str) -> StreamRow:
        timed = self.first_ns > 0 and not self.clock_stepped
        complete = timed and outcome == "completed"
        request, turn = self.request
        return StreamRow(
            stage=self.stage,
            request=request,
            turn=turn,
            outcome=outcome,
            warmup=self.warmup,
            first_wave=self.first_wave,
            intended_unix_s=round(self.intended_ns / 1e9, 6),
            sent_unix_s=_unix_s(self.sent_ns),
            first_unix_s=_unix_s(self.first_ns),
            last_unix_s=_unix_s(self.last_ns) if self.first_ns else None,
            input_tokens=self.prompt_tokens or None,
            output_tokens=self.output_tokens,
            ttft_ms=self.ttft_ns / 1e6 if timed else None,
            tpot_ms=round(self.tpot_ns / 1e6, 6) if complete and self.tpot_ns is not None else None,
            e2e_ms=self.e2e_ns / 1e6 if complete else None,
            model=self.model,
        )


def _unix_s(at_ns: int) -> float | None:
    return round(at_ns / 1e9, 6) if at_ns else None


def _forget(_: object) -> None:
    return
