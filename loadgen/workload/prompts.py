"""Prompts of an exact length, unique within a run, reproducible from the seed, and cheap to write.

Uniqueness comes first: the leading tokens spell the request's number in base len(vocabulary), so no two prompts share
even their first block and a prefix cache cannot flatter a ladder. The rest is drawn from a generator keyed by (seed,
stage, index). A prompt is written straight as JSON, so that nothing is encoded on the timed path.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Prompts = Callable[[int, int, int], bytes]
"""(stage, index, isl) -> the JSON value of a prompt with isl tokens."""

_REQUESTS_A_STAGE = 2**24
_STAGES_A_RUN = 2**12

FALLBACK_IDS = tuple(range(300, 1000))
"""Token ids used where a server cannot tell: above the special and byte tokens of the common vocabularies, and small
enough to exist in all of them."""

WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an "
    "they which one you were her all she there would their we him been has when who will more no if out "
    "so said what up its about into than them can only other new some could time these two may then do "
    "first any my now such like our over man me even most made after also did many before must through "
    "back years where much your way well down should because each just those people how too little state "
    "good very make world still own see men work long get here between both life being under never day "
    "same another know while last might us great old year off come since against go came right used take "
    "three "
).split()
"""Common English words, nearly all of them one token with their leading space in any vocabulary."""


def token_prompts(ids: Sequence[int], seed: int) -> Prompts:
    """Prompts as lists of token ids: the exact ISL without a tokenizer."""
    width = len(str(max(ids))) + 1
    # Fixed-width entries (JSON allows the padding) turn "look up and join" into one numpy take.
    table = np.array([f"{token},".rjust(width) for token in ids], dtype=f"S{width}")

    def write(stage: int, index: int, isl: int) -> bytes:
        entries = table[_choices(len(table), seed, stage, index, isl)].tobytes()
        return b"[" + entries[:-1] + b"]"

    return write


def text_prompts(words: Sequence[str], seed: int, *, overhead: int) -> Prompts:
    """Prompts as text of one-token words; `overhead` tokens of the chat template count towards the ISL."""
    table = np.array([json.dumps(f" {word}")[1:-1] for word in words], dtype=object)

    def write(stage: int, index: int, isl: int) -> bytes:
        chosen = table[_choices(len(table), seed, stage, index, max(1, isl - overhead))]
        return b'"' + "".join(chosen)[1:].encode() + b'"'

    return write


def _choices(base: int, seed: int, stage: int, index: int, length: int) -> NDArray[np.int64]:
    """Positions in the vocabulary: the request's number in the first few, then random ones."""
    header = _digits(index, base, _REQUESTS_A_STAGE) + _digits(stage, base, _STAGES_A_RUN)
    generator = np.random.Generator(np.random.Philox(key=[seed, (stage << 32) | index]))
    positions = generator.integers(0, base, size=length)
    used = min(len(header), length)
    positions[:used] = header[:used]
    return positions


def _digits(number: int, base: int, limit: int) -> list[int]:
    """Digits of a number below `limit`, least significant first, always equally many."""
    places = max(1, math.ceil(math.log(limit) / math.log(base)))
    return [number // base**place % base for place in range(places)]
