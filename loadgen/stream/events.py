"""Server-sent events and the JSON of OpenAI-compatible streams.

`EventSplitter` yields the same events however the bytes are split (property-tested), in time linear in their number.
Lines end with LF, CRLF or CR and nothing else, as the standard says. Two readers turn the data of an event into a
`Chunk`: `decode_chunk` knows only the fields that are measured, and skips all others; `read_event` takes any form that
servers are known to use, and is for the events in which `decode_chunk` finds no output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from loadgen.errors import UNDECODABLE

MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_TOKENS = 10_000_000  # as many as a profile may ask for

DONE = b"[DONE]"
BARE = b"{"

NO_ERROR = msgspec.Raw(b"null")


class Delta(msgspec.Struct, gc=False):
    """The output that a chat chunk adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of a chunk: `text` for completions, `delta` for chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    error: msgspec.Raw = NO_ERROR


TokenCount = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class OutputDetails(msgspec.Struct, gc=False):
    """What the completion tokens were used for."""

    reasoning_tokens: TokenCount | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """Where the prompt tokens came from."""

    cached_tokens: TokenCount | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts so far; a count that is missing or 0 is unknown."""

    prompt_tokens: TokenCount | None = None
    completion_tokens: TokenCount | None = None
    completion_tokens_details: OutputDetails | None = None
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR


decode_chunk = msgspec.json.Decoder(Chunk).decode
"""Decodes the data of one event; raises `UNDECODABLE` if it is not such a chunk."""


def text_of(choice: Choice) -> str | None:
    """The text or reasoning that a chunk adds; None for a tool call."""
    delta = choice.delta
    if delta is None:
        return choice.text or ""
    return None if delta.tool_calls else delta.content or delta.reasoning_content or delta.reasoning or ""


def is_answer(choice: Choice) -> bool:
    """Whether a chunk adds text or a tool call, and not only reasoning."""
    delta = choice.delta
    return bool(choice.text or (delta is not None and (delta.content or delta.tool_calls)))


def is_reasoning(choice: Choice) -> bool:
    """Whether a chunk adds reasoning, and nothing of the answer."""
    delta = choice.delta
    return delta is not None and bool(delta.reasoning_content or delta.reasoning) and not is_answer(choice)


def output_bytes(choice: Choice) -> int:
    """How many bytes of output a chunk adds."""
    text = text_of(choice)
    if text is not None:
        return len(text) if text.isascii() else len(text.encode())
    calls = choice.delta.tool_calls if choice.delta is not None else None
    return sum(len(bytes(call)) for call in calls or ())


# Server-sent events.


class Event(NamedTuple):
    """One event: its data, and its name, which most servers leave out.

    Named `error` as well: data in a field `error`. Named `BARE`: a line of JSON in no field, which may be an error.
    """

    data: bytes
    name: bytes = b""


class EventTooLong(Exception):
    """An event grew beyond `MAX_EVENT_BYTES` without ending."""


class EventSplitter:
    """Cuts a byte stream into its events; comments, events without data and other fields are dropped."""

    __slots__ = ("_parts", "_size", "_skip_newline")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of an event that has not ended; joined only once it has
        self._size = 0
        self._skip_newline = False

    @property
    def holds(self) -> bool:
        """Whether the next bytes depend on what came before."""
        return bool(self._parts) or self._skip_newline

    def feed(self, body: bytes) -> list[Event]:
        """The events that these bytes complete; raises `EventTooLong`."""
        if self._skip_newline and body:
            body = body.removeprefix(b"\n")
            self._skip_newline = False
        if b"\r" in body:
            # A CR ends its line at once; an LF that follows in the next read belongs to it.
            self._skip_newline = body.endswith(b"\r")
            body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._parts:
            # A third newline in a row is an empty line: it would hide the field name that follows it.
            body = body.lstrip(b"\n")
        if not body:
            return []
        ended = b"\n\n" in body or (body.startswith(b"\n") and self._parts[-1].endswith(b"\n"))
        self._parts.append(body)
        self._size += len(body)
        events = self._cut() if ended else []
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLong
        return events

    def _cut(self) -> list[Event]:
        *blocks, rest = b"".join(self._parts).split(b"\n\n")
        rest = rest.lstrip(b"\n")
        self._parts, self._size = [rest] if rest else [], len(rest)
        return [event for block in blocks if (event := _event_of(block)) is not None]


def _event_of(block: bytes) -> Event | None:
    """The event in these lines; None if they have no data."""
    data: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            data.append(value)
            name = b"error"
        elif line[:1] == b"{":
            return Event(line, BARE)
    joined = b"\n".join(data)
    return Event(joined, name) if joined.strip() else None


def single_event(body: bytes) -> Event | None:
    """The event if these bytes are exactly one that has a name, as `/v1/responses` writes them; else None."""
    if body[:7] != b"event: " or body[-2:] != b"\n\n":
        return None
    name_end = body.find(b"\n")
    data = body[name_end + 7 : -2]
    if body[name_end : name_end + 7] != b"\ndata: " or b"\n" in data or b"\r" in body:
        return None
    return Event(data, body[7:name_end])


EVENT_BELOW = 1024


def _whole_event(size: int) -> tuple[bytes, int]:
    """The first bytes of an HTTP chunk of `size` bytes that is exactly one event, and the offset of its JSON."""
    for digits in range(1, 4):
        length = size - digits - len(b"\r\n\r\n")
        if length > 0 and len(f"{length:x}") == digits:
            return b"%x\r\ndata: {" % length, digits + len(b"\r\ndata: ")
    return b"no chunk is so long", 0


EVENT_HEADS, EVENT_STARTS = zip(*map(_whole_event, range(EVENT_BELOW)), strict=True)
"""By size of a read: what marks it as one chunk with one event, and where its JSON begins; it ends 4 bytes earlier."""


# Events of any form.

_OUTPUT_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "thinking", "reasoning_text")
_OUTPUT_PARTS = ("reasoning_details", "thinking_blocks", "audio", "image", "images")
_REASONING = frozenset({"reasoning_content", "reasoning", "thinking", "reasoning_text", *_OUTPUT_PARTS[:2]})
_CALLS = ("tool_calls", "function_call")
_REPLACED_REASONS = ("abort", "error", "cancelled", "timeout", "network_error")
_decode_any = msgspec.json.Decoder().decode


def read_event(event: Event) -> Chunk:
    """The chunk that is equivalent to an event of any known form; raises `UNDECODABLE` for what is not JSON."""
    if event.name == b"error":
        return Chunk(error=msgspec.Raw(event.data))
    document = _decode_any(event.data)
    if not isinstance(document, dict):
        raise ValueError("the data of an event is not a JSON object")
    if event.name == BARE:
        return Chunk(error=msgspec.Raw(event.data) if _reports_error(document) else NO_ERROR)
    choices = document.get("choices")
    choice = next((one for one in choices if isinstance(one, dict)), None) if isinstance(choices, list) else None
    if isinstance(document.get("type"), str) and choice is None:
        return _read_typed(document, event)
    return Chunk(
        choices=[] if choice is None else [_read_choice(choice)],
        usage=read_usage(document.get("usage")),
        error=msgspec.Raw(event.data) if _reports_error(document) else NO_ERROR,
    )


def is_whole(event: Event) -> bool:
    """Whether an event that has no empty line after it was not cut off."""
    if event.data.strip() == DONE:
        return True
    try:
        read_event(event)
    except UNDECODABLE:
        return False
    return True


def _reports_error(document: Mapping[str, Any]) -> bool:
    """Whether a server says in this event that something went wrong."""
    if any(document.get(key) for key in ("error", "errors", "error_code", "error_message", "error_type")):
        return True
    if "error" in (document.get("object"), document.get("status"), document.get("type")):
        return True
    if any(key in document for key in ("choices", "usage", "id", "object")):
        return False
    # FastAPI's `detail`, and flat errors, which have no field of a chunk.
    kind = str(document.get("type") or "error").lower()
    return ("error" in kind or "code" in document) and any(document.get(key) for key in ("detail", "message", "msg"))


def _read_choice(choice: Mapping[str, Any]) -> Choice:
    error = choice.get("error")
    reason = _finish_reason(choice)
    # A whole message in place of a delta: the answer was not streamed.
    delta = choice.get("delta") or choice.get("message")
    return Choice(
        text=_text_in(choice.get("text")),
        delta=_read_delta(delta) if isinstance(delta, dict) else None,
        finish_reason=reason,
        error=msgspec.Raw(msgspec.json.encode(error)) if error else NO_ERROR,
    )


def _finish_reason(choice: Mapping[str, Any]) -> str | None:
    """The engine's own reason where a gateway has replaced one that means failure by another, as LiteLLM does."""
    specific = choice.get("provider_specific_fields")
    natives = [
        choice.get("native_finish_reason"),
        specific.get("native_finish_reason") if isinstance(specific, dict) else None,
    ]
    native = next((one for one in natives if one in _REPLACED_REASONS), None)
    reason = native or choice.get("finish_reason")
    return reason if reason is None or isinstance(reason, str) else str(reason)


