"""The formats of recorded sessions: AgentX's (weka), Mooncake's trace rows, and OpenTelemetry's GenAI spans.

weka: one JSON object for each session. Its requests are in the order of time; those of a sub-agent are nested in an
entry of their own, with times that count from the session's start or, in some files, from the sub-agent's. `api_time`
is how long an answer took.

OpenTelemetry: OTLP's JSON, or a list of spans with plain attributes. A session is a conversation
(`gen_ai.conversation.id`) or else a trace. Its requests are the spans of an operation that generates text; those below
the span of an agent that another agent invoked belong to a sub-agent, and so does each of several requests that one
agent had open at the same time. Where the spans hold the messages, their beginnings say what a prompt repeats;
otherwise it repeats the one before. No text is kept.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated

import msgspec

from loadgen.distributions import MAX_TOKENS
from loadgen.errors import UNDECODABLE
from loadgen.format import counted
from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, common_start, session_tree
from loadgen.workload.traces import (
    EMPTY_ANSWER,
    EMPTY_PROMPT,
    MAX_SECONDS,
    require_blocks,
    require_lengths,
    timestamp_s,
    whole_number,
)

_WEKA = '{"id": "...", "block_size": 64, "requests": [{"t": seconds, "in": tokens, "out": tokens, "hash_ids": [...]}]}'
_MAX_NESTING = 16
_MOONCAKE = '{"session_id": "...", "timestamp": milliseconds, "input_length": tokens, "output_length": tokens}'
_OTEL = 'OTLP JSON {"resourceSpans": [...]}, {"spans": [...]}, or one span a line'
_OTEL_BLOCK_SIZE = 64
_GENERATES = ("chat", "generate_content", "generate", "text_completion")
_AGENT = "invoke_agent"
_MAX_DEPTH = 1_000
NO_PARENT = "without parent span in the file"  # not left out: taken as the outermost agent's
_START = ("startTimeUnixNano", "start_time_unix_nano", "start_time")
_END = ("endTimeUnixNano", "end_time_unix_nano", "end_time")


class _WekaRequest(msgspec.Struct, rename={"isl": "in", "osl": "out"}):
    t: float
    type: str = "s"
    isl: int = 0
    osl: int = 0
    hash_ids: list[int] | None = None
    api_time: float | None = None
    requests: list[_WekaRequest] | None = None  # those of a sub-agent


class _WekaSession(msgspec.Struct):
    requests: list[_WekaRequest]
    id: str = ""
    block_size: int = 64


_decode_weka = msgspec.json.Decoder(_WekaSession, strict=False).decode  # 5.0 is a count, too


def weka_session(content: bytes, left_out: Counter[str]) -> SessionTree | None:
    """The tree of a session, None if it has no answers; counts what is not sent. Raises ValueError."""
    try:
        session = _decode_weka(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"expected {_WEKA}; {error}") from None
    if not 1 <= session.block_size <= 1_000_000:
        raise ValueError(f"block_size: expected a number of tokens, not {session.block_size}")
    parents: list[int | None] = [None]
    recorded = list(_weka_requests(session.requests, parents, left_out))
    if not recorded:
        return None
    try:
        return session_tree(session.id, session.block_size, recorded, parents)
    except ValueError as error:
        raise ValueError(f"session {session.id!r}: {error}") from None


def _weka_requests(
    requests: Sequence[_WekaRequest],
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
            yield from _weka_requests(request.requests, parents, left_out, len(parents) - 1, began_s, here)
        elif request.type == "subagent":
            raise ValueError(f"{where}: expected the requests of a sub-agent")
        elif _is_answered(request, where):
            ended_s = start_s + (request.api_time or 0.0)
            yield RecordedRequest(start_s, ended_s, request.isl, request.osl, chain, request.hash_ids)
        else:
            left_out[EMPTY_ANSWER if request.isl else EMPTY_PROMPT] += 1


def _is_answered(request: _WekaRequest, where: str) -> bool:
    """Whether a request has tokens in its prompt and its answer; raises ValueError for numbers that cannot be."""
    for name, tokens in (("in", request.isl), ("out", request.osl)):
        if not 0 <= tokens <= MAX_TOKENS:
            raise ValueError(f"{where}: {name}: expected a number of tokens, not {tokens}")
    if request.api_time is not None and not 0 <= request.api_time <= MAX_SECONDS:
        raise ValueError(f"{where}: api_time: expected seconds, not {request.api_time:g}")
    return request.isl > 0 and request.osl > 0


class MooncakeRow(msgspec.Struct):
    """A row of Mooncake's traces as it is published; those with the same `session_id` are the turns of a session."""

    session: str | int = msgspec.field(name="session_id")
    input_length: int
    output_length: int
    timestamp: float | None = None
    delay: float | None = None
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None


