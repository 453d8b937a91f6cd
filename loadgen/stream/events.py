"""Server-sent events and the JSON of OpenAI-compatible streams.

`EventSplitter` turns any split of the byte stream into the same events (property-tested). Lines end with LF, CRLF or CR
and with nothing else, as the standard says. `decode_chunk` knows only the fields that are measured; whatever else a
server sends is skipped without being built.
"""

from __future__ import annotations

import msgspec

MAX_EVENT_BYTES = 16 * 1024 * 1024

DONE = b"[DONE]"

NO_ERROR = msgspec.Raw(b"null")


class Delta(msgspec.Struct, gc=False):
    """What a chat chunk adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of a chunk: `text` for completions, `delta` for chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts, cumulative over the stream."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR


decode_chunk = msgspec.json.Decoder(Chunk).decode
"""Decode the data of an event; raises `msgspec.DecodeError` for what is not such a chunk."""


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
        """Do the next bytes depend on what came before?"""
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
        # A third newline in a row is an empty line of its own and would hide the field name behind it.
        self._pending = self._pending.lstrip(b"\n")
        if len(self._pending) > MAX_EVENT_BYTES:
            raise EventTooLong
        return [data for event in events if (data := _data_of(event)) is not None]


def _data_of(event: bytes) -> bytes | None:
    lines = [line for line in event.split(b"\n") if line[:5] == b"data:" or line == b"data"]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
