"""One request and its streamed answer: what has been seen of it so far, and how it ended.

Times are nanoseconds of CLOCK_REALTIME, the clock of the kernel's receive timestamps; `quiet_since` alone is monotonic.
"""

from __future__ import annotations

from typing import Literal

from loadgen.stream.tally import Tally

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
        "deadline_s",
        "done",
        "events",
        "events_at_sweep",
        "first_ns",
        "first_tokens",
        "held_ns",
        "intended_ns",
        "last_ns",
        "prompt_tokens",
        "quiet_since_s",
        "record_gap",
        "record_odd_gap",
        "retried",
        "sent_ns",
        "stage",
        "step_spoiled",
        "tally",
        "tokens",
        "usage_tokens",
        "wire",
    )

    def __init__(self, *, stage: int, tally: Tally, wire: bytes, intended_ns: int) -> None:
        self.stage = stage
        self.tally = tally
        self.wire = wire
        """The request's bytes, kept until the response begins so that it can be sent once more."""
        self.intended_ns = intended_ns
        self.cancel_after_s: float | None = None
        """The client hangs up this long after it has sent the request."""
        self.retried = False
        self.step_spoiled = False
        """The wall clock was stepped while this stream was open: its times mean nothing."""
        # Looked up once: the lists live as long as the tally, see `Tally.drain`.
        self.record_gap = tally.gaps_ns.append
        self.record_odd_gap = tally.odd_gaps.append
        self.deadline_s = 0.0
        self.quiet_since_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Forget whatever was seen, before the request is sent (again)."""
        self.sent_ns = 0
        self.first_ns = 0
        self.last_ns = 0
        self.held_ns = 0
        """When the last token came, while text without a token has come after it; else 0."""
        self.first_tokens = 0
        self.tokens = 0
        """Output tokens seen so far: cumulative usage where the server sends it with each chunk, else output events."""
        self.usage_tokens: int | None = None
        self.prompt_tokens = 0
        self.events = 0
        self.events_at_sweep = 0
        self.done = False
        """A finish reason or `[DONE]` was seen."""

    def start_output(self, stamp_ns: int, tokens: int) -> None:
        """The first output has arrived, with this many tokens."""
        self.first_ns = stamp_ns
        self.first_tokens = tokens
        if not self.step_spoiled:
            self.tally.ttft_ns.append(stamp_ns - self.sent_ns)
            self.tally.ttft_from_intended_ns.append(stamp_ns - self.intended_ns)

    def spoil_times(self) -> None:
        """The wall clock was stepped: nothing of this stream can be timed any more."""
        self.step_spoiled = True
        self.record_gap = self.record_odd_gap = _forget

    def finish(self) -> None:
        """Record a stream that ended as it should."""
        tally = self.tally
        tokens = self.usage_tokens
        if tokens is None:
            tokens = self.tokens
            tally.counted_by_events += 1
        tally.completed += 1
        tally.input_tokens += self.prompt_tokens
        tally.output_tokens += tokens
        if self.step_spoiled:
            tally.clock_steps += 1
            return
        e2e_ns = self.last_ns - self.sent_ns
        tally.e2e_ns.append(e2e_ns)
        tally.normalized_ns.append(e2e_ns // max(1, self.prompt_tokens + tokens))
        later = tokens - self.first_tokens
        tpot_ns = (self.last_ns - self.first_ns) // later if later > 0 else 0
        if later > 0:
            tally.tpot_ns.append(tpot_ns)
        if tally.limits is not None and tally.limits.met(self.first_ns - self.sent_ns, tpot_ns, e2e_ns):
            tally.good += 1

    def fail(self, kind: Failure, message: str) -> None:
        """Record a stream that failed; a failure is data."""
        self.tally.failed += 1
        self.tally.note_failure(kind, message)

    def cancel(self) -> None:
        """Record a stream on which the client hung up."""
        self.tally.cancelled += 1


def _forget(_: object) -> None:
    return
