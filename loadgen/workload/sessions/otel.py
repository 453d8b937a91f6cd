"""Sessions from OpenTelemetry's GenAI spans: OTLP's JSON, or a list of spans with plain attributes.

A session is a conversation (`gen_ai.conversation.id`) or else a trace. Its requests are the spans of an operation that
generates text; those below the span of an agent that another agent invoked belong to a sub-agent, and so does each of
several requests that one agent had open at the same time. Where the spans hold the messages, their beginnings say what
a prompt repeats; otherwise it repeats the one before. No text is kept.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import msgspec

from loadgen.distributions import MAX_TOKENS
from loadgen.errors import UNDECODABLE
from loadgen.workload.sessions.tree import RecordedRequest, SessionTree, common_start, session_tree
from loadgen.workload.traces import EMPTY_ANSWER, EMPTY_PROMPT, MAX_SECONDS, timestamp_s

BLOCK_SIZE = 64
_GENERATES = ("chat", "generate_content", "generate", "text_completion")
_AGENT = "invoke_agent"
_MAX_DEPTH = 1_000
NO_PARENT = "without parent span in the file"  # not left out: taken as the outermost agent's
_SHAPE = 'OTLP JSON {"resourceSpans": [...]}, {"spans": [...]}, or one span a line'


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
        raise ValueError(f"expected {_SHAPE}; {error}") from None
    for span in _spans_in(document):
        if not isinstance(span, Mapping):
            raise ValueError(f"expected {_SHAPE}; a span is not an object")
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
    return session_tree(spans[0].session, BLOCK_SIZE, recorded, parents) if recorded else None


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
        raise ValueError(f"expected {_SHAPE}")
    elif any(name in document for name in ("spanId", "span_id")):
        yield document
    else:
        parts = ("resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "spans")
        lists = [document[name] for name in parts if isinstance(document.get(name), list)]
        if not lists:
            raise ValueError(f"expected {_SHAPE}")
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


_START = ("startTimeUnixNano", "start_time_unix_nano", "start_time")
_END = ("endTimeUnixNano", "end_time_unix_nano", "end_time")


def _first(values: Mapping[str, object], *names: str) -> object:
    """The value under the first of several names that is there."""
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
        if isinstance(value, str) and not value.isdigit():
            seconds = timestamp_s(value)
        else:
            seconds = int(str(value)) / 1e9
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"{names[0]}: expected Unix nanoseconds or an ISO time, not {str(value)[:40]!r}")
    return seconds


def _tokens(attributes: Mapping[str, object], *names: str) -> int:
    """A number of tokens; 0 if there is none."""
    value = _first(attributes, *names) or 0
    try:
        tokens = int(str(value))
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
