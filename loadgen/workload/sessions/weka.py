"""Recorded sessions of coding agents in the weka format, which AgentX uses: one JSON object for each session.

Requests are in the order of time; those of a sub-agent are nested in an entry of their own, with times that count from
the session's start or, in some files, from the sub-agent's. `api_time` is how long an answer took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from loadgen.distributions import MAX_TOKENS
from loadgen.format import counted
from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, session_tree
from loadgen.workload.traces import EMPTY_ANSWER, EMPTY_PROMPT, MAX_SECONDS

_MAX_NESTING = 16
_SHAPE = '{"id": "...", "block_size": 64, "requests": [{"t": seconds, "in": tokens, "out": tokens, "hash_ids": [...]}]}'


class _Request(msgspec.Struct, rename={"isl": "in", "osl": "out"}):
    t: float
    type: str = "s"
    isl: int = 0
    osl: int = 0
    hash_ids: list[int] | None = None
    api_time: float | None = None
    requests: list[_Request] | None = None  # those of a sub-agent


class _Session(msgspec.Struct):
    requests: list[_Request]
    id: str = ""
    block_size: int = 64


_decode = msgspec.json.Decoder(_Session).decode


def weka_session(content: bytes, left_out: Counter[str]) -> SessionTree | None:
    """The tree of a session, None if it has no answers; counts what is not sent. Raises ValueError."""
    try:
        session = _decode(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"expected {_SHAPE}; {error}") from None
    if not 1 <= session.block_size <= 1_000_000:
        raise ValueError(f"block_size: expected a number of tokens, not {session.block_size}")
    reader = _Reader(left_out)
    reader.read(session.requests, 0, 0.0, [])
    if not reader.recorded:
        return None
    try:
        return session_tree(session.id, session.block_size, reader.recorded, reader.parents)
    except ValueError as error:
        raise ValueError(f"session {session.id!r}: {error}") from None


class _Reader:
    """Collects the requests of a session from its nested lists."""

    def __init__(self, left_out: Counter[str]) -> None:
        self.recorded: list[RecordedRequest] = []
        self.parents: list[int | None] = [None]
        self._left_out = left_out

    def read(self, requests: Sequence[_Request], chain: int, since_s: float, place: list[int]) -> None:
        last_s = 0.0
        for number, request in enumerate(requests):
            here = [*place, number]
            start_s = since_s + request.t
            if not 0 <= request.t <= MAX_SECONDS or start_s < last_s:
                raise ValueError(f"{_at(here)}: t = {request.t:g}: expected seconds, in ascending order")
            last_s = start_s
            if request.requests is not None:
                if len(here) > _MAX_NESTING:
                    raise ValueError(f"{_at(here)}: expected at most {counted(_MAX_NESTING, 'level')} of sub-agents")
                self.parents.append(chain)
                relative = bool(request.requests) and request.requests[0].t < start_s
                self.read(request.requests, len(self.parents) - 1, start_s if relative else 0.0, here)
            elif request.type == "subagent":
                raise ValueError(f"{_at(here)}: expected the requests of a sub-agent")
            else:
                self._add(request, chain, start_s, here)

    def _add(self, request: _Request, chain: int, start_s: float, here: list[int]) -> None:
        took_s = request.api_time or 0.0
        for name, tokens in (("in", request.isl), ("out", request.osl)):
            if not 0 <= tokens <= MAX_TOKENS:
                raise ValueError(f"{_at(here)}: {name}: expected a number of tokens, not {tokens}")
        if not 0 <= took_s <= MAX_SECONDS:
            raise ValueError(f"{_at(here)}: api_time: expected seconds, not {took_s:g}")
        if not request.isl or not request.osl:
            self._left_out[EMPTY_ANSWER if request.isl else EMPTY_PROMPT] += 1
            return
        self.recorded.append(
            RecordedRequest(start_s, start_s + took_s, request.isl, request.osl, chain, request.hash_ids)
        )


def _at(place: Sequence[int]) -> str:
    """Where a request is, counted from 1."""
    return ": ".join(f"request {number + 1}" for number in place)
