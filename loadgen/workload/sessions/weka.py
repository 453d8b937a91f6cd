"""Recorded sessions of coding agents in the weka format, which AgentX uses: one JSON object for each session.

Requests are in the order of time; those of a sub-agent are nested in an entry of their own, with times that count from
the session's start or, in some files, from the sub-agent's. `api_time` is how long an answer took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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
    parents: list[int | None] = [None]
    recorded = list(_recorded(session.requests, parents, left_out))
    if not recorded:
        return None
    try:
        return session_tree(session.id, session.block_size, recorded, parents)
    except ValueError as error:
        raise ValueError(f"session {session.id!r}: {error}") from None


def _recorded(
    requests: Sequence[_Request],
    parents: list[int | None],
    left_out: Counter[str],
    chain: int = 0,
    since_s: float = 0.0,
    place: Sequence[str] = (),
) -> Iterator[RecordedRequest]:
    """The requests in a list, which may be nested; adds the parent of each sub-agent to `parents`."""
    last_s = 0.0
    for number, request in enumerate(requests, start=1):
        here = [*place, f"request {number}"]
        where = ": ".join(here)
        start_s = since_s + request.t
        if not 0 <= request.t <= MAX_SECONDS or start_s < last_s:
            raise ValueError(f"{where}: t = {request.t:g}: expected seconds, in ascending order")
        last_s = start_s
        if request.requests is not None:
            if len(here) > _MAX_NESTING:
                raise ValueError(f"{where}: expected at most {counted(_MAX_NESTING, 'level')} of sub-agents")
            parents.append(chain)
            relative = bool(request.requests) and request.requests[0].t < start_s
            began_s = start_s if relative else 0.0
            yield from _recorded(request.requests, parents, left_out, len(parents) - 1, began_s, here)
        elif request.type == "subagent":
            raise ValueError(f"{where}: expected the requests of a sub-agent")
        elif _is_answered(request, where):
            ended_s = start_s + (request.api_time or 0.0)
            yield RecordedRequest(start_s, ended_s, request.isl, request.osl, chain, request.hash_ids)
        else:
            left_out[EMPTY_ANSWER if request.isl else EMPTY_PROMPT] += 1


def _is_answered(request: _Request, where: str) -> bool:
    """Whether a request has tokens in its prompt and its answer; raises ValueError for numbers that cannot be."""
    for name, tokens in (("in", request.isl), ("out", request.osl)):
        if not 0 <= tokens <= MAX_TOKENS:
            raise ValueError(f"{where}: {name}: expected a number of tokens, not {tokens}")
    if request.api_time is not None and not 0 <= request.api_time <= MAX_SECONDS:
        raise ValueError(f"{where}: api_time: expected seconds, not {request.api_time:g}")
    return request.isl > 0 and request.osl > 0
