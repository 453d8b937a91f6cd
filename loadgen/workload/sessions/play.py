"""One play of a session: which requests may be sent once others are answered, until nothing of it is left.

Pure: no clock and no socket. The owner sends each request that it is given after its gap, and says how each ended. A
play that ends early gives out nothing more, and has drained once its open requests are over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from loadgen.workload.sessions.tree import SessionTree

PlayEnd = Literal["finished", "context", "failed", "stopped"]


class Due(msgspec.Struct, frozen=True, gc=False):
    """A request to send."""

    index: int
    gap_s: float = 0.0  # to wait before it is sent
    skipped_s: float = 0.0  # what was cut off the recorded gap
    priming: bool = False  # only brings its context into the cache: sent for one token, and not measured


class Play:
    """A live session."""

    def __init__(
        self,
        tree: SessionTree,
        *,
        max_gap_s: float | None = None,
        max_context: int | None = None,
        salt: int = 0,
        start: float | None = None,
    ) -> None:
        """`salt` makes its prompts differ from those of other plays; `start` is the share of its time to skip.

        Longer gaps are cut to `max_gap_s`; it ends before a request with more tokens than `max_context`, prompt and
        answer.
        """
        self.tree = tree
        self.salt = salt
        self.ended: PlayEnd | None = None
        self._max_gap_s = max_gap_s
        self._max_context = max_context
        sent = next((index for index in range(len(tree.requests)) if self._too_long(index)), len(tree.requests))
        self._start_s = None if start is None or not sent else start * tree.requests[sent - 1].at_s
        self._followers: list[list[int]] = [[] for _ in tree.requests]
        for index, request in enumerate(tree.requests):
            for before in request.after:
                self._followers[before].append(index)
        self._given = bytearray(len(tree.requests))  # whether it was given out, or never will be
        self._over = bytearray(len(tree.requests))  # whether nothing waits for it any more
        self._open: set[int] = set()
        self._contexts: dict[int, int] = {}  # tokens of prompt and answer of the last request of each chain
        self._left: dict[int, int] = {}  # requests of each chain that are not over
        for request in tree.requests:
            self._left[request.chain] = self._left.get(request.chain, 0) + 1

    @property
    def drained(self) -> bool:
        """Whether nothing of it is open and nothing follows."""
        return self.ended is not None and not self._open

    @property
    def context_tokens(self) -> int:
        """Tokens of the contexts that a later request of the play can repeat."""
        return sum(self._contexts.values())

    def begin(self) -> list[Due]:
        """The first requests: that of the root, or those that prime each agent at work at the start."""
        skipped = 0
        if self._start_s is not None:
            skipped = sum(request.at_s < self._start_s for request in self.tree.requests)
        last_before = {request.chain: index for index, request in enumerate(self.tree.requests[:skipped])}
        at_work = {request.chain for request in self.tree.requests[skipped:]}
        priming = {index for chain, index in last_before.items() if chain in at_work}
        for index in range(skipped):
            self._given[index] = True
            if index not in priming:
                self._finish(index)
        due = [self._give(Due(index, priming=True)) for index in sorted(priming)]
        return [*due, *self._ready(range(skipped, len(self.tree.requests)))]

    def answered(self, index: int) -> list[Due]:
        """The requests that waited for this one, now complete, and for nothing else."""
        self.close(index)
        due = self._ready(self._followers[index])
        if not self._open:
            self.ended = self.ended or "finished"
        return due

    def failed(self, index: int) -> list[Due]:
        """As `answered`; a failure ends the play if it is the root's, else the sub-agent with those that it started."""
        self.close(index)
        gone = {self.tree.requests[index].chain}
        if 0 in gone:
            self.end("failed")
            return []
        for chain, parent in enumerate(self.tree.parents):
            if parent in gone:
                gone.add(chain)
        released = set(self._followers[index])
        for later, request in enumerate(self.tree.requests):
            if request.chain in gone and not self._given[later]:
                self._given[later] = True
                self._finish(later)
                released.update(self._followers[later])
        due = self._ready(sorted(released))
        if not self._open:
            self.ended = self.ended or "finished"
        return due

    def end(self, why: PlayEnd) -> None:
        """Give out nothing more."""
        self.ended = self.ended or why

    def close(self, index: int) -> None:
        """Nothing waits for a request any more: it is answered or has failed, or is not sent because the play ended."""
        self._open.discard(index)
        self._finish(index)

    def _finish(self, index: int) -> None:
        self._over[index] = True
        chain = self.tree.requests[index].chain
        self._left[chain] -= 1
        if not self._left[chain]:
            self._contexts.pop(chain, None)

    def _ready(self, candidates: Iterable[int]) -> list[Due]:
        """Give out those that wait for nothing; none if the play has ended, or ends because one is too long."""
        due = []
        for index in candidates:
            request = self.tree.requests[index]
            if self.ended is not None or self._given[index] or not all(self._over[before] for before in request.after):
                continue
            if self._too_long(index):
                self.end("context")
                break
            due.append(self._give(self._after_gap(index)))
        return due

    def _too_long(self, index: int) -> bool:
        request = self.tree.requests[index]
        return self._max_context is not None and request.isl + request.osl > self._max_context

    def _after_gap(self, index: int) -> Due:
        request = self.tree.requests[index]
        gap_s = request.gap_s
        if self._start_s is not None and all(
            self.tree.requests[before].at_s < self._start_s for before in request.after
        ):
            # Part of this gap was over at the start.
            gap_s = min(gap_s, max(0.0, request.at_s - self._start_s))
        waited_s = gap_s if self._max_gap_s is None else min(gap_s, self._max_gap_s)
        return Due(index, waited_s, gap_s - waited_s)

    def _give(self, due: Due) -> Due:
        request = self.tree.requests[due.index]
        self._given[due.index] = True
        self._open.add(due.index)
        self._contexts[request.chain] = request.isl + request.osl
        return due
