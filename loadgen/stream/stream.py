"""One request and its streamed answer: what has been seen of it so far, and how it ended.

A stream records into the samples of the stage that is running, which may be a later one than that in which it was sent.
Its outcome counts in the stage in which it was sent, until that ends; then it is carried over into the next, where its
gaps and its part of a TPOT count, and nothing else. Times are nanoseconds of CLOCK_REALTIME, the clock of the kernel's
receive timestamps; `quiet_since_s` alone is monotonic.
"""

from __future__ import annotations

from typing import Literal

from loadgen.metrics.deltas import StreamRow
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
"""Every way in which a stream can fail; the result counts them by these names."""

LEAST_PART_TOKENS = 8  # A shorter part of a stream has no TPOT


def http_failure(status: int) -> Failure:
    """The kind of failure of a response that is not a 200."""
    if status == 429:
        return "http_429"
    if 400 <= status < 500:
        return "http_4xx"
    return "http_5xx" if status >= 500 else "protocol"


class Stream:
    """A request on its way. `finish`, `fail` or `cancel` ends it, once."""

    __slots__ = (
        "cancel_after_s",
        "carried",
        "clock_stepped",
        "counted_input",
        "deadline_s",
        "done",
        "due_ns",
        "events",
        "events_at_sweep",
        "first_ns",
        "first_tokens",
        "first_wave",
        "held_ns",
        "intended_ns",
        "last_ns",
        "measured",
        "model",
        "muted",
        "part_ns",
        "part_tokens",
        "plain",
        "prompt_tokens",
        "quiet_since_s",
        "record_gap",
        "record_odd_gap",
        "request",
        "retried",
        "samples",
        "sent_ns",
        "stage",
        "tokens",
        "usage_tokens",
        "warmup",
        "wire",
    )

    def __init__(
        self,
        *,
        stage: int,
        samples: StageSamples,
        wire: bytes,
        intended_ns: int,
        measured: bool = True,
        first_wave: bool = False,
    ) -> None:
        """One that is not `measured` is sent before the window of its stage is open."""
        self.stage = stage
        self.samples = samples
        self.wire = wire  # the request's bytes, kept until the response begins so that it can be sent once more
        self.intended_ns = intended_ns
        self.measured = measured  # sent in the window that is open, and counted in `sent`
        self.first_wave = first_wave  # one of those that all began at once: its TTFT is told apart
        self.warmup = not measured
        self.carried = False  # its stage has ended
        self.muted = False  # its gaps are not recorded for now
        self.due_ns = intended_ns
        """Since when the client could have sent it: later than intended where `max_concurrency` held it back."""
        self.request = (0, 0)  # its number in the stage, and which turn of its conversation it is
        self.model: str | None = None  # the one that it was drawn for, where there are several
        self.cancel_after_s: float | None = None  # the client hangs up this long after it has sent the request
        self.retried = False
        self.clock_stepped = False  # the wall clock was stepped while this stream was open: its times mean nothing
        self.deadline_s = 0.0
        self.quiet_since_s = 0.0
        # A first wave finds an idle engine: neither its first tokens nor what follows is a steady state.
        self._record_into(samples, muted=first_wave and measured)
        self.restart()

    def _record_into(self, samples: StageSamples, *, muted: bool) -> None:
        """Look the lists up once: they live as long as the samples, see `StageSamples.drain`."""
        self.samples = samples
        self.muted = muted or self.clock_stepped
        self.record_gap = _forget if self.muted else samples.gaps_ns.append
        self.record_odd_gap = _forget if self.muted else samples.odd_gaps.append

    def restart(self) -> None:
        """Forget whatever was seen, before the request is sent (again)."""
        self.sent_ns = 0
        self.first_ns = 0
        self.last_ns = 0
        self.held_ns = 0  # when the last token came, while text without a token has come after it; else 0
        self.plain = False  # the next event that brings one token ends a gap like any other
        self.part_ns = 0
        """The first output since the window was opened, 0 before it; `part_tokens` are those up to then."""
        self.part_tokens = 0
        self.first_tokens = 0
        self.tokens = 0
        """Output tokens seen so far: cumulative usage where the server sends it with each chunk, else output events."""
        self.usage_tokens: int | None = None
        self.prompt_tokens = 0
        self.counted_input = 0  # of the prompt's tokens, those that the client has counted
        self.events = 0
        self.events_at_sweep = 0
        self.done = False  # A finish reason or `[DONE]` was seen

    # Windows.

    def enter_window(self, samples: StageSamples) -> None:
        """From now on the gaps and the part of this stream are those of another window."""
        self.plain = False
        self.part_ns = 0
        self._record_into(samples, muted=samples.whole_only)

    def leave_window(self, now_ns: int) -> None:
        """The stage ends while this stream is open: what it has shown until now is the stage's."""
        samples = self.samples
        if samples.is_open:
            self._record_part()
        if self.measured:
            samples.carried_over += 1
            if not (self.clock_stepped or self.first_wave) and self.sent_ns:
                self._record_waits(now_ns)
        self.measured = False
        self.carried = True

    def _record_waits(self, now_ns: int) -> None:
        """What is not known yet is at least what has passed of it."""
        samples, limits, age_ns = self.samples, self.samples.limits, now_ns - self.sent_ns
        samples.e2e_censored_ns.append(age_ns)
        ttft_ns = self.first_ns - self.sent_ns if self.first_ns else age_ns
        if not self.first_ns:
            samples.ttft_censored_ns.append(age_ns)
            samples.ttft_from_intended_censored_ns.append(now_ns - self.intended_ns)
        if limits is not None and not limits.met(ttft_ns, 0, age_ns):
            samples.beyond += 1

    def _record_part(self) -> None:
        """The TPOT of what came within the window, if that is enough and its tokens are known."""
        samples, tokens = self.samples, self.tokens - self.part_tokens
        counted = self.usage_tokens is not None or samples.events_are_tokens
        if counted and not self.muted and self.part_ns and tokens >= LEAST_PART_TOKENS:
            samples.tpot_ns.append((self.last_ns - self.part_ns) // tokens)
            samples.tpot_parts += 1

    # What is seen of it.

    def record_first_token(self, stamp_ns: int, tokens: int) -> None:
        """The first output has arrived, with this many tokens."""
        self._stop_waiting()
        self.first_ns = stamp_ns
        self.first_tokens = tokens
        self.begin_part(stamp_ns, tokens)
        samples = self.samples
        if self.clock_stepped:
            return
        ttft_ns = stamp_ns - self.sent_ns
        if self.first_wave and not self.carried:
            samples.first_wave_ttft_ns.append(ttft_ns)
        elif self.measured:
            samples.ttft_ns.append(ttft_ns)
            samples.ttft_from_intended_ns.append(stamp_ns - self.intended_ns)
        else:
            samples.warmup_ttft_ns.append(ttft_ns)

    def begin_part(self, stamp_ns: int, tokens: int) -> None:
        """The first event within the window that is open; no gap, as that would begin before the window.

        Bytes that arrived before the window was opened, and were read after it, are not within it.
        """
        if stamp_ns >= self.samples.opened_ns or not self.samples.is_open:
            self.part_ns = stamp_ns
            self.part_tokens = self.tokens + tokens
            self.held_ns = 0
            self.plain = True

    def note_clock_step(self) -> None:
        """The wall clock was stepped: nothing of this stream can be timed any more."""
        self.clock_stepped = True
        self._record_into(self.samples, muted=True)

    # How it ends.

    def finish(self) -> None:
        """Record a stream that ended as it should."""
        samples = self.samples
        tokens = self.tokens if self.usage_tokens is None else self.usage_tokens
        if tokens != self.tokens:
            samples.events_are_tokens = False
        if samples.rows is not None:
            samples.rows.append(self._row("completed"))
        if self.measured:
            samples.completed += 1
            samples.counted_by_events += self.usage_tokens is None
            samples.input_tokens += self.prompt_tokens
            samples.output_tokens += tokens
            samples.clock_steps += self.clock_stepped
        if self.clock_stepped:
            return
        later = tokens - self.first_tokens
        tpot_ns = (self.last_ns - self.first_ns) // later if later > 0 else 0
        if self.measured and not self.first_wave:
            self._record_whole(tokens, tpot_ns if later > 0 else None)
        elif samples.is_open:
            self._record_part()
        elif later > 0:
            samples.warmup_tpot_ns.append(tpot_ns)

    def _record_whole(self, tokens: int, tpot_ns: int | None) -> None:
        """Record the times of a stream that was sent and answered within the window."""
        samples = self.samples
        e2e_ns = self.last_ns - self.sent_ns
        samples.e2e_ns.append(e2e_ns)
        if self.prompt_tokens:
            samples.normalized_ns.append(e2e_ns // (self.prompt_tokens + tokens))
        if tpot_ns is not None:
            samples.tpot_ns.append(tpot_ns)
        if samples.limits is not None and samples.limits.met(self.first_ns - self.sent_ns, tpot_ns or 0, e2e_ns):
            samples.good += 1

    def fail(self, kind: Failure, message: str) -> None:
        """Record a stream that failed; a failure is data."""
        samples = self.samples
        self._stop_waiting()
        if self.measured:
            samples.failed += 1
        elif self.carried:
            samples.carried_failed += 1
        else:
            samples.warmup_failed += 1
        samples.note_failure(kind, message, counted=self.measured or self.carried)
        if samples.rows is not None:
            samples.rows.append(self._row(f"failed:{kind}"))

    def cancel(self) -> None:
        """Record a stream on which the client hung up."""
        self._stop_waiting()
        if self.measured:
            self.samples.cancelled += 1
        if self.samples.rows is not None:
            self.samples.rows.append(self._row("cancelled"))

    def cut_off(self) -> None:
        """Record a stream that the end of the load cut off."""
        self._stop_waiting()
        if self.measured:
            self.samples.unfinished += 1
        if self.samples.rows is not None:
            self.samples.rows.append(self._row("unfinished"))

    def _stop_waiting(self) -> None:
        if self.first_wave and not self.first_ns and not self.carried:
            self.samples.first_wave_waiting -= 1

    def _row(self, outcome: str) -> StreamRow:
        tokens = self.tokens if self.usage_tokens is None else self.usage_tokens
        later, completed = tokens - self.first_tokens, outcome == "completed"
        sent_ns, first_ns, last_ns = self.sent_ns, self.first_ns, self.last_ns
        timed = first_ns > 0 and not self.clock_stepped
        request, turn = self.request
        return StreamRow(
            stage=self.stage,
            request=request,
            turn=turn,
            outcome=outcome,
            warmup=self.warmup,
            first_wave=self.first_wave,
            intended_unix_s=round(self.intended_ns / 1e9, 6),
            sent_unix_s=_unix_s(sent_ns),
            first_unix_s=_unix_s(first_ns),
            last_unix_s=_unix_s(last_ns) if first_ns else None,
            input_tokens=self.prompt_tokens or None,
            output_tokens=tokens,
            ttft_ms=(first_ns - sent_ns) / 1e6 if timed else None,
            tpot_ms=round((last_ns - first_ns) / later / 1e6, 6) if timed and completed and later > 0 else None,
            e2e_ms=(last_ns - sent_ns) / 1e6 if timed and completed else None,
            model=self.model,
        )


def _unix_s(at_ns: int) -> float | None:
    return round(at_ns / 1e9, 6) if at_ns else None


def _forget(_: object) -> None:
    return
