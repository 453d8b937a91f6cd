"""The live sessions of a worker: when their requests are due, and what became of them.

A session keeps its slot through its pauses, until its last request is answered; then the next one begins with its first
turn. Sessions belong to no stage: they go on when the load changes, and while it is paused. If fewer are wanted, those
that began last send nothing more. Invariants: of a live session only sizes, ids and timers are kept, and with the
server's own answers as history their text; the body of a request is written when it is sent.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

from loadgen.schema.deltas import MAX_SESSION_ROWS, SessionCounts, SessionRow, SessionsNow
from loadgen.stream.events import Choice
from loadgen.stream.request import SessionIds
from loadgen.stream.samples import StageSamples
from loadgen.stream.stream import Ceiling, Stream
from loadgen.workload.prompts import Prompts, RequestContent
from loadgen.workload.sessions.ceiling import Ceilings, hits_within
from loadgen.workload.sessions.data import SessionReader, Sessions, SessionWriter
from loadgen.workload.sessions.play import Due, Play
from loadgen.workload.work import draw, record_for

_SERIAL_BITS = 24  # sessions are numbered over all workers: the worker's number, then the session's on it
_EMPTY_S = 0.1  # until the next session begins after one that had nothing to send


class DueRequest(NamedTuple):
    session: int
    request: int  # its place in the session
    at_ns: int  # CLOCK_REALTIME
    primes: bool


@dataclass(slots=True, eq=False)
class _Live:
    """A session from its first request until its last answer."""

    number: int
    trace: int
    play: Play
    began_ns: int
    is_whole: bool  # it did not begin inside
    timed: bool = False  # it is whole, and its first request was measured in the running stage
    open: int = 0
    settled: bool = False  # a request of it was answered under the present load
    waiting: dict[int, asyncio.TimerHandle | None] = field(default_factory=dict)
    """Requests that were not sent yet, with the timer of their gap; None: due."""
    primed: set[int] = field(default_factory=set)
    tokens: dict[int, bytes] = field(default_factory=dict)  # by chain, as the server returned them
    answers: dict[int, str] = field(default_factory=dict)
    sent: int = 0  # requests
    latest: int = 0  # the request sent last
    input_tokens: int = 0
    cached_tokens: int | None = None  # None: the server does not say


class LiveSessions:
    """The sessions of this worker; `wake` is called when a request is due."""

    def __init__(
        self,
        wanted: Sessions,
        prompts: Prompts,
        wake: Callable[[], None],
        *,
        seed: int,
        worker: int,
        kv_tokens: int | None,
        serials: Iterator[int],
        ceilings: Ceilings,
    ) -> None:
        """`kv_tokens` fit into the KV caches of all servers, which the workers share; None: unknown.

        `serials` and `ceilings` go on over the whole run, because the servers' caches do.
        """
        self.wanted = wanted
        self._worker = worker
        self.due: deque[DueRequest] = deque()
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._seed = seed
        self._reader = SessionReader(wanted.data)
        self._writer = SessionWriter(wanted, prompts)
        self._ceilings = ceilings
        self._kv_tokens = kv_tokens
        self._samples = StageSamples(is_open=False)
        self._counts = SessionCounts()
        self._live: dict[int, _Live] = {}  # in the order in which they began
        self._stopped: dict[int, _Live] = {}  # those that only wait for their open requests
        self._rank, self._ranks = 0, 1
        self._serials = serials
        self._most = 0  # to be live
        self._area_until_ns = time.monotonic_ns()

    # How many there are.

    def begin_stage(self, samples: StageSamples, most: int, *, rank: int, ranks: int) -> None:
        """Continue under another load, which `samples` measure, as one of `ranks` workers."""
        self._samples, self._rank, self._ranks = samples, rank, ranks
        for session in self._live.values():
            session.settled = False
        self.resize(most)

    def resize(self, most: int) -> None:
        """Begin sessions, or stop those that began last, so that `most` are live."""
        self._most = most
        for _ in range(most - len(self._live)):
            self._begin(inside=self.wanted.start)
        while len(self._live) > most:
            number, session = self._live.popitem()
            self._censor(session)
            session.play.end("stopped")
            self._counts.cut += 1
            self._stopped[number] = session
            self._go_on(session, [])

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def unsettled(self) -> int:
        """Live sessions of which no request was answered yet under the present load."""
        return sum(not session.settled for session in self._live.values())

    def _begin(self, inside: tuple[float, float] | None = None) -> None:
        """Begin the next session: with its first turn, or `inside` the recording, between these shares of it."""
        serial = next(self._serials)
        number = (self._worker << _SERIAL_BITS) + serial
        over_all = serial * self._ranks + self._rank  # so that the workers' number does not decide what is played
        trace = record_for(self._seed, 0, over_all, self.wanted.data.sessions)
        start = None
        if inside is not None:
            start = inside[0] + (inside[1] - inside[0]) * draw(self._seed, 0, over_all, "start")
        salt = number if self.wanted.salt == "play" else trace
        max_gap_s, max_context = self.wanted.max_gap_s, self.wanted.max_context
        tree = self._reader.tree(trace)
        play = Play(tree, max_gap_s=max_gap_s, max_context=max_context, salt=salt, start=start)
        session = self._live[number] = _Live(number, trace, play, time.monotonic_ns(), start is None)
        self._counts.begun += 1
        self._counts.begun_inside += start is not None
        self._go_on(session, play.begin())

    def _go_on(self, session: _Live, following: Iterable[Due]) -> None:
        """Wait for the requests that follow, or end the session if none does."""
        for due in following:
            self._counts.skipped_ms += round(due.skipped_s * 1000)
            self._counts.gaps_cut += due.skipped_s > 0
            at_ns = time.time_ns() + int(due.gap_s * 1e9)
            request = DueRequest(session.number, due.index, at_ns, due.priming)
            if due.gap_s > 0:
                session.waiting[due.index] = self._loop.call_later(due.gap_s, self._is_due, session, request)
            else:
                self._is_due(session, request)
        if session.play.ended is not None:
            self._withdraw(session)
        if session.play.drained:
            self._finish(session)

    def _is_due(self, session: _Live, request: DueRequest) -> None:
        session.waiting[request.request] = None
        self.due.append(request)
        self._wake()

    def _withdraw(self, session: _Live) -> None:
        """Send nothing more of a session that has ended."""
        waiting, session.waiting = session.waiting, {}
        for index, timer in waiting.items():
            session.play.close(index)
            if timer is not None:
                timer.cancel()
        if None in waiting.values():
            self.due = deque(one for one in self.due if one.session != session.number)

    def _finish(self, session: _Live) -> None:
        if self.wanted.salt == "play":
            self._ceilings.forget(session.play)
        if self._live.pop(session.number, None) is None:
            del self._stopped[session.number]
            return
        ended = session.play.ended
        self._counts.finished += ended == "finished"
        self._counts.over_context += ended == "context"
        self._counts.failed += ended == "failed"
        if ended == "finished" and session.timed:
            self._samples.session_time_ns.append(time.monotonic_ns() - session.began_ns)
        # Not at once: a session may end before its first request.
        self._loop.call_later(0.0 if session.sent else _EMPTY_S, self._begin_next)

    def _begin_next(self) -> None:
        if len(self._live) < self._most:
            self._begin()

    # Their requests.

    def take(self) -> tuple[DueRequest, Ceiling | None]:
        """The request that is to be sent next, and what of its prompt a cache could have.

        None with the server's answers as history: what a prompt has in common with earlier ones depends on them.
        """
        taken = self.due.popleft()
        session = self._live[taken.session]
        del session.waiting[taken.request]
        session.open += 1
        session.timed |= not session.sent and session.is_whole and self._samples.is_open
        session.sent += 1
        session.latest = taken.request
        if taken.primes:
            session.primed.add(taken.request)
            self._counts.primed += 1
        if self.keeps_answers:
            return taken, None
        tree = session.play.tree
        hits = self._ceilings.sent(session.play, taken.request, self.wanted.common_prefix)
        of_pool = 0 if self._kv_tokens is None else hits_within(hits, self._kv_tokens // self._ranks)
        return taken, Ceiling(tree.requests[taken.request].isl, hits_within(hits, math.inf), of_pool)

    def request(self, number: int, index: int) -> RequestContent:
        session = self._session(number)
        content = self._writer.request(session.play, index, session.answers if self.keeps_answers else None)
        return content._replace(osl=1) if index in session.primed else content

    def ids(self, number: int, index: int) -> SessionIds:
        """By which names the server knows a request's chain."""
        session = self._session(number)
        tree = session.play.tree
        chain = tree.requests[index].chain
        root, parent = b"%x-%d" % (self._seed, number), tree.parents[chain]
        return SessionIds(
            chain=b"%b-%d" % (root, chain),
            root=root,
            parent=b"" if parent is None else b"%b-%d" % (root, parent),
            token=session.tokens.get(chain, b""),
        )

    def is_first_turn(self, number: int, index: int) -> bool:
        """Whether a request is the first of its chain."""
        requests = self._session(number).play.tree.requests
        return all(requests[earlier].chain != requests[index].chain for earlier in requests[index].after)

    @property
    def keeps_answers(self) -> bool:
        return self.wanted.history == "server"

    def ended(self, stream: Stream) -> None:
        """Continue a session of which a request has ended, or begin the next."""
        number, index = stream.request
        session = self._live.get(number) or self._stopped.get(number)
        if session is None:
            return
        session.open -= 1
        if stream.completed:
            self._note_answer(session, stream, index)
            self._go_on(session, session.play.answered(index))
        else:
            self._go_on(session, session.play.failed(index))

    def _note_answer(self, session: _Live, stream: Stream, index: int) -> None:
        primes = index in session.primed
        session.settled = session.settled or not primes
        if stream.session_token:
            session.tokens[session.play.tree.requests[index].chain] = stream.session_token
        if self.keeps_answers:
            session.answers[index] = "".join(filter(None, map(_answer_text, stream.pieces or ())))
        if stream.cached_tokens is not None and not primes:
            session.cached_tokens = (session.cached_tokens or 0) + stream.cached_tokens
            session.input_tokens += stream.input_tokens or 0

    def _session(self, number: int) -> _Live:
        return self._live.get(number) or self._stopped[number]

    # What is reported.

    def end_stage(self) -> None:
        """Note for how long the sessions have lived that outlive a stage, before its samples are closed."""
        for session in self._live.values():
            self._censor(session)

    def _censor(self, session: _Live) -> None:
        if session.timed:
            self._samples.session_time_censored_ns.append(time.monotonic_ns() - session.began_ns)
        session.timed = False

    def drain(self, window_start_ns: int | None, until_ns: int) -> SessionCounts:
        """What happened since the last call; integrated over the window up to `until_ns`, None if it is not open."""
        since_ns, self._area_until_ns = self._area_until_ns, until_ns
        counts, self._counts = self._counts, SessionCounts()
        if window_start_ns is not None:
            span_ms = max(0, until_ns - max(since_ns, window_start_ns)) // 1_000_000
            counts.live_ms = span_ms * len(self._live)
            counts.context_ms = span_ms * sum(session.play.context_tokens for session in self._live.values())
        return counts

    def now(self) -> SessionsNow:
        """How the sessions stand, the longest ones one by one."""
        due = {one.session for one in self.due}
        contexts = {number: session.play.context_tokens for number, session in self._live.items()}
        longest = nlargest(MAX_SESSION_ROWS, contexts, key=contexts.__getitem__)
        return SessionsNow(
            live=len(self._live),
            stopped=len(self._stopped),
            pausing=sum(not session.open and number not in due for number, session in self._live.items()),
            due=len(self.due),
            context_tokens=sum(contexts.values()),
            rows=[_row(self._live[number], contexts[number], waits=number in due) for number in longest],
        )


def _row(session: _Live, context_tokens: int, *, waits: bool) -> SessionRow:
    share = None
    if session.cached_tokens is not None and session.input_tokens:
        share = round(session.cached_tokens / session.input_tokens, 4)
    return SessionRow(
        session=session.number,
        trace=session.trace,
        request=session.latest + 1,
        requests=len(session.play.tree.requests),
        open=session.open,
        waits=waits,
        context_tokens=context_tokens,
        cached_share=share,
    )


def _answer_text(choice: Choice) -> str | None:
    """What a chunk adds to the answer, without reasoning."""
    return choice.text if choice.delta is None else choice.delta.content
