"""The requests of one stage on one worker, as bytes: written before their time, handed out in order.

A conversation's next turn is known when its former is sent, because what stands for the answer is made up; so it is
written while the answer is awaited, and comes before any new conversation once its time has come.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from loadgen.worker.messages import BeginStage
from loadgen.workload.prompts import Prompts
from loadgen.workload.work import RequestWriter, draw

_PREPARED_BYTES = 64 * 1024 * 1024


class Turn(NamedTuple):
    """One request: its number, and which of its conversation it is."""

    request: int
    number: int = 0


class RequestQueue:
    """What is to be sent next."""

    def __init__(self, command: BeginStage, prompts: Prompts, seed: int) -> None:
        self._command = command
        self._seed = seed
        self._work = command.work
        self._key = command.index if command.work.key is None else command.work.key
        self.writer = RequestWriter(
            command.work, prompts, seed=seed, stage=command.index, isl=command.isl, osl=command.osl
        )
        self._next = command.rank
        self._prepared: deque[bytes] = deque()
        self._unwritten: deque[Turn] = deque()
        self._written: dict[Turn, bytes] = {}
        self.due: deque[Turn] = deque()  # turns of which the time has come

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
        return Turn(turn.request, turn.number + 1) if turn.number + 1 < self._work.turns else None

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
