"""Server-sent events and the JSON of OpenAI-compatible streams.

`EventSplitter` yields the same events however the bytes are split (property-tested). Lines end with LF, CRLF or CR and
nothing else, as the standard says. `decode_chunk` knows only the fields that are measured and skips all others.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from loadgen.errors import UNDECODABLE

MAX_EVENT_BYTES = 16 * 1024 * 1024

DONE = b"[DONE]"

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


TokenCount = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]  # as many as a profile may ask for


class Usage(msgspec.Struct, gc=False):
    """Token counts, cumulative over the stream."""

    prompt_tokens: TokenCount = 0
    completion_tokens: TokenCount = 0


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR


class TypedChunk(Chunk, gc=False):
    """One event of any endpoint; events of `/v1/responses` have a type and no choices.

    Its three extra fields cost a few percent per token, so completions and chats use `Chunk` where they can.
    """

    type: str = ""
    delta: msgspec.Raw = NO_ERROR
    response: msgspec.Raw = NO_ERROR

    @property
    def has_output(self) -> bool:
        """Whether it carries text, reasoning or a piece of a tool call."""
        return self.type.endswith(".delta") and bytes(self.delta) not in (b"null", b'""')


class _ResponseUsage(msgspec.Struct):
    input_tokens: TokenCount = 0
    output_tokens: TokenCount = 0


class _Response(msgspec.Struct):
    usage: _ResponseUsage | None = None


TEXT = Chunk(choices=[Choice(text=" ")])  # stands for any chunk that has output
FINISHED = ("response.completed", "response.incomplete")  # types of the last event of `/v1/responses`
FAILED = ("response.failed", "error")


def as_completion_chunk(chunk: TypedChunk) -> Chunk:
    """The completions chunk that is equivalent to an event of `/v1/responses`."""
    try:
        return Chunk(choices=[Choice(text=_decode_text(chunk.delta))])
    except UNDECODABLE:
        return TEXT


def text_of(choice: Choice) -> str | None:
    """The text or reasoning that a chunk adds; None for a tool call."""
    delta = choice.delta
    if delta is None:
        return choice.text or ""
    return None if delta.tool_calls else delta.content or delta.reasoning_content or delta.reasoning or ""


decode_chunk = msgspec.json.Decoder(Chunk).decode
"""Decodes the data of one event; raises `UNDECODABLE` if it is not such a chunk."""

decode_typed = msgspec.json.Decoder(TypedChunk).decode  # the same for an event of any endpoint

_decode_text = msgspec.json.Decoder(str).decode
_decode_response = msgspec.json.Decoder(_Response).decode


def final_usage(chunk: TypedChunk) -> Usage | None:
    """The usage in the last event of `/v1/responses`, None in any other event; raises `UNDECODABLE`."""
    told = chunk.type in FINISHED and bytes(chunk.response) != b"null"
    usage = _decode_response(chunk.response).usage if told else None
    return None if usage is None else Usage(prompt_tokens=usage.input_tokens, completion_tokens=usage.output_tokens)


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


class EventTooLong(Exception):
    """An event grew beyond `MAX_EVENT_BYTES` without ending."""


class EventSplitter:
    """Cuts a byte stream into the data of its events; comments and fields other than `data` are dropped."""

    __slots__ = ("_pending", "_skip_newline")

    def __init__(self) -> None:
        self._pending = b""
        self._skip_newline = False

    @property
    def holds(self) -> bool:
        """Whether the next bytes depend on what came before."""
        return bool(self._pending) or self._skip_newline

    def feed(self, body: bytes) -> list[bytes]:
        """The data of every event that these bytes complete; raises `EventTooLong`."""
        if self._skip_newline and body:
            body = body.removeprefix(b"\n")
            self._skip_newline = False
        if b"\r" in body:
            # A CR ends its line at once; an LF that follows in the next read belongs to it.
            self._skip_newline = body.endswith(b"\r")
            body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, self._pending = (self._pending + body).split(b"\n\n")
        # A third newline in a row is an empty line: it would hide the field name that follows it.
        self._pending = self._pending.lstrip(b"\n")
        if len(self._pending) > MAX_EVENT_BYTES:
            raise EventTooLong
        return [data for event in events if (data := _data_of(event)) is not None]


def single_event(body: bytes) -> bytes | None:
    """The data if these bytes are exactly one named event, as `/v1/responses` writes them; else None."""
    if body[:7] != b"event: " or body[-2:] != b"\n\n":
        return None
    name_end = body.find(b"\n")
    data = body[name_end + 7 : -2]
    return data if body[name_end : name_end + 7] == b"\ndata: " and b"\n" not in data and b"\r" not in body else None


def _data_of(event: bytes) -> bytes | None:
    lines = [line for line in event.split(b"\n") if line[:5] == b"data:" or line == b"data"]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
