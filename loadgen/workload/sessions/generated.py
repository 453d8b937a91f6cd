"""Sessions drawn from the published distributions of recorded coding agents, for those who have no recordings.

Lengths, growth and gaps follow quartiles measured over 710 recorded sessions of a public collection (Apache-2.0,
github.com/callanjfox/kv-cache-tester); how many sessions have sub-agents follows what is published of AgentX's.
Nothing of a recording is copied. Draws are independent of each other, which those of real sessions are not.

Invariant: a session is a pure function of the seed, its number and the scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, session_tree

BLOCK_SIZE = 64
_MAX_CONTEXT = 990_000  # tokens; the longest prompt of AgentX's recordings
_TOOLS_AND_SYSTEM = 15_100  # tokens at the beginning of every agent's context

# Values at the shares _SHARES, with an extreme at each end.
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
_TURNS = (2, 18, 45, 94, 156, 400)
_FIRST_INPUT = (15_200, 18_600, 24_500, 104_000, 259_000, 500_000)
_GROWTH = (32, 324, 646, 1_535, 3_511, 20_000)
_OSL = (20, 137, 216, 429, 899, 6_000)
_TOOL_GAP_S = (0.5, 5, 9, 19, 71, 600)
_USER_GAP_S = (5, 40, 132, 480, 1_935, 14_400)
_SERVER_S = (1, 4, 6, 10, 18, 120)

_END_TURN = 1 / 16  # share of answers that end a turn of the user; the others call a tool
_COMPACTION = 0.007  # share of turns before which the context is summarized
_WITH_SUBAGENTS = 0.6  # share of sessions; some of them are over before they start any
_SPAWNS = 0.05  # share of the tool calls of such a session that start sub-agents
_SUBAGENT_TURNS = (1, 5, 11, 20, 30, 60)


def generated_tree(seed: int, number: int, scale: float = 1.0) -> SessionTree:
    """One session; `scale` multiplies all lengths in tokens, for models with short contexts."""
    return _Generator(Random(f"{seed}/{number}"), scale).tree(f"generated-{number}")


def quantile(values: Sequence[float], share: float) -> float:
    """The value at a share of a distribution, along straight lines between the logarithms of those known."""
    for place in range(1, len(_SHARES)):
        if share <= _SHARES[place]:
            break
    low, high = _SHARES[place - 1 : place + 1]
    weight = (share - low) / (high - low)
    return math.exp((1 - weight) * math.log(values[place - 1]) + weight * math.log(values[place]))


class _Generator:
    """The requests of one session as they are drawn."""

    def __init__(self, random: Random, scale: float) -> None:
        self._random = random
        self._scale = scale
        self._recorded: list[RecordedRequest] = []
        self._parents: list[int | None] = [None]

    def tree(self, name: str) -> SessionTree:
        spawns = _SPAWNS if self._random.random() < _WITH_SUBAGENTS else 0.0
        self._agent(0, 0.0, round(self._drawn(_TURNS)), self._tokens(self._drawn(_FIRST_INPUT)), spawns)
        return session_tree(name, BLOCK_SIZE, self._recorded, self._parents)

    def _agent(self, chain: int, start_s: float, turns: int, isl: int, spawns: float) -> float:
        """Draw the turns of one agent and of the sub-agents that it starts; returns when its last answer ended."""
        at_s = end_s = start_s
        tools_and_system, longest = (self._tokens(tokens) for tokens in (_TOOLS_AND_SYSTEM, _MAX_CONTEXT))
        repeats = tools_and_system if chain else None
        for turn in range(turns):
            if turn:
                compacted = self._random.random() < _COMPACTION or isl > longest
                repeats = tools_and_system if compacted else None
                isl = (tools_and_system if compacted else isl) + self._tokens(self._drawn(_GROWTH))
            osl = self._tokens(self._drawn(_OSL))
            end_s = at_s + self._drawn(_SERVER_S)
            self._recorded.append(RecordedRequest(at_s, end_s, isl, osl, chain, repeats=repeats))
            at_s = end_s + self._pause_s(end_s, spawns if turn + 1 < turns else 0.0, subagent=chain > 0)
        return end_s

    def _pause_s(self, start_s: float, spawns: float, *, subagent: bool) -> float:
        """The time from an answer to the next turn: a tool runs, the user thinks, or sub-agents are at work."""
        if self._random.random() < spawns:
            ends_s = []
            for _ in range(1 + int(3 * self._random.random())):
                self._parents.append(0)
                isl = self._tokens(_TOOLS_AND_SYSTEM + self._drawn(_GROWTH))
                turns = round(self._drawn(_SUBAGENT_TURNS))
                ends_s.append(self._agent(len(self._parents) - 1, start_s + 0.1, turns, isl, 0.0))
            return max(ends_s) - start_s + 1.0
        user = not subagent and self._random.random() < _END_TURN
        return self._drawn(_USER_GAP_S if user else _TOOL_GAP_S)

    def _drawn(self, values: Sequence[float]) -> float:
        return quantile(values, self._random.random())

    def _tokens(self, unscaled: float) -> int:
        return max(1, round(unscaled * self._scale))
