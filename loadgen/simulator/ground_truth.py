"""The record of what was really served: the reference for a client's figures.

Stamps are CLOCK_REALTIME: a request's is the kernel's receive stamp of the read that completed it, an event's is taken
right before its `send` (or, if its socket is full, when it was ready to go). Latencies are those of completed streams
only; other streams are counted.

A window contains only what happened within it: gaps with both ends inside, first tokens of requests that arrived
inside, the part of each stream that lies inside, and the duration of streams that lie inside completely. The load of an
event is the number of streams open when its step ended: queued, running, or getting their last token in this step.

Memory is bounded: percentiles are exact up to `EXACT` samples; beyond that every second sample is kept, then every
fourth, and so on, spread evenly over time, while count, mean and max stay exact. The oldest streams and steps are
dropped, and a window that includes them says so. A report sorts what is kept (a tenth of a second when full), so
request it after the load.

Sessions are told apart by the headers of their requests: `X-Session-ID` names the session of a request and
`X-Parent-Session-ID` the one that started it. Counts are those of the engine: a prompt counts with its first token, so
the sums over all sessions equal the engine's counters.
"""

import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import sub
from typing import Any, Literal

from loadgen.simulator import engine

KEPT_EVENTS = 1 << 22  # of ended streams, 8 bytes each
KEPT_STEPS = 1 << 17
_STREAM_COSTS = 32  # a stream's overhead, in events
TOKEN_HEADER = "x-session-token"  # noqa: S105  # its name
_KEPT_SESSIONS = 100_000

Outcome = Literal["completed", "aborted", "failed"]


@dataclass(slots=True, eq=False)
class ServedStream:
    """One stream: when its request came, and when each event with output was written."""

    received_ns: int
    stamps: "array[int]" = field(default_factory=lambda: array("q"))
    tokens: list[int] | None = None  # the tokens of each event; None: one each
    completed: bool = False
    ended_ns: int = 0  # 0 while it is open


class ServedHistory:
    """The open streams and those that ended recently."""

    def __init__(self, kept_events: int = KEPT_EVENTS, kept_steps: int = KEPT_STEPS) -> None:
        self._kept_events, self._kept_steps = kept_events, kept_steps
        self._open: dict[ServedStream, None] = {}
        self._over: deque[ServedStream] = deque()
        self._size = 0
        self._steps, self._loads = array("q"), array("q")
        self._forgotten_until_ns = 0

    def forget(self) -> None:
        """Forget all ended streams and steps; open streams keep their events."""
        self._over.clear()
        self._size = self._forgotten_until_ns = 0

    def arrived(self, received_ns: int) -> ServedStream:
        served = ServedStream(received_ns)
        self._open[served] = None
        return served

    def step(self, at_ns: int, streams: int) -> None:
        """Record a step whose tokens are about to be written, with `streams` open."""
        self._steps.append(at_ns)
        self._loads.append(streams)
        if len(self._steps) > self._kept_steps:
            half = self._kept_steps // 2
            self._forgotten_until_ns = max(self._forgotten_until_ns, self._steps[half])
            self._steps, self._loads = self._steps[half:], self._loads[half:]

    def ended(self, served: ServedStream, *, completed: bool) -> None:
        """Record the end of a stream, to which nothing more is written."""
        served.completed, served.ended_ns = completed, time.time_ns()
        del self._open[served]
        self._over.append(served)
        self._size += len(served.stamps) + _STREAM_COSTS
        while self._size > self._kept_events:
            oldest = self._over.popleft()
            self._size -= len(oldest.stamps) + _STREAM_COSTS
            self._forgotten_until_ns = max(self._forgotten_until_ns, oldest.ended_ns)

    def window(self, since_ns: int = 0, until_ns: int | None = None) -> dict[str, Any]:
        """What happened between two moments in CLOCK_REALTIME (None: now)."""
        until_ns = time.time_ns() if until_ns is None else until_ns
        streams = [
            each
            for each in (*self._over, *self._open)
            if each.received_ns <= until_ns and (not each.ended_ns or each.ended_ns >= since_ns)
        ]
        came = [each for each in streams if each.received_ns >= since_ns]
        over = [each for each in streams if each.ended_ns and each.ended_ns <= until_ns]
        from loadgen.simulator.served_events import ServedEvents  # see there: it loads numpy

        events = ServedEvents(
            received_ns=[each.received_ns for each in streams],
            completed=[each.completed for each in streams],
            stamps=[each.stamps for each in streams],
            tokens=[each.tokens for each in streams],
            since_ns=since_ns,
            until_ns=until_ns,
        )
        return {
            "since_ns": since_ns,
            "until_ns": until_ns,
            "whole": since_ns >= self._forgotten_until_ns,
            "requests": {
                "received": len(came),
                "completed": sum(each.completed for each in over),
                "carried_in": len(streams) - len(came),
                "carried_over": len(streams) - len(over),
            },
            "tokens": {"output": int(events.tokens[events.inside].sum())},
            "latency_ms": events.latency_ms(),
            "span_s": events.span_s(),
            "by_streams": events.by_load(self._steps, self._loads),
        }


EXACT = 1 << 16


class Samples:
    """Nanoseconds of one quantity."""

    def __init__(self, exact: int = EXACT) -> None:
        self.count = self.total = self.max = 0
        self._kept = array("q")
        self._exact = exact
        self._stride = 1

    def add(self, values: Sequence[int]) -> None:
        if not values:
            return
        first = -self.count % self._stride  # index of the next sample to keep
        self.count += len(values)
        self.total += sum(values)
        self.max = max(self.max, *values)
        self._kept.extend(values[first :: self._stride])
        while len(self._kept) > self._exact:
            self._kept = self._kept[::2]
            self._stride *= 2

    def summary(self) -> dict[str, float | None]:
        """Count, mean, max and nearest-rank percentiles, in milliseconds; None where there is nothing."""
        from loadgen.simulator.served_events import summary_ms

        kept = summary_ms(self._kept)
        if not self.count:
            return kept
        return kept | {"count": self.count, "mean": self.total / self.count / 1e6, "max": self.max / 1e6}


