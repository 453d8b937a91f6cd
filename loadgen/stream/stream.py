"""One request and its streamed answer: what has arrived so far, and how it ended.

A stream records into the samples of the running stage, which may be later than the stage in which it was sent. Its
outcome counts in the stage in which it was sent, until that ends; then it is carried over into the next, where only its
gaps and its part of a TPOT count. Times are nanoseconds of CLOCK_REALTIME, the clock of the kernel's receive
timestamps; only `quiet_since_s` is monotonic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from loadgen.schema.deltas import StreamRow
from loadgen.stream.ending import Failure, worse_reason
from loadgen.stream.events import Choice, Usage, output_bytes
from loadgen.stream.samples import StageSamples

MIN_PART_TOKENS = 8  # a shorter part of a stream has no TPOT
MAX_HELD_EVENTS = 3
"""Output events in a row without growing usage; with more, usage does not count the tokens of each event."""
_UNCOUNTED_TOKENS = 1  # by which usage may differ from the events all the same: the end-of-sequence token has none
_UNCOUNTED_SHARE = 0.01  # or a few tokens that were held back until their character was complete
MIN_TOKEN_BYTES = 2
"""Output with less text for each token of the total than this cannot be all that was generated: English text and code
have 3 to 5 bytes a token, and languages that are not written in ASCII as many."""
_NO_USAGE = Usage()


def http_failure(status: int) -> Failure:
    """The kind of failure for a response whose status is not 200."""
    if status == 429:
        return "http_429"
    if 400 <= status < 500:
        return "http_4xx"
    return "http_5xx" if status >= 500 else "protocol"


class Ceiling(NamedTuple):
    """How much of a prompt a prefix cache could have."""

    recorded_tokens: int  # of the prompt, by the recording
    infinite_hit_tokens: int  # in a cache without limit
    pool_hit_tokens: int  # in one of the size of the engine's KV cache; 0 if that is unknown


@dataclass(slots=True, eq=False, kw_only=True)
class Stream:
    """A request in flight; exactly one of `finish`, `fail`, `cancel` and `cut_off` ends it."""

    stage: int
    samples: StageSamples
    wire: bytes  # the request's bytes; empty once they are on their way, because many long prompts would fill memory
    intended_ns: int
    measured: bool = True  # sent while the window is open, and counted in `sent`
    first_wave: bool = False  # one of those that filled the closed loop all at once: its TTFT is kept apart
    request: tuple[int, int] = (0, 0)  # its number in the stage, and its turn in the conversation; see `StreamRow`
    primes: bool = False  # only brings a session's context into the cache: in no figure but the client's own totals
    first_turn: bool | None = None  # of an agent in a session; None where the load is not sessions
    ceiling: Ceiling | None = None
    sent_ids: int | None = None  # token ids sent as its prompt; None if it was sent as text
    osl: int | None = None  # output tokens that the answer must have; None if it may end earlier
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
    tokens: int = 0  # output tokens so far: usage while it is `counted`, then one for each output event
    usage: Usage = _NO_USAGE  # the latest
    counted: bool = True  # usage has given the tokens of each output event so far
    usage_fell: bool = False  # and cannot be believed
    held_events: int = 0  # output events in a row for which usage did not grow
    text_bytes: int = 0  # of the output since it is not counted
    reasoned: bool = False  # its output began with reasoning
    awaits_answer: bool = False  # and has been nothing else so far
    session_token: bytes = b""  # of the response's header that the session repeats
    counted_input: int = 0  # prompt tokens that `ClientSamples` has counted already
    events: int = 0
    events_at_check: int = 0
    silent: bytes = b""  # the last event in which no output was found
    reason: str | None = None  # the finish reason
    done: bool = False  # a finish reason or `[DONE]` was seen
    completed: bool = False

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
        self.tokens = self.first_tokens = self.part_tokens = self.counted_input = 0
        self.events = self.events_at_check = self.held_events = self.text_bytes = 0
        self.usage, self.silent, self.reason = _NO_USAGE, b"", None
        self.counted = True
        self.plain = self.done = self.usage_fell = self.reasoned = self.awaits_answer = False
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
    def input_tokens(self) -> int | None:
        """Tokens of its prompt: by usage, or as many as were sent as ids; None if unknown."""
        return self.usage.prompt_tokens or self.sent_ids

    @property
    def cached_tokens(self) -> int | None:
        """How many tokens of its prompt the server had cached; None if it did not say."""
        details = self.usage.prompt_tokens_details
        return None if details is None else details.cached_tokens

    @property
    def total_tokens(self) -> int | None:
        """Output tokens by usage; None if the server did not say, or what it said cannot be."""
        return None if self.usage_fell else self.usage.completion_tokens or None

    @property
    def output_tokens(self) -> int:
        """Output tokens by usage, or else the number of output events."""
        return self.total_tokens or self.tokens

    @property
    def hidden_tokens(self) -> int:
        """Tokens of the usage that were never streamed: reasoning that the server keeps to itself."""
        details = self.usage.completion_tokens_details
        hidden = (details.reasoning_tokens or 0) if details is not None else 0
        total = self.total_tokens or 0
        if self.reasoned or hidden > total or (self.counted and hidden >= self.first_tokens):
            return 0
        return 0 if not self.counted and _alike(total, self.tokens) else hidden

    @property
    def has_event_tokens(self) -> bool:
        """Whether it is known how many tokens each of its output events carried."""
        total = self.total_tokens
        if total is None:
            return not self.usage_fell
        return _alike(total, self.tokens) or _alike(total - self.hidden_tokens, self.tokens)

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first output event; None if there was no further output, or it is unknown.

        If only the total is known, each event is taken for the same number of tokens.
        """
        later = float(self.tokens - self.first_tokens)
        if not self.has_event_tokens:
            streamed = self.output_tokens - self.hidden_tokens
            if MIN_TOKEN_BYTES * streamed > self.text_bytes or self.usage_fell or self.counted:
                return None  # some of them were never streamed, or usage contradicts itself
            later *= streamed / self.tokens
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
            # No first token will come within this stage.
            samples.ttft_censored_ns.append(age_ns)
            samples.ttft_from_intended_censored_ns.append(now_ns - self.intended_ns)
            if self.first_turn is not None:
                later = samples.ttft_later_turns_censored_ns
                (samples.ttft_first_turn_censored_ns if self.first_turn else later).append(age_ns)
        if self.awaits_answer or (samples.reasons and not self.first_ns):
            samples.answer_ttft_censored_ns.append(age_ns)
        if limits is not None and not limits.met(ttft_ns, 0, age_ns):
            samples.beyond += 1

    def _record_part(self) -> None:
        """Record the TPOT of the part within the window, if it is long enough and its tokens are known."""
        samples, tokens = self.samples, self.tokens - self.part_tokens
        known = self.counted or (samples.events_are_tokens and not self.usage_fell)
        if known and not self.muted and self.part_ns and tokens >= MIN_PART_TOKENS:
            samples.tpot_ns.append((self.last_ns - self.part_ns) // tokens)
            samples.tpot_parts += 1

    # What arrives.

    def tokens_in(self, choice: Choice, grown: int | None) -> int:
        """The tokens of an output event; `grown` is by how much usage has grown, None if it says nothing of this event.

        Once usage does not give the tokens of an event, it is not used for any further event of this stream.
        """
        if not self.counted:
            self.text_bytes += output_bytes(choice)
            return 1
        if grown is not None and grown > 0:
            self.held_events = 0
            return grown
        if grown == 0 and self.held_events < MAX_HELD_EVENTS:
            self.held_events += 1
            return 0
        self.usage_fell |= grown is not None and grown < 0
        tokens = 1 + self.held_events
        self.held_events = 0
        self.counted = False
        self.text_bytes = MIN_TOKEN_BYTES * self.tokens + output_bytes(choice)  # at least
        return tokens

    def note_reason(self, reason: str | None) -> None:
        """Note a finish reason, if it is one."""
        self.reason = worse_reason(self.reason, reason)
        self.done |= self.reason is not None

    def record_first_token(self, stamp_ns: int, tokens: int, *, reasoning: bool = False) -> None:
        """Record the arrival of the first output, with this many tokens."""
        samples, in_first_wave = self.samples, self.first_wave and not self.carried
        self.reasoned = self.awaits_answer = reasoning
        if reasoning:
            samples.reasons = True
            samples.reasoned += self.measured
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
            if self.first_turn is not None:
                of_turn = samples.ttft_first_turn_ns if self.first_turn else samples.ttft_later_turns_ns
                of_turn.append(self.ttft_ns)
        else:
            (samples.priming_ttft_ns if self.primes else samples.warmup_ttft_ns).append(self.ttft_ns)

    def record_answer(self, stamp_ns: int) -> None:
        """Record the first output after the reasoning."""
        self.awaits_answer = False
        if self._is_timed:
            self.samples.answer_ttft_ns.append(stamp_ns - self.sent_ns)

    def begin_part(self, stamp_ns: int, tokens: int) -> None:
        """Begin the part within the open window at its first event, whose gap began earlier and is not recorded.

        Bytes that arrived before the window opened, but were read after it, do not belong to it.
        """
        if stamp_ns >= self.samples.opened_ns or not self.samples.is_open:
            self.part_ns = stamp_ns
            self.part_tokens = self.tokens + tokens
            self.held_ns = 0
            self.plain = self.pieces is None and not self.awaits_answer

    def note_clock_step(self) -> None:
        """Stop timing this stream, because the wall clock was stepped."""
        self.clock_stepped = True
        self._record_into(self.samples, muted=True)

    # How it ends.

    def finish(self) -> None:
        """Record a stream that completed."""
        samples, tpot_ns = self.samples, self.tpot_ns
        self.completed = True
        if not self.has_event_tokens:
            samples.events_are_tokens = False
            samples.uneven_streams += 1
        self._end("completed")
        if self.measured:
            self._count_completed()
            samples.unknown_tpot += tpot_ns is None and self.last_ns > self.first_ns
        if self.clock_stepped:
            return
        tpot_ns = None if tpot_ns is None else int(tpot_ns)
        if self.measured and not self.first_wave:
            self._record_whole(self.output_tokens, tpot_ns)
        elif samples.is_open:
            self._record_part()
        elif tpot_ns is not None:
            samples.warmup_tpot_ns.append(tpot_ns)

    def _count_completed(self) -> None:
        samples, tokens, reason = self.samples, self.output_tokens, self.reason or "none"
        samples.completed += 1
        samples.finish_reasons[reason] = samples.finish_reasons.get(reason, 0) + 1
        samples.counted_by_events += self.total_tokens is None
        samples.unknown_input += self.input_tokens is None
        samples.input_tokens += self.input_tokens or 0
        samples.output_tokens += tokens
        samples.hidden_tokens += self.hidden_tokens
        samples.unanswered += self.awaits_answer
        if self.cached_tokens is not None and self.input_tokens is not None:
            samples.cached_input_tokens += self.input_tokens
            samples.cached_tokens += self.cached_tokens
        if self.ceiling is not None:
            samples.recorded_tokens += self.ceiling.recorded_tokens
            samples.infinite_hit_tokens += self.ceiling.infinite_hit_tokens
            samples.pool_hit_tokens += self.ceiling.pool_hit_tokens
        samples.clock_steps += self.clock_stepped
        if self.osl is not None and self.total_tokens is not None:
            samples.requested_tokens += self.osl
            samples.short_answers += tokens < self.osl

    def _record_whole(self, tokens: int, tpot_ns: int | None) -> None:
        """Record the times of a stream that was sent and completed within the window."""
        samples = self.samples
        samples.e2e_ns.append(self.e2e_ns)
        if self.input_tokens is not None:
            samples.normalized_ns.append(self.e2e_ns // (self.input_tokens + tokens))
        if tpot_ns is not None:
            samples.tpot_ns.append(tpot_ns)
        if self.first_turn is not None and tokens:
            samples.e2e_per_token_ns.append(self.e2e_ns // tokens)
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

    def cut_off(self, now_ns: int) -> None:
        """Record a stream that was cut off because the load ended; its waits are lower bounds, as at a stage's end."""
        self.samples.unfinished += self.measured
        if self._is_timed:
            self._record_waits(now_ns)
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
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            ttft_ms=self.ttft_ns / 1e6 if timed else None,
            tpot_ms=round(self.tpot_ns / 1e6, 6) if complete and self.tpot_ns is not None else None,
            e2e_ms=self.e2e_ns / 1e6 if complete else None,
            model=self.model,
            priming=self.primes,
        )


def _alike(tokens: int, events: int) -> bool:
    """Whether each of these events can have carried one of the tokens."""
    return abs(tokens - events) <= max(_UNCOUNTED_TOKENS, _UNCOUNTED_SHARE * events)


def _unix_s(at_ns: int) -> float | None:
    return round(at_ns / 1e9, 6) if at_ns else None


def _forget(_: object) -> None:
    return
