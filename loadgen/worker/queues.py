"""What one worker sends next: the requests of its stage as bytes, and the arrivals of an open loop.

Requests are written ahead of time and handed out in order. The next turn of a conversation is known as soon as the
previous one is sent, because the answers in its history are synthetic; so it is written while the answer is awaited,
and once due it goes before any new conversation.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from loadgen.stream.request import SessionIds
from loadgen.worker.messages import BeginStage
from loadgen.worker.sessions import LiveSessions
from loadgen.worker.timing import PreciseTimer, timer_lead_ns
from loadgen.workload.prompts import Prompts
from loadgen.workload.work import RequestWriter, draw

_PREPARED_BYTES = 64 * 1024 * 1024  # a worker's requests that are written ahead


class Turn(NamedTuple):
    """One request: its number, and its turn within the conversation."""

    request: int
    number: int = 0


class Written(NamedTuple):
    """A request that was written ahead of time."""

    wire: bytes
    ids: int | None  # tokens of its prompt, if it consists of token ids
    osl: int


class RequestQueue:
    def __init__(self, command: BeginStage, prompts: Prompts, seed: int, sessions: LiveSessions | None = None) -> None:
        """`sessions` say what is sent instead, if the load is sessions."""
        self._command = command
        self._sessions = sessions
        self._seed = seed
        stage, self._key, self._turns = command.stage, command.key, command.stage.work.turns
        self.writer = RequestWriter(stage.work, prompts, seed=seed, key=self._key, isl=stage.isl, osl=stage.osl)
        self._next = command.rank
        self._prepared: deque[Written] = deque()
        self._unwritten: deque[Turn] = deque()
        self._written: dict[Turn, Written] = {}
        self.due: deque[Turn] = deque()  # turns whose think time is over
        self.tokens: dict[int, bytes] = {}  # by conversation, what the server returned in the `echo` header

    def write_ahead(self, wanted: int) -> bool:
        """Write one more request; False if all follow-up turns and `wanted` new ones (or all that fit) are written."""
        if self._unwritten:
            turn = self._unwritten.popleft()
            self._written[turn] = self.write(turn)
            return True
        if self._prepared:
            wanted = min(wanted, 1 + _PREPARED_BYTES // len(self._prepared[0].wire))
        if len(self._prepared) >= wanted:
            return False
        self._prepared.append(self.write(Turn(self._next + len(self._prepared) * self._command.ranks)))
        return True

    def take(self) -> tuple[Turn, Written]:
        if self.due:
            turn = self.due.popleft()
            written = self._written.pop(turn, None) or self.write(turn)
        else:
            turn = Turn(self._next)
            written = self._prepared.popleft() if self._prepared else self.write(turn)
            self._next += self._command.ranks
        following = self.following(turn)
        headers = self._command.template.headers
        # What is to be echoed is known only once the previous turn is answered.
        if following is not None and (headers is None or headers.echo is None):
            self._unwritten.append(following)
        return turn, written

    def following(self, turn: Turn) -> Turn | None:
        """The next turn of the same conversation, if there is one."""
        return Turn(turn.request, turn.number + 1) if turn.number + 1 < self._turns else None

    def forget(self, turn: Turn) -> None:
        """Drop the next turn of a conversation that has ended."""
        self.tokens.pop(turn.request, None)
        following = self.following(turn)
        if following is None:
            return
        self._written.pop(following, None)
        if following in self._unwritten:
            self._unwritten.remove(following)

    def model(self, turn: Turn) -> str | None:
        """The model drawn for a request; None unless there are several."""
        template = self._command.template
        return template.model_of(draw(self._seed, self._key, turn.request, "model")) if template.models else None

    def cancel_after_s(self, turn: Turn) -> float | None:
        """How long after sending the client hangs up on a request; None if it does not."""
        cancel = self._command.template.cancel
        if cancel is None or draw(self._seed, self._key, turn.request, "cancel") >= cancel.share:
            return None
        return cancel.after_s

    def write(self, turn: Turn) -> Written:
        """The request, the same however often it is written."""
        template, live, model, session = self._command.template, self._sessions, self.model(turn), None
        request = (self.writer if live is None else live).request(turn.request, turn.number)
        if live is not None:
            session = live.ids(turn.request, turn.number)
        elif template.headers is not None:
            name = b"%x-%d-%d" % (self._seed, self._key, turn.request)
            session = SessionIds(name, name, token=self.tokens.get(turn.request, b""))
        wire = template.fill(request.prompt, model, osl=request.osl, messages=request.messages, session=session)
        return Written(wire, request.ids, template.osl if request.osl is None else request.osl)


class ArrivalQueue:
    """The arrivals of an open loop; those that are due wait here until they are sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrived: Callable[[], None]) -> None:
        """`arrived` is called when the next arrival is due; call `arm` to be called again."""
        self.waiting: deque[int] = deque()  # intended times of due arrivals (CLOCK_MONOTONIC)
        self._timer = PreciseTimer(loop, arrived)
        self.check = self._timer.check
        """Calls `arrived` if the next is due or nearly due; call it before any other piece of work on the loop."""
        self._next_offset_ns: Callable[[], int | None] = lambda: None
        self._start_ns = 0
        self._due_ns: int | None = None  # the next arrival (CLOCK_MONOTONIC)

    def begin(self, start_ns: int, rate: float, next_offset_ns: Callable[[], int | None]) -> None:
        """Take arrivals from a schedule with this mean rate."""
        self._start_ns = start_ns
        self._next_offset_ns = next_offset_ns
        self._timer.lead_ns = timer_lead_ns(rate)
        self._go_on()
        self.arm()

    def arm(self) -> None:
        if self._due_ns is not None:
            self._timer.set(self._due_ns)

    def take_due(self) -> bool:
        """Move the next arrival to `waiting` if it is due or nearly so; returns whether it was."""
        if self._due_ns is None or not self._timer.reached(self._due_ns):
            return False
        self.waiting.append(self._due_ns)
        self._go_on()
        return True

    def take_waiting(self) -> int:
        """Take the arrival that has waited longest; returns its intended time by the present CLOCK_REALTIME."""
        return time.time_ns() - time.monotonic_ns() + self.waiting.popleft()

    def end(self) -> list[int]:
        """Stop; returns the intended times (CLOCK_REALTIME) of arrivals that were due and not sent."""
        now_ns = time.monotonic_ns()
        while self._due_ns is not None and self._due_ns <= now_ns:
            self.take_due()
        unsent = [self.take_waiting() for _ in range(len(self.waiting))]
        self._timer.cancel()
        self._due_ns = None
        return unsent

    def _go_on(self) -> None:
        offset_ns = self._next_offset_ns()
        self._due_ns = None if offset_ns is None else self._start_ns + offset_ns
