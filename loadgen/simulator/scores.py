"""Log probabilities like a trained model's, in the three shapes in which vLLM returns them.

A token's log probability depends on itself and the previous token, so a text has the same score every time; over many
tokens they are exponentially distributed with a mean of `MEAN_NATS` below zero, a perplexity of about six. While other
requests run, each varies by the engine's `score_noise`, as sums do in another batch size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from struct import pack
from typing import Any
from zlib import crc32

from loadgen.simulator import tokens

MEAN_NATS = 1.8
UNTRAINED_NATS = math.log(tokens.VOCABULARY)  # nats per token of an untrained model
MAX_TOP = 20  # vLLM's --max-logprobs
_STEPS = 1 << 20


Entry = dict[int, dict[str, Any]] | None


@dataclass(slots=True, kw_only=True)
class Scores:
    """The log probabilities that a request asked for, and what a fault makes of them."""

    prompt: Sequence[int]
    prompt_top: int | None  # alternatives for each prompt token; None without `prompt_logprobs`
    top: int | None  # the same for `logprobs`
    echo: bool  # the prompt comes back before the answer
    prompt_only: bool  # with `echo`: return only the prompt
    noise: Random
    shift: float = 0.0
    untrained: bool = False
    known: int | None = None  # how many prompt tokens are scored; None: all

    def parts(self, answer: Sequence[int], spread: float) -> dict[str, Any]:
        """The fields of the response that describe its tokens; `spread` is the standard deviation of each score."""
        prompt = self._entries(None, self.prompt, max(self.prompt_top or 0, self.top or 0), spread)
        if self.known is not None:
            prompt[self.known :] = [None] * len(prompt[self.known :])
        echoed = self.prompt if self.echo else ()
        shown = () if self.prompt_only else answer
        logprobs = None
        if self.top is not None:
            after = self._entries(self.prompt[-1], shown, self.top, spread)
            logprobs = completion_logprobs([*echoed, *shown], [*(prompt if self.echo else ()), *after])
        prompt_logprobs = None if self.prompt_top is None else prompt
        return {"text": tokens.text([*echoed, *shown]), "prompt_logprobs": prompt_logprobs, "logprobs": logprobs}

    def _entries(self, before: int | None, ids: Sequence[int], top: int, spread: float) -> list[Entry]:
        return [self._entry(*pair, top, spread) for pair in zip([before, *ids], ids, strict=False)]

    def _entry(self, before: int | None, token: int, top: int, spread: float) -> Entry:
        """The token itself, then its likeliest alternatives; None for the first token, which has no score."""
        if before is None:
            return None
        value = -UNTRAINED_NATS if self.untrained else log_probability(before, token)
        value = min(0.0, value + self.shift + (self.noise.gauss(0.0, spread) if spread else 0.0))
        rank = max(1, int(math.exp(-value)))
        values = {token: (value, rank)}
        for other in range(1, top + 1):
            likelier = value * other / rank if other < rank else value - 0.1 * (other - rank)
            values |= {(token + other) % tokens.VOCABULARY: (likelier, other)} if other != rank else {}
        return {
            number: {"logprob": logprob, "rank": rank, "decoded_token": tokens.piece(number)}
            for number, (logprob, rank) in values.items()
        }


def log_probability(before: int, token: int) -> float:
    """In nats, never above zero."""
    step = crc32(pack("<II", before, token)) % _STEPS
    return MEAN_NATS * math.log((step + 0.5) / _STEPS)


def completion_logprobs(ids: Sequence[int], entries: Sequence[Entry]) -> dict[str, list[Any]]:
    """OpenAI's `logprobs` of a completion: a list per property, with null for a token without a score."""
    pieces = [tokens.piece(number) for number in ids]
    offsets = [0]
    for piece in pieces[:-1]:
        offsets.append(offsets[-1] + len(piece))
    own = [None if entry is None else entry[number]["logprob"] for number, entry in zip(ids, entries, strict=True)]
    tops = [
        None if entry is None else {each["decoded_token"]: each["logprob"] for each in entry.values()}
        for entry in entries
    ]
    return {"text_offset": offsets, "token_logprobs": own, "tokens": pieces, "top_logprobs": tops}
