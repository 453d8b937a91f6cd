"""The requests that check whether the engine's output is right, and how their answers are read.

`canary_texts.json` has the texts for scoring: prose, code, arithmetic and two more languages, because a fault may
affect only part of the vocabulary; and prompts whose continuation is nearly certain, so that a greedy answer rarely
depends on a near tie. Never change one, or its scores are no longer comparable with earlier ones; add another instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec

from loadgen.errors import UNDECODABLE
from loadgen.schema.output import ScoreMethod
from loadgen.stream import ending
from loadgen.stream.events import Usage

_KNOWN: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("canary_texts.json").read_text("utf-8"))
TEXTS, PROMPTS = _KNOWN["scored"], _KNOWN["answered"]
ANSWER_TOKENS = 16
METHODS: tuple[ScoreMethod, ...] = get_args(ScoreMethod)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Score(NamedTuple):
    """The mean log probability of a text's tokens, in nats a token."""

    mean: float
    scored: int
    tokens: int  # in the prompt; all but the first can be scored
    output_tokens: int


def score_request(method: ScoreMethod, model: str, text: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a request that scores a text; generates one token, because some servers require it."""
    body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0}
    if method == "chat":
        return CHAT, body | {"messages": [{"role": "user", "content": text}], "prompt_logprobs": 0}
    scored = {"prompt_logprobs": 0} if method == "prompt_logprobs" else {"echo": True, "logprobs": 1}
    return COMPLETIONS, body | {"prompt": text} | scored


def answer_request(prompt: str, model: str, options: Mapping[str, object], *, chat: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of a greedy answer, streamed so that its first token has a time."""
    body = {"model": model, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}, **options}
    if chat:
        return CHAT, body | {"messages": [{"role": "user", "content": prompt}]}
    return COMPLETIONS, body | {"prompt": prompt}


class _Logprob(msgspec.Struct):
    logprob: float | None = None


_Prompt = list[dict[str, _Logprob] | None]


class _Tokens(msgspec.Struct):
    token_logprobs: list[float | None] = []


class _ScoredChoice(msgspec.Struct):
    prompt_logprobs: _Prompt | None = None
    logprobs: _Tokens | None = None


class _Scored(msgspec.Struct):
    choices: list[_ScoredChoice] = []
    prompt_logprobs: _Prompt | None = None  # for chat requests
    usage: Usage | None = None


def read_score(method: ScoreMethod, content: bytes) -> Score:
    """The score in an answer; raises `ValueError` if there is none, or an impossible one."""
    failed = ending.read_answer(content).failed
    # What is scored is the prompt: no more is needed of the answer than that the engine did not give it up.
    if failed is not None and failed.kind in ("aborted", "engine_error", "finish_reason"):
        raise ValueError(f"the answer failed: {failed.message}")
    try:
        scored = msgspec.json.decode(content, type=_Scored)
    except UNDECODABLE as error:
        raise ValueError(f"the answer is not that of a completion: {error}") from None
    usage = scored.usage or Usage()
    values = _values(method, scored, usage.prompt_tokens or 0)
    known = [value for value in values if value is not None]
    if not known:
        raise ValueError("the answer has no log probabilities of the prompt")
    if not all(math.isfinite(value) and value <= 0 for value in known):
        raise ValueError("the answer has log probabilities above 0, or that are no numbers")
    return Score(sum(known) / len(known), len(known), len(values), usage.completion_tokens or 0)


def _values(method: ScoreMethod, scored: _Scored, prompt_tokens: int) -> Sequence[float | None]:
    choice = next(iter(scored.choices), _ScoredChoice())
    if method == "echo":
        echoed = choice.logprobs.token_logprobs if choice.logprobs is not None else []
        # Only the prompt, without the token generated after it.
        return echoed[: prompt_tokens or len(echoed) - 1]
    entries = choice.prompt_logprobs if method == "prompt_logprobs" else scored.prompt_logprobs
    # The prompt's own token comes first, before likelier ones.
    return [next(iter(entry.values())).logprob if entry else None for entry in entries or ()]


def read_answer(content: bytes) -> ending.Answer:
    """The answer in an event stream; raises `ValueError` if it failed, as a stream of the load would have."""
    answer = ending.read_answer(content)
    if answer.failed is not None:
        raise ValueError(f"the answer failed: {answer.failed.message}")
    return answer
