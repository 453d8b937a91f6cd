"""One record of a dataset, in any of the formats that are read: what is asked, and how long the answer was.

    sharegpt  a JSON array of {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}
    jsonl     a line each: {"prompt": text} or {"messages": [{"role", "content"}, ...]}, optional "output_tokens"
    text      a line each, the prompt itself
    trace     a line each: {"timestamp": ms, "input_length": n, "output_length": n}, ascending; "timestamp_s" in
              seconds; "hash_ids" say what prompts share, and are not replayed yet

A record that is not such is a ValueError whose text says what was expected.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Format = Literal["sharegpt", "jsonl", "text", "trace"]

CHARACTERS_A_TOKEN = 4  # an estimate, used only where a text stands for a number of tokens: vramp has no tokenizer

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
_ROLES |= {"system": "system"}


class Message(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class Entry(msgspec.Struct, frozen=True):
    """What one record asks for."""

    prompt: str = ""
    messages: tuple[Message, ...] = ()  # in place of `prompt`, for chats
    isl: int = 0  # tokens of the prompt: exact for a trace, else estimated
    osl: int | None = None  # tokens of the answer, if the record has them: estimated where it has the text
    at_s: float | None = None  # when a trace wants it
    shares: bool = False  # A trace says which blocks of the prompt others have too


class _Turn(msgspec.Struct):
    from_: str = msgspec.field(name="from")
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]


class _Line(msgspec.Struct):
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    output_tokens: int | None = None
    output_length: int | None = None


class _TraceLine(msgspec.Struct):
    input_length: int
    output_length: int
    timestamp: float | None = None
    timestamp_s: float | None = None
    hash_ids: msgspec.Raw = msgspec.Raw(b"[]")


_decode_conversation = msgspec.json.Decoder(_Conversation).decode
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_trace = msgspec.json.Decoder(_TraceLine).decode


def entry_of(raw: bytes, form: Format) -> Entry | None:
    """The record, or None for one that asks nothing (a conversation that a machine began); raises ValueError."""
    try:
        match form:
            case "sharegpt":
                return _conversation(_decode_conversation(raw))
            case "jsonl":
                return _line(_decode_line(raw))
            case "trace":
                return _trace(_decode_trace(raw))
            case "text":
                return _asked(raw.decode())
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8 text") from None
    except msgspec.DecodeError as error:  # a ValueError too, but without what was expected
        raise ValueError(f"expected {_SHAPES[form]}; {error}") from None


_SHAPES: dict[Format, str] = {
    "sharegpt": '{"conversations": [{"from": "human", "value": "..."}, ...]}',
    "jsonl": '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}',
    "trace": '{"timestamp": milliseconds, "input_length": tokens, "output_length": tokens}',
    "text": "a line of text",
}


def _asked(prompt: str, osl: int | None = None) -> Entry:
    return Entry(prompt=prompt, isl=_estimate(prompt), osl=osl)


def _conversation(document: _Conversation) -> Entry | None:
    """The first question and the length of its answer, as the published ShareGPT runs took them."""
    turns = document.conversations
    for turn in turns:
        if turn.from_ not in _ROLES:
            raise ValueError(f'expected "from" to be one of {", ".join(_ROLES)}, not {turn.from_!r}')
    first = next((number for number, turn in enumerate(turns) if _ROLES[turn.from_] != "system"), len(turns))
    if first + 1 >= len(turns) or _ROLES[turns[first].from_] != "user" or not turns[first].value.strip():
        return None
    return _asked(turns[first].value, _estimate(turns[first + 1].value))


def _line(line: _Line) -> Entry:
    osl = line.output_tokens if line.output_tokens is not None else line.output_length
    if osl is not None and osl < 1:
        raise ValueError(f"expected output_tokens of at least 1, not {osl}")
    if bool(line.prompt) == bool(line.messages):
        raise ValueError(f"expected {_SHAPES['jsonl']}, one of the two and not empty")
    if line.prompt:
        return _asked(line.prompt, osl)
    return Entry(messages=line.messages, isl=sum(_estimate(each.content) for each in line.messages), osl=osl)


def _trace(line: _TraceLine) -> Entry:
    at_s = line.timestamp_s if line.timestamp is None else line.timestamp / 1000
    if at_s is None or at_s < 0 or line.input_length < 1 or line.output_length < 1:
        raise ValueError(f"expected {_SHAPES['trace']}, none of them missing, negative or without tokens")
    shares = bytes(line.hash_ids) not in (b"[]", b"null")
    return Entry(isl=line.input_length, osl=line.output_length, at_s=at_s, shares=shares)


def _estimate(text: str) -> int:
    return max(1, round(len(text) / CHARACTERS_A_TOKEN))


def format_of(start: bytes, name: str) -> Format:
    """What a file holds, by its first bytes and, for plain text, its name; raises ValueError."""
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if name.endswith(".txt"):
        return "text"
    if start.startswith(b"["):
        return "sharegpt"
    if not start.startswith(b"{"):
        return "text"
    try:
        keys: Any = msgspec.json.decode(start.splitlines()[0])
    except msgspec.DecodeError:
        return "jsonl"
    return "trace" if {"timestamp", "timestamp_s"} & set(keys) else "jsonl"
