"""What one worker is to send next: the requests of its stage as bytes, and the arrivals of an open loop.

Requests are written before their time and handed out in order. A conversation's next turn is known when its former is
sent, because what stands for the answer is made up; so it is written while the answer is awaited, and comes before any
new conversation once it is due.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from loadgen.worker.messages import BeginStage
from loadgen.worker.timing import PreciseTimer, timer_lead_ns
from loadgen.workload.prompts import Prompts
from loadgen.workload.work import RequestWriter, draw

_PREPARED_BYTES = 64 * 1024 * 1024


class Turn(NamedTuple):
    """One request: its number, and which of its conversation it is."""

    request: int
    number: int = 0


class RequestQueue:
    def __init__(self, command: BeginStage, prompts: Prompts, seed: int) -> None:
        self._command = command
        self._seed = seed
        stage, self._key, self._turns = command.stage, command.key, command.stage.work.turns
        self.writer = RequestWriter(stage.work, prompts, seed=seed, key=self._key, isl=stage.isl, osl=stage.osl)
        self._next = command.rank
        self._prepared: deque[bytes] = deque()
        self._unwritten: deque[Turn] = deque()
        self._written: dict[Turn, bytes] = {}
        self.due: deque[Turn] = deque()  # turns whose client has thought

    def write_ahead(self, wanted: int) -> bool:
        """Write one more; False when every turn to come is ready, and `wanted` new ones or as many as memory allows."""
        if self._unwritten:
            turn = self._unwritten.popleft()
            self._written[turn] = self._write(turn)
            return True
        if self._prepared:
            wanted = min(wanted, 1 + _PREPARED_BYTES // len(self._prepared[0]))
        if len(self._prepared) >= wanted:
            return False
        self._prepared.append(self._write(Turn(self._next + len(self._prepared) * self._command.ranks)))
        return True

    def take(self) -> tuple[Turn, bytes]:
        if self.due:
            turn = self.due.popleft()
            wire = self._written.pop(turn, None) or self._write(turn)
        else:
            turn = Turn(self._next)
            wire = self._prepared.popleft() if self._prepared else self._write(turn)
            self._next += self._command.ranks
        following = self.following(turn)
        if following is not None:
            self._unwritten.append(following)
        return turn, wire

    def following(self, turn: Turn) -> Turn | None:
        """The next turn of the same conversation, if there is one."""
        return Turn(turn.request, turn.number + 1) if turn.number + 1 < self._turns else None

    def forget(self, turn: Turn) -> None:
        """A conversation is over before its time: do not keep what would have come."""
        following = self.following(turn)
        if following is None:
            return
        self._written.pop(following, None)
        if following in self._unwritten:
            self._unwritten.remove(following)

    def model(self, turn: Turn) -> str | None:
        """The model that a request has drawn, where there are several."""
        template = self._command.template
        return template.model_of(draw(self._seed, self._key, turn.request, "model")) if template.models else None

    def cancel_after_s(self, turn: Turn) -> float | None:
        """When the client hangs up on a request, if it does."""
        cancel = self._command.template.cancel
        if cancel is None or draw(self._seed, self._key, turn.request, "cancel") >= cancel.share:
            return None
        return cancel.after_s

    def _write(self, turn: Turn) -> bytes:
        request = self.writer.request(turn.request, turn.number)
        return self._command.template.fill(request.prompt, self.model(turn), osl=request.osl, messages=request.messages)


class ArrivalQueue:
    """The arrivals of an open loop; those that are due wait here until they are sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, arrived: Callable[[], None]) -> None:
        """`arrived` is called when the next is due, after each `arm`."""
        self.waiting: deque[int] = deque()  # when the schedule wanted them (CLOCK_REALTIME)
        self._timer = PreciseTimer(loop, arrived)
        self.check = self._timer.check
        """Calls `arrived` if the next is due or nearly due: for those who hold the loop, before each piece of work."""
        self._next_offset_ns: Callable[[], int | None] = lambda: None
        self._start_ns = 0
        self._due_ns: int | None = None  # the next arrival (CLOCK_MONOTONIC)

    def begin(self, start_ns: int, rate: float, next_offset_ns: Callable[[], int | None]) -> None:
        """Take the arrivals of a schedule with this mean rate."""
        self._start_ns = start_ns
        self._next_offset_ns = next_offset_ns
        self._timer.lead_ns = timer_lead_ns(rate)
        self._go_on()
        self.arm()

    def arm(self) -> None:
        if self._due_ns is not None:
            self._timer.set(self._due_ns)

    def take_due(self) -> bool:
        """Let the next arrival wait if it is due, or nearly so; whether it does."""
        if self._due_ns is None or not self._timer.reached(self._due_ns):
            return False
        self.waiting.append(time.time_ns() - time.monotonic_ns() + self._due_ns)
        self._go_on()
        return True

    def end(self) -> list[int]:
        """No more arrivals; when the schedule wanted those that are due and were not sent (CLOCK_REALTIME)."""
        now_ns = time.monotonic_ns()
        while self._due_ns is not None and self._due_ns <= now_ns:
            self.take_due()
        unsent = list(self.waiting)
        self.waiting.clear()
        self._timer.cancel()
        self._due_ns = None
        return unsent

    def _go_on(self) -> None:
        offset_ns = self._next_offset_ns()
        self._due_ns = None if offset_ns is None else self._start_ns + offset_ns