def _read_delta(delta: Mapping[str, Any]) -> Delta:
    calls = next((delta[key] for key in _CALLS if delta.get(key)), None)
    if calls is not None:
        return Delta(tool_calls=[msgspec.Raw(msgspec.json.encode(calls))])
    for key in (*_OUTPUT_TEXTS, *_OUTPUT_PARTS):
        text = _text_in(delta.get(key))
        if text:
            return Delta(reasoning=text) if key in _REASONING else Delta(content=text)
    return Delta()


def _text_in(value: object) -> str:
    """The text of a field that may be a text, a list of parts, or parts within parts; empty if there is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        known = (
            value.get(key) for key in ("text", "content", "thinking", "summary", "data", "transcript", "image_url")
        )
        return next(filter(None, map(_text_in, known)), "")
    if isinstance(value, Sequence):
        return "".join(map(_text_in, value))
    return ""


def read_usage(usage: object) -> Usage | None:
    """Usage by the names of either endpoint; a count that cannot be one is unknown."""
    if not isinstance(usage, dict):
        return None
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    prompt = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = _count(prompt.get("cached_tokens")) if isinstance(prompt, dict) else None
    reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else usage.get("reasoning_tokens")
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        completion_tokens=_count(usage.get("completion_tokens", usage.get("output_tokens"))),
        completion_tokens_details=OutputDetails(_count(reasoning)),
        prompt_tokens_details=None if cached is None else PromptDetails(cached),
    )


def _count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS
    return value if known and isinstance(value, int) else None


def _read_typed(document: Mapping[str, Any], event: Event) -> Chunk:
    """An event of `/v1/responses`: its type says what it is, with or without an `event:` line."""
    kind = document["type"]
    if kind.endswith(".delta"):
        delta = document.get("delta")
        if kind.endswith("arguments.delta"):
            output = Choice(delta=Delta(tool_calls=[msgspec.Raw(event.data)] if delta else None))
        elif "reasoning" in kind:
            output = Choice(delta=Delta(reasoning=_text_in(delta)))
        else:
            output = Choice(text=_text_in(delta))
        return Chunk(choices=[output])
    response = document.get("response")
    response = response if isinstance(response, dict) else {}
    if kind in ("error", "response.failed") or response.get("error") or _reports_error(document):
        return Chunk(error=msgspec.Raw(event.data))
    if kind not in ("response.completed", "response.incomplete", "response.done", "response.cancelled"):
        return Chunk()
    return Chunk([Choice(finish_reason=_reason_of(kind, response))], read_usage(response.get("usage")))


def _reason_of(kind: str, response: Mapping[str, Any]) -> str:
    """The finish reason of completions that is equivalent to the last event of `/v1/responses`."""
    status = response.get("status") or kind.removeprefix("response.")
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        # Without details it ran into its limit: the only other documented cause has a name.
        return "length" if reason in (None, "max_output_tokens", "max_tokens") else str(reason)
    return "stop" if status in ("completed", "done") else str(status)
