"""Parses records of texts: conversations, prompts and plain lines. Those of traces are in `traces`.

Of a ShareGPT conversation, `vllm bench` sends the first turn, regardless of its speaker, asks for as many tokens as the
second turn has, and leaves out what is too short or too long. vramp does the same with estimated token counts, because
it has no tokenizer; only a system turn at the beginning is sent in front of the prompt instead of being the prompt.

The names of keys differ between publications: `conversations` or `conversation`, `from` and `value` or `role` and
`content`. A content may be a list of parts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

TextFormat = Literal["sharegpt", "jsonl", "text"]

CHARACTERS_A_TOKEN = 4  # an estimate, used only to get token counts from text
_MIN_TOKENS, _MAX_PROMPT_TOKENS, _MAX_TOKENS = 4, 1024, 2048
"""Limits for ShareGPT conversations, as in `vllm bench`: for prompt and answer each, the prompt, and their sum."""
_MAX_ANSWER = 10_000_000  # tokens, as in a profile
_NO_TEXT = "without text"
_NOT_TEXT = "with images or other parts that are not text"
_FEW_TURNS = "with fewer than two turns"
_SHORT = f"with a turn of fewer than {_MIN_TOKENS} tokens"
_LONG_PROMPT = f"with a prompt of more than {_MAX_PROMPT_TOKENS} tokens"
_LONG = f"with more than {_MAX_TOKENS} tokens in all"

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant"}
_TOOLS = ("tool", "function")  # their turns belong to calls, which are not sent


class DatasetRecord(msgspec.Struct, frozen=True):
    """The request that one record asks for; with both `prompt` and `messages`, whichever the endpoint takes."""

    prompt: str = ""
    messages: tuple[dict[str, str], ...] = ()
    isl: int = 0  # estimated tokens of the prompt
    osl: int | None = None  # tokens of the answer, if the record has them; estimated if it has the text


class _Part(msgspec.Struct):
    text: str | None = None


_Content = str | list[_Part | str] | None


class _Turn(msgspec.Struct):
    value: _Content = None
    content: _Content = None
    speaker: str | None = msgspec.field(name="from", default=None)
    role: str | None = None


class _Record(msgspec.Struct):
    prompt: str | UnsetType | None = UNSET
    messages: list[_Turn] | UnsetType | None = UNSET
    conversations: list[_Turn] | UnsetType | None = UNSET
    conversation: list[_Turn] | UnsetType | None = UNSET
    output_tokens: int | None = None
    output_length: int | None = None


_decode = msgspec.json.Decoder(_Record, strict=False).decode  # 5.0 is a count, too
_SHAPE = (
    '{"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]} or '
    '{"conversations": [{"from": "human", "value": "..."}, ...]}'
)


def parse_record(raw: bytes, form: TextFormat) -> DatasetRecord | str:
    """Parse a record; why it is left out, if it is. Raises ValueError."""
    try:
        return _prompt(raw.decode()) if form == "text" else _parsed(_decoded(raw))
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8 text") from None
    except msgspec.DecodeError as error:  # a ValueError too, but it does not say what was expected
        raise ValueError(f"expected {_SHAPE}; {error}") from None


def _decoded(raw: bytes) -> _Record:
    try:
        return _decode(raw)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            # It may be half of a surrogate pair, which JSON can hold and UTF-8 cannot.
            text = json.dumps(json.loads(raw), ensure_ascii=False)
        except ValueError:
            raise error from None
        return _decode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _prompt(prompt: str, osl: int | None = None) -> DatasetRecord:
    return DatasetRecord(prompt=prompt, isl=_estimate(prompt), osl=osl)


def _parsed(record: _Record) -> DatasetRecord | str:
    osl = record.output_tokens if record.output_tokens is not None else record.output_length
    if osl is not None and not 1 <= osl <= _MAX_ANSWER:
        raise ValueError(f"expected output_tokens of at least 1 and at most {_MAX_ANSWER}, not {osl}")
    if record.prompt and record.messages:
        raise ValueError(f"expected {_SHAPE}, one of them and not both")
    if record.prompt:
        return _prompt(record.prompt, osl)
    if record.messages:
        return _chat(record.messages, osl)
    for turns in (record.conversations, record.conversation):
        if turns is not UNSET:
            return _conversation(turns or [], osl)
    if None in (record.prompt, record.messages):
        return _NO_TEXT
    raise ValueError(f"expected {_SHAPE}, not empty")


def _chat(turns: Sequence[_Turn], osl: int | None) -> DatasetRecord | str:
    messages = []
    for turn in turns:
        if _is_not_text(turn):
            return _NOT_TEXT
        role, text = _role(turn), _text(turn)
        if text and role not in _TOOLS:
            messages.append({"role": role, "content": text})
    if not messages:
        return _NO_TEXT
    return DatasetRecord(messages=tuple(messages), isl=sum(_estimate(each["content"]) for each in messages), osl=osl)


def _conversation(turns: Sequence[_Turn], osl: int | None) -> DatasetRecord | str:
    """The first turn as the prompt, the second one as the answer."""
    system = _text(turns[0]) if turns and _role(turns[0]) == "system" else None
    first_two = turns[1:3] if system is not None else turns[:2]
    if len(first_two) < 2:
        return _FEW_TURNS
    if any(map(_is_not_text, first_two)):
        return _NOT_TEXT
    prompt, answer = map(_text, first_two)
    if prompt is None or answer is None:
        return _NO_TEXT
    whole = f"{system}\n\n{prompt}" if system else prompt
    isl, answer_tokens = _estimate(whole), _estimate(answer)
    if min(isl, answer_tokens) < _MIN_TOKENS:
        return _SHORT
    if isl > _MAX_PROMPT_TOKENS:
        return _LONG_PROMPT
    if isl + answer_tokens > _MAX_TOKENS:
        return _LONG
    chat = ({"role": "system", "content": system}, {"role": "user", "content": prompt}) if system else ()
    return DatasetRecord(whole, chat, isl, osl or answer_tokens)


def _role(turn: _Turn) -> str:
    named = turn.role or turn.speaker or "user"
    return _ROLES.get(named, named)


def _content(turn: _Turn) -> _Content:
    return turn.content if turn.content is not None else turn.value


def _is_not_text(turn: _Turn) -> bool:
    content = _content(turn)
    return isinstance(content, list) and any(isinstance(part, _Part) and part.text is None for part in content)


def _text(turn: _Turn) -> str | None:
    content = _content(turn)
    if not isinstance(content, list):
        return content
    return "\n".join(part if isinstance(part, str) else part.text or "" for part in content)


def _estimate(text: str) -> int:
    return max(1, round(len(text) / CHARACTERS_A_TOKEN))
