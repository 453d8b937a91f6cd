"""Parses records of texts: ShareGPT conversations, JSON lines and plain lines. Those of traces are in `traces`.

Of a ShareGPT conversation, `vllm bench` sends the first turn, regardless of its speaker, asks for as many tokens as the
second turn has, and leaves out what is too short or too long. vramp does the same with estimated token counts, because
it has no tokenizer.
"""

from __future__ import annotations

from typing import Literal

import msgspec

TextFormat = Literal["sharegpt", "jsonl", "text"]

CHARACTERS_A_TOKEN = 4  # an estimate, used only to get token counts from text
_FEWEST_TOKENS, _MOST_PROMPT_TOKENS, _MOST_TOKENS = 4, 1024, 2048
"""Limits for ShareGPT conversations, as in `vllm bench`: for prompt and answer each, the prompt, and their sum."""
_LONGEST_ANSWER = 10_000_000  # tokens, as in a profile
LEFT_OUT = (
    f"fewer than two turns, one of fewer than {_FEWEST_TOKENS} tokens, a prompt of more than {_MOST_PROMPT_TOKENS}, "
    f"or more than {_MOST_TOKENS} in all"
)


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class DatasetRecord(msgspec.Struct, frozen=True):
    """The request that one record asks for."""

    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()  # instead of `prompt`, for chats
    isl: int = 0  # estimated tokens of the prompt
    osl: int | None = None  # tokens of the answer, if the record has them; estimated if it has the text


class _Turn(msgspec.Struct):
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
    """Parse a record; None for a conversation that is left out. Raises ValueError."""
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
    except msgspec.DecodeError as error:  # a ValueError too, but it does not say what was expected
        raise ValueError(f"expected {_SHAPES[form]}; {error}") from None


_SHAPES: dict[TextFormat, str] = {
    "sharegpt": '{"conversations": [{"from": "human", "value": "..."}, ...]}',
    "jsonl": '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}',
    "text": "a line of text",
}


def _asked(prompt: str, osl: int | None = None) -> DatasetRecord:
    return DatasetRecord(prompt=prompt, isl=_estimate(prompt), osl=osl)


def _conversation(document: _Conversation) -> DatasetRecord | None:
    if len(document.conversations) < 2:
        return None
    prompt, answer = (turn.value for turn in document.conversations[:2])
    isl, osl = _estimate(prompt), _estimate(answer)
    fits = min(isl, osl) >= _FEWEST_TOKENS and isl <= _MOST_PROMPT_TOKENS and isl + osl <= _MOST_TOKENS
    return _asked(prompt, osl) if fits else None


def _line(line: _JsonLine) -> DatasetRecord:
    osl = line.output_tokens if line.output_tokens is not None else line.output_length
    if osl is not None and not 1 <= osl <= _LONGEST_ANSWER:
        raise ValueError(f"expected output_tokens of at least 1 and at most {_LONGEST_ANSWER}, not {osl}")
    if bool(line.prompt) == bool(line.messages):
        raise ValueError(f"expected {_SHAPES['jsonl']}, one of the two and not empty")
    if line.prompt:
        return _asked(line.prompt, osl)
    return DatasetRecord(messages=line.messages, isl=sum(_estimate(each.content) for each in line.messages), osl=osl)


def _estimate(text: str) -> int:
    return max(1, round(len(text) / CHARACTERS_A_TOKEN))
