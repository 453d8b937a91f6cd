"""Records of texts: ShareGPT's conversations, lines of JSON, lines of text. Those of traces are in `traces`."""

from __future__ import annotations

from typing import Literal

import msgspec

TextFormat = Literal["sharegpt", "jsonl", "text"]

CHARACTERS_A_TOKEN = 4  # an estimate, used only where a text stands for a number of tokens: vramp has no tokenizer

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
_ROLES |= {"system": "system"}


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class DatasetRecord(msgspec.Struct, frozen=True):
    """What one record asks for."""

    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()  # in place of `prompt`, for chats
    isl: int = 0  # tokens of the prompt, estimated
    osl: int | None = None  # tokens of the answer, if the record has them: estimated where it has the text


class _Turn(msgspec.Struct):
    from_: str = msgspec.field(name="from")
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]


class _JsonLine(msgspec.Struct):
    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()
    output_tokens: int | None = None
    output_length: int | None = None


_decode_conversation = msgspec.json.Decoder(_Conversation).decode
_decode_line = msgspec.json.Decoder(_JsonLine).decode


def parse_record(raw: bytes, form: TextFormat) -> DatasetRecord | None:
    """The record, or None for one that asks nothing (a conversation that a machine began); raises ValueError."""
    try:
        match form:
            case "sharegpt":
                return _conversation(_decode_conversation(raw))
            case "jsonl":
                return _line(_decode_line(raw))
            case "text":
                return _asked(raw.decode())
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8 text") from None
    except msgspec.DecodeError as error:  # a ValueError too, but without what was expected
        raise ValueError(f"expected {_SHAPES[form]}; {error}") from None


_SHAPES: dict[TextFormat, str] = {
    "sharegpt": '{"conversations": [{"from": "human", "value": "..."}, ...]}',
    "jsonl": '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}',
    "text": "a line of text",
}


def _asked(prompt: str, osl: int | None = None) -> DatasetRecord:
    return DatasetRecord(prompt=prompt, isl=_estimate(prompt), osl=osl)


def _conversation(document: _Conversation) -> DatasetRecord | None:
    """The first question and the length of its answer, as the published ShareGPT runs took them."""
    turns = document.conversations
    for turn in turns:
        if turn.from_ not in _ROLES:
            raise ValueError(f'expected "from" to be one of {", ".join(_ROLES)}, not {turn.from_!r}')
    first = next((number for number, turn in enumerate(turns) if _ROLES[turn.from_] != "system"), len(turns))
    if first + 1 >= len(turns) or _ROLES[turns[first].from_] != "user" or not turns[first].value.strip():
        return None
    return _asked(turns[first].value, _estimate(turns[first + 1].value))


def _line(line: _JsonLine) -> DatasetRecord:
    osl = line.output_tokens if line.output_tokens is not None else line.output_length
    if osl is not None and osl < 1:
        raise ValueError(f"expected output_tokens of at least 1, not {osl}")
    if bool(line.prompt) == bool(line.messages):
        raise ValueError(f"expected {_SHAPES['jsonl']}, one of the two and not empty")
    if line.prompt:
        return _asked(line.prompt, osl)
    return DatasetRecord(messages=line.messages, isl=sum(_estimate(each.content) for each in line.messages), osl=osl)


def _estimate(text: str) -> int:
    return max(1, round(len(text) / CHARACTERS_A_TOKEN))