_decode_mooncake = msgspec.json.Decoder(MooncakeRow, strict=False).decode


def mooncake_row(content: bytes, block_size: int) -> MooncakeRow:
    """Parse a row; raises ValueError."""
    try:
        row = _decode_mooncake(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"expected {_MOONCAKE}; {error}") from None
    require_lengths(row.input_length, row.output_length, MAX_TOKENS)
    for name, time_ms in (("timestamp", row.timestamp), ("delay", row.delay)):
        if time_ms is not None and not 0 <= time_ms / 1000 <= MAX_SECONDS:
            raise ValueError(f"{name}: expected milliseconds from 0, not {time_ms:g}")
    require_blocks(row.hash_ids or (), row.input_length, block_size, "load.sessions.block_size")
    row.session = str(row.session)  # a large number has no form in msgpack
    return row


def mooncake_session(rows: Sequence[MooncakeRow], block_size: int, left_out: Counter[str]) -> SessionTree | None:
    """The tree of the rows of one session, in their order; raises ValueError.

    A row with `delay` starts so many milliseconds after the answer before it. Without, only the times between the
    starts of turns are known, which then stand for the gaps.
    """
    recorded: list[RecordedRequest] = []
    for row in rows:
        last_s = recorded[-1].start_s if recorded else 0.0
        if row.delay is not None:
            start_s = last_s + row.delay / 1000
        else:
            start_s = last_s if row.timestamp is None else row.timestamp / 1000
        if start_s < last_s:
            early_s = last_s - start_s
            raise ValueError(f"session {row.session!r}: a turn is {early_s:g} s before the one above; sort by time")
        if not row.input_length or not row.output_length:
            left_out[EMPTY_ANSWER if row.input_length else EMPTY_PROMPT] += 1
            continue
        recorded.append(RecordedRequest(start_s, start_s, row.input_length, row.output_length, 0, row.hash_ids))
    return session_tree(str(rows[0].session), block_size, recorded) if recorded else None


class OtelSpan(msgspec.Struct, array_like=True):
    """What is read of a span."""

    session: str
    id: str
    parent: str
    start_s: float
    end_s: float
    operation: str
    isl: int
    osl: int
    messages: list[tuple[int, int]]  # of the prompt: a hash of each and its size


def otel_spans(content: bytes) -> Iterator[OtelSpan]:
    """The spans of a record; raises ValueError."""
    try:
        document = msgspec.json.decode(content)
    except UNDECODABLE as error:
        raise ValueError(f"expected {_OTEL}; {error}") from None
    for span in _spans_in(document):
        if not isinstance(span, Mapping):
            raise ValueError(f"expected {_OTEL}; a span is not an object")
        yield _span(span)


def otel_session(spans: Sequence[OtelSpan], left_out: Counter[str]) -> SessionTree | None:
    """The tree of one session's spans; raises ValueError."""
    by_id = {span.id: span for span in spans}
    requests = sorted((span for span in spans if span.operation in _GENERATES), key=lambda span: span.start_s)
    left_out[NO_PARENT] += sum(span.parent != "" and span.parent not in by_id for span in requests)
    chains: dict[str, int] = {"": 0}
    parents: list[int | None] = [None]
    ended_s: dict[int, float] = {}
    latest: dict[int, Sequence[tuple[int, int]]] = {}  # the messages of each chain's last request
    recorded = []
    for span in requests:
        if not span.isl or not span.osl:
            left_out[EMPTY_ANSWER if span.isl else EMPTY_PROMPT] += 1
            continue
        chain = 0
        for agent in _agents_above(span, by_id):
            if not ended_s:
                break  # nothing can have invoked the first request's agent
            if agent not in chains:
                chains[agent] = len(parents)
                parents.append(chain)
            chain = chains[agent]
        if span.start_s < ended_s.get(chain, -math.inf):
            parents.append(chain)
            chain = len(parents) - 1
        ended_s[chain] = max(span.end_s, ended_s.get(chain, -math.inf))
        repeats = _repeated(span, latest.get(chain, latest.get(0, [])))
        recorded.append(RecordedRequest(span.start_s, span.end_s, span.isl, span.osl, chain, repeats=repeats))
        latest[chain] = span.messages
    return session_tree(spans[0].session, _OTEL_BLOCK_SIZE, recorded, parents) if recorded else None