class GroundTruth:
    """The record of everything served since the start or the last reset."""

    def __init__(self) -> None:
        # Not affected by a reset.
        self.open = 0  # requests received but not answered completely
        self.numbered = 0  # completions, chats and responses so far; faults count them from `faults_since`
        self.faults_since = 0  # `numbered` when the faults were set
        self.history = ServedHistory()
        self.reset()

    def reset(self) -> None:
        """Start a new record; of requests in flight, only their end is counted."""
        self.requests = dict.fromkeys(("received", "completed", "aborted", "failed", "rejected"), 0)
        self.stamps = {"kernel": 0, "user": 0}  # requests by the clock that stamped them
        self.tokens = {"input": 0, "output": 0}
        self.peak_concurrency = self.open
        self.faults: Counter[str] = Counter()  # how many requests each kind hit
        self.first_received_ns = self.last_write_ns = 0
        self.latency = {name: Samples() for name in ("receive", "ttft", "tpot", "itl", "chunk_gap", "e2e")}
        self._cpu_s = time.process_time()
        self.history.forget()

    def arrived(self, received_ns: int, *, began_ns: int, kernel_stamp: bool) -> ServedStream:
        """Record a valid request, whose first bytes arrived at `began_ns`; returns the record of its answer."""
        self.requests["received"] += 1
        self.latency["receive"].add((received_ns - began_ns,))
        self.open += 1
        self.peak_concurrency = max(self.peak_concurrency, self.open)
        self.first_received_ns = self.first_received_ns or received_ns
        self.stamps["kernel" if kernel_stamp else "user"] += 1
        return self.history.arrived(received_ns)

    def ended(self, served: ServedStream, outcome: Outcome) -> None:
        """Record the end of an answer, whatever its outcome."""
        self.open -= 1
        self.requests[outcome] += 1
        self.history.ended(served, completed=outcome == "completed")

    def written(self, received_ns: int, at_ns: int) -> None:
        self.latency["e2e"].add((at_ns - received_ns,))
        self.last_write_ns = max(self.last_write_ns, at_ns)

    def streamed(self, served: ServedStream) -> None:
        stamps, tokens = served.stamps, served.tokens
        if not stamps:
            return
        first, last = stamps[0], stamps[-1]
        self.latency["ttft"].add((first - served.received_ns,))
        self.written(served.received_ns, last)
        gaps = list(map(sub, stamps[1:], stamps))
        self.latency["chunk_gap"].add(gaps)
        after_first = len(gaps)
        if tokens is not None:
            after_first = sum(tokens[1:])
            gaps = [gap // count for gap, count in zip(gaps, tokens[1:], strict=True)]
        self.latency["itl"].add(gaps)
        if after_first:
            self.latency["tpot"].add(((last - first) // after_first,))

    def report(self, *, late_steps: int, steps: int) -> dict[str, Any]:
        span_ns = self.last_write_ns - self.first_received_ns if self.last_write_ns else 0
        return {
            "requests": self.requests | {"open": self.open},
            "tokens": self.tokens,
            "latency_ms": {name: samples.summary() for name, samples in self.latency.items()},
            "peak_concurrency": self.peak_concurrency,
            "span_s": span_ns / 1e9,
            "steps": steps,
            "late_steps": late_steps,
            "cpu_s": time.process_time() - self._cpu_s,
            "timestamps": self.stamps,
            "faults": self.faults,
            "by_streams": self.history.window()["by_streams"],
        }


@dataclass(slots=True)
class ServedSession:
    """One session; tokens without a first answer token are not counted."""

    parent: str = ""
    requests: int = 0
    open: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tokens_returned: int = 0  # requests that brought the router's token of this session
    tokens_missing: int = 0  # requests after the first answer's head that did not

    def arrived(self, headers: Mapping[str, str], token: str | None) -> None:
        """Record a request; `token` is the router's for this session, if it gives any."""
        if token is not None and self.requests:
            returned = headers.get(TOKEN_HEADER) == token
            self.tokens_returned += returned
            self.tokens_missing += not returned
        self.requests += 1
        self.open += 1

    def ended(self, sequence: engine.Sequence) -> None:
        self.open -= 1
        if sequence.first_ns:
            self.prompt_tokens += sequence.prompt_len
            self.cached_tokens += sequence.cached
            self.output_tokens += sequence.generated


class ServedSessions:
    """The sessions of recent requests; those that were idle for longest are dropped."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, ServedSession] = OrderedDict()

    def of(self, headers: Mapping[str, str]) -> ServedSession | None:
        """The session of a request with these headers; None if they name none."""
        name = headers.get("x-session-id")
        if name is None:
            return None
        session = self._sessions.setdefault(name, ServedSession(headers.get("x-parent-session-id", "")))
        self._sessions.move_to_end(name)
        if len(self._sessions) > _KEPT_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def report(self) -> dict[str, Any]:
        """All sessions by name, with the sums over them."""
        totals = {
            name: sum(getattr(session, name) for session in self._sessions.values())
            for name in ("requests", "open", "prompt_tokens", "cached_tokens", "output_tokens")
        }
        return {"total": totals, "sessions": {name: asdict(session) for name, session in self._sessions.items()}}

    def reset(self) -> None:
        self._sessions.clear()
