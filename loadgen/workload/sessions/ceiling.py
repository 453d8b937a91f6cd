"""How much of each prompt a prefix cache could have held: one of any size, and one of the size of the engine's pool.

A prompt hits as far as its beginning is still in the cache. What is sent makes its whole prompt recent, its end less so
than its beginning; the least recent goes first. So the tokens of a prompt, from its beginning on, have been overtaken
by ever more others, and the number of tokens that are more recent than one is the size that a cache needs to still hold
it: one walk over a prompt gives its hits for every size. Answers are not counted: what a recorded session says next
repeats the recording and not what the server answered.

Invariant: a prompt shares tokens with an earlier one only from its beginning. So what is left of an earlier prompt is
always its end, from where later ones have taken over, and a list of the prompts sent with how much is left of each
describes the cache.
"""

from __future__ import annotations

from array import array

from loadgen.workload.sessions.play import Play
from loadgen.workload.sessions.tree import COMMON

PossibleHits = list[tuple[int, int]]
"""The parts of a prompt that are in the cache as (end, more): a token at `place` before `end` needs a cache of
`place + 1 + more`."""


def hits_within(hits: PossibleHits, pool_tokens: float) -> int:
    """Tokens that a cache of this size still holds."""
    held = 0.0
    for end, more in hits:
        held = max(held, min(end, pool_tokens - more))
        if held < end:
            break
    return int(held)


class Ceilings:
    """The prefix cache of one server, as the prompts that were sent would have filled it."""

    def __init__(self) -> None:
        self._left = array("q")  # tokens of each prompt sent that no later one has taken over
        # Of each part of a session: (end, prompt) for the prompts that took over its tokens, in order.
        self._holders: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def sent(self, play: Play, index: int, common_prefix: int = 0) -> PossibleHits:
        """Send a request; the prompts of all sessions begin with the same `common_prefix` tokens."""
        hits: PossibleHits = []
        this, before = len(self._left), 0
        taken: dict[int, int] = {}
        unbroken = True
        for part, tokens in play.tree.context(index, common_prefix):
            key = (COMMON if part == COMMON else play.salt, part)
            holders = self._holders.get(key, [])
            covered = 0
            for end, prompt in holders:
                until = min(end, tokens)
                if until > covered and unbroken:
                    # Places before the first token that is left of that prompt have been taken over since.
                    more = sum(self._left[prompt + 1 :]) - (before + covered - taken.get(prompt, 0))
                    hits.append((before + until, more))
                    taken[prompt] = taken.get(prompt, 0) + until - covered
                covered = max(covered, until)
            unbroken = unbroken and covered == tokens
            self._holders[key] = [(tokens, this), *(holder for holder in holders if holder[0] > tokens)]
            before += tokens
        for prompt, tokens in taken.items():
            self._left[prompt] -= tokens
        self._left.append(before)
        return hits

    def forget(self, play: Play) -> None:
        """Drop what only later requests of a play would need, when there will be none."""
        for index in range(len(play.tree.requests)):
            self._holders.pop((play.salt, index), None)