def _agents_above(span: OtelSpan, by_id: Mapping[str, OtelSpan]) -> list[str]:
    """The sub-agents that a span is part of, the outermost first; the outermost agent of all is the root."""
    above: list[str] = []
    seen, here = set[str](), by_id.get(span.id)
    while here is not None:
        if here.id in seen or len(seen) > _MAX_DEPTH:
            why = "is its own ancestor" if here.id in seen else f"has more than {_MAX_DEPTH:,} ancestors"
            raise ValueError(f"span {span.id!r} {why}")
        seen.add(here.id)
        if here.operation == _AGENT:
            above.append(here.id)
        here = by_id.get(here.parent)
    return above[::-1][1:]


def _repeated(span: OtelSpan, earlier: Sequence[tuple[int, int]]) -> int | None:
    """The tokens of a prompt in the messages that begin an earlier one, too; None if it has none that are known."""
    total = sum(size for _, size in span.messages)
    alike = sum(size for _, size in span.messages[: common_start(earlier, span.messages)])
    return span.isl * alike // total if total else None


def _spans_in(document: object) -> Iterator[object]:
    if isinstance(document, list):
        for part in document:
            yield from _spans_in(part)
    elif not isinstance(document, Mapping):
        raise ValueError(f"expected {_OTEL}")
    elif any(name in document for name in ("spanId", "span_id")):
        yield document
    else:
        parts = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans")
        lists = [document[name] for name in parts if isinstance(document.get(name), list)]
        if not lists:
            raise ValueError(f"expected {_OTEL}")
        for part in lists:
            yield from _spans_in(part)


def _span(span: Mapping[str, object]) -> OtelSpan:
    attributes = _attributes(span.get("attributes"))
    name = str(span.get("name", ""))
    start_s, end_s = (_seconds(span, *names) for names in (_START, _END))
    if end_s < start_s:
        raise ValueError(f"span {name!r}: ends {start_s - end_s:g} s before it starts")
    trace = _first(span, "traceId", "trace_id")
    return OtelSpan(
        session=str(attributes.get("gen_ai.conversation.id") or trace or ""),
        id=str(_first(span, "spanId", "span_id")),
        parent=str(_first(span, "parentSpanId", "parent_span_id", "parent_id") or ""),
        start_s=start_s,
        end_s=end_s,
        operation=str(attributes.get("gen_ai.operation.name") or name.partition(" ")[0]),
        isl=_tokens(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        osl=_tokens(attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        messages=_messages(attributes.get("gen_ai.input.messages")),
    )


def _first(values: Mapping[str, object], *names: str) -> object:
    return next((values[name] for name in names if name in values), None)


def _attributes(given: object) -> Mapping[str, object]:
    """Attributes by name; OTLP wraps each value in its type."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, list):
        return {}
    pairs = [each for each in given if isinstance(each, Mapping) and isinstance(each.get("value"), Mapping)]
    return {str(each.get("key")): next(iter(each["value"].values()), None) for each in pairs}


def _seconds(span: Mapping[str, object], *names: str) -> float:
    """A time in Unix nanoseconds, or as an ISO text; UTC if that has no zone."""
    value = _first(span, *names)
    try:
        is_date = isinstance(value, str) and re.fullmatch(r"[0-9]+(\.0*)?", value) is None
        seconds = timestamp_s(str(value)) if is_date else whole_number(value) / 1e9
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{names[0]}: expected Unix nanoseconds or an ISO time, not {str(value)[:40]!r}")
    return seconds


def _tokens(attributes: Mapping[str, object], *names: str) -> int:
    """A number of tokens; 0 if there is none."""
    value = _first(attributes, *names) or 0
    try:
        tokens = whole_number(value)
    except (TypeError, ValueError, OverflowError):
        tokens = -1
    if not 0 <= tokens <= MAX_TOKENS:
        raise ValueError(f"{names[0]}: expected a number of tokens, not {str(value)[:40]!r}")
    return tokens


def _messages(value: object) -> list[tuple[int, int]]:
    """A hash and a size for each message of a prompt; nothing if they are not in a form that is known."""
    try:
        messages = json.loads(value) if isinstance(value, str) else value
    except UNDECODABLE:
        return []
    if not isinstance(messages, list):
        return []
    texts = [json.dumps(message, sort_keys=True).encode() for message in messages]
    return [(int.from_bytes(blake2b(text, digest_size=8).digest()) >> 1, len(text)) for text in texts]
