"""One request and its streamed answer: what has been seen of it so far, and how it ended.

Times are nanoseconds of CLOCK_REALTIME, the clock of the kernel's receive timestamps; `quiet_since` alone is monotonic.
"""

from __future__ import annotations

from typing import Literal

from loadgen.metrics.stream_rows import StreamRow
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
        "due_ns",
        "events",
        "events_at_sweep",
        "first_ns",
        "first_tokens",
        "held_ns",
        "intended_ns",
        "last_ns",
        "model",
        "prompt_tokens",
        "quiet_since_s",
        "record_gap",
        "record_odd_gap",
        "request",
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
        self.due_ns = intended_ns
        """Since when the client could have sent it: later than intended where `max_concurrency` held it back."""
        self.request = (0, 0)
        """Its number in the stage, and which turn of its conversation it is."""
        self.model: str | None = None
        """The one that it was drawn for, where there are several."""
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
        if tally.rows is not None:
            tally.rows.append(self._row("completed"))
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
        if self.tally.rows is not None:
            self.tally.rows.append(self._row(f"failed:{kind}"))

    def cancel(self) -> None:
        """Record a stream on which the client hung up."""
        self.tally.cancelled += 1
        if self.tally.rows is not None:
            self.tally.rows.append(self._row("cancelled"))

    def cut_off(self) -> None:
        """Record a stream that the end of the load cut off."""
        self.tally.unfinished += 1
        if self.tally.rows is not None:
            self.tally.rows.append(self._row("unfinished"))

    def _row(self, outcome: str) -> StreamRow:
        tokens = self.tokens if self.usage_tokens is None else self.usage_tokens
        later, completed = tokens - self.first_tokens, outcome == "completed"
        sent_ns, first_ns, last_ns = self.sent_ns, self.first_ns, self.last_ns
        timed = first_ns > 0 and not self.step_spoiled
        request, turn = self.request
        return StreamRow(
            stage=self.stage,
            request=request,
            turn=turn,
            outcome=outcome,
            warmup=self.tally.warmup,
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
