"""How an answer ended: whether it counts as completed, decided in one place for load, canaries and the first request.

An answer is completed only if the server says so by a finish reason that means it, or ends the stream by `[DONE]`
without giving any. Every other reason, an error in any form, and a stream that just stops is a failure, with the
server's own words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from loadgen.errors import UNDECODABLE
from loadgen.format import harmless
from loadgen.stream.events import (
    DONE,
    NO_ERROR,
    Chunk,
    Event,
    EventSplitter,
    EventTooLong,
    Usage,
    is_whole,
    read_event,
    text_of,
)

Failure = Literal[
    "connect",
    "timeout",
    "stall",
    "reset",
    "http_4xx",
    "http_429",
    "http_5xx",
    "protocol",
    "truncated",
    "bad_event",
    "engine_error",
    "aborted",
    "finish_reason",
    "empty",
]
"""Every way in which a stream can fail; the result counts failures by these names."""

REASONS: Mapping[str, Failure | None] = {
    "stop": None,
    "length": None,
    "tool_calls": None,
    "function_call": None,
    "content_filter": None,  # cut short by a rule, not by a fault: completed, and counted by its name
    "eos_token": None,  # TGI's names for `stop`
    "stop_sequence": None,
    "abort": "aborted",
    "cancelled": "aborted",
    "timeout": "aborted",
    "repetition": "aborted",  # vLLM's detection of loops
    "error": "engine_error",
    "network_error": "engine_error",
    "insufficient_system_resource": "engine_error",
}
"""What each known finish reason means: None for a completed answer."""
NO_REASON = frozenset({"", "null", "None"})  # what some servers write while an answer goes on

_MAX_WORDS = 300
_ERROR_KEYS = ("error", "errors", "message", "detail", "error_message", "error_msg", "msg", "response", "text")


class Failed(NamedTuple):
    """That an answer failed: the kind of failure, and what to tell the operator."""

    kind: Failure
    message: str


def failure_of(*, reason: str | None, done: bool, has_events: bool, has_output: bool) -> Failed | None:
    """How a complete response failed as an answer; None if the answer is completed.

    `reason` is its finish reason, `done` whether that or `[DONE]` was seen.
    """
    if reason is not None:
        kind = REASONS.get(reason, "finish_reason")
        if kind is not None:
            return Failed(kind, f"the server ended the answer with finish_reason {shown(reason.encode())!r}")
    if not has_events:
        return Failed("protocol", "the answer to a streamed request is not an event stream")
    if not done:
        return Failed("truncated", "the answer stopped without a finish reason or [DONE]")
    if not has_output:
        return Failed("empty", "the answer ended without any output")
    return None


def shown(text: bytes) -> str:
    """The beginning of a text from a server, harmless and in one line."""
    return harmless(text[:_MAX_WORDS].decode("utf-8", "replace")).replace("\n", " ")


def error_words(data: bytes) -> str:
    """The server's own words in an error, which may be JSON in any form, or a text."""
    try:
        words = _words_in(msgspec.json.decode(data))
    except UNDECODABLE:
        words = ""
    return shown((words or data.decode("utf-8", "replace")).encode())


def _words_in(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return next(filter(None, map(_words_in, value)), "")
    if not isinstance(value, dict):
        return ""
    words = next(filter(None, (_words_in(value.get(key)) for key in _ERROR_KEYS)), "")
    code = value.get("code", value.get("error_code"))
    return f"{words} ({code})" if words and isinstance(code, int | str) and code else words


class Answer(NamedTuple):
    """A whole answer that was not timed, streamed or not."""

    text: str
    usage: Usage
    failed: Failed | None
    error_status: int | None = None  # the HTTP status that an error in the stream would have had


def read_answer(content: bytes) -> Answer:
    """Read the body of a response with status 200."""
    events = _events_of(content)
    texts: list[str] = []
    usage, reason, done, has_output = Usage(), None, False, False
    for event in events:
        if event.data.strip() == DONE:
            done = True
            continue
        try:
            chunk = read_event(event)
        except UNDECODABLE as error:
            return Answer("".join(texts), usage, Failed("bad_event", f"{error}: {shown(event.data)}"))
        if (failed := error_in(chunk)) is not None:
            return Answer("".join(texts), usage, failed, _status_of(event.data))
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text = text_of(choice)
            texts.append(text or "")
            has_output |= text != ""
            reason = worse_reason(reason, choice.finish_reason)
    has_output |= bool(usage.completion_tokens)  # tokens without text
    failed = failure_of(reason=reason, done=done or reason is not None, has_events=bool(events), has_output=has_output)
    if failed is not None and failed.kind == "protocol":
        failed = Failed("protocol", f"{failed.message}: {shown(content)}")
    return Answer("".join(texts), usage, failed)


def _events_of(content: bytes) -> list[Event]:
    """The events of a body; one that is a single JSON document is one event."""
    if content.lstrip()[:1] == b"{":
        return [Event(content)]
    splitter = EventSplitter()
    try:
        return [*splitter.feed(content), *filter(is_whole, splitter.feed(b"\n\n"))]
    except EventTooLong:
        return []


def _status_of(error: bytes) -> int:
    """The HTTP status that an error names; 500, a failure of the server, if it names none of an error."""
    try:
        value = msgspec.json.decode(error)
    except UNDECODABLE:
        return 500
    while isinstance(value, dict):
        code = str(value.get("code", value.get("error_code")))
        if re.fullmatch("[45][0-9]{2}", code):
            return int(code)
        value = value.get("error", value.get("response"))
    return 500


def error_in(chunk: Chunk) -> Failed | None:
    """The failure that a chunk reports."""
    for error in (chunk.error, *(choice.error for choice in chunk.choices)):
        if error is not NO_ERROR and bytes(error) not in _NO_ERRORS:
            return Failed("engine_error", error_words(bytes(error)))
    return None


_NO_ERRORS = frozenset({b"null", b"{}", b'""', b"[]", b"false", b"0"})


def worse_reason(before: str | None, new: str | None) -> str | None:
    """The one of two finish reasons of an answer that stands for a failure, or else the first."""
    if new is None or new in NO_REASON:
        return before
    if before is None or REASONS.get(new, "finish_reason") is not None:
        return new
    return before
