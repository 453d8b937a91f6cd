"""Prompts of an exact length, unique within a run, reproducible from the seed, and cheap to write.

Uniqueness comes first: the leading tokens spell the request's number in base len(vocabulary), so no two prompts share
even their first block and a prefix cache cannot flatter a ladder. Prompts that should share a prefix are composed of
pieces, and pieces with the same number are equal. The rest is a window on a long random text drawn from the seed, at a
position that follows from the number. The text is JSON from the start, so writing a piece is two slices: workers write
thousands a second between the events that they time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_REQUESTS_A_STAGE = 2**24
_MAX_PIECES = 2**96  # per stage; large, because pieces of a trace take their numbers from the trace
STAGES_A_RUN = 2**12
_MIN_TEXT = 2**16
_STRIDE = 40_503  # odd, so that the windows of 65,536 consecutive requests begin at different places

FALLBACK_IDS = tuple(range(300, 1000))
"""Token ids to use where the server cannot tokenize: above the special and byte tokens of common vocabularies, and
small enough to exist in all of them."""

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
"""Common English words, nearly all of them one token (with the leading space) in any vocabulary."""


ANCHOR = "the"  # the first word of every text: a word at the very beginning may take other tokens than after a space


class Piece(NamedTuple):
    """A stretch of tokens, determined by its stage and number."""

    stage: int
    number: int
    tokens: int


class RequestContent(NamedTuple):
    """The content of one request."""

    prompt: bytes  # JSON: a prompt, or the messages of a chat
    osl: int | None = None  # None: the stage's
    messages: bool = False
    ids: int | None = None  # tokens of a prompt of token ids; None for a text


class Prompts:
    """Writes prompts as JSON values."""

    def __init__(self, text: _RandomText, *, overhead: int, opening: bytes, separator: bytes, closing: bytes) -> None:
        self.are_ids = separator == b","  # and not text, of which only the server knows the tokens
        self._text = text
        self._overhead = overhead
        self._opening = opening
        self._separator = separator
        self._closing = closing

    def __call__(self, stage: int, index: int, isl: int) -> bytes:
        """A unique prompt of `isl` tokens."""
        return self.compose([Piece(stage, index, isl)])

    def content(self, pieces: Sequence[Piece], osl: int | None) -> RequestContent:
        """A request with these pieces as its prompt."""
        ids = sum(piece.tokens for piece in pieces) if self.are_ids else None
        return RequestContent(self.compose(pieces), osl, ids=ids)

    def compose(self, pieces: Sequence[Piece]) -> bytes:
        written, overhead = [], self._overhead
        for stage, number, tokens in pieces:
            written.append(self._text.prompt(stage, number, max(0, tokens - overhead)))
            overhead = max(0, overhead - tokens)
        return self._opening + b"".join(written).removesuffix(self._separator) + self._closing


def token_prompts(ids: Sequence[int], seed: int) -> Prompts:
    """Prompts as lists of token ids: the exact ISL without a tokenizer."""
    text = _RandomText([b"%d," % token for token in ids], seed)
    return Prompts(text, overhead=0, opening=b"[", separator=b",", closing=b"]")


def text_prompts(words: Sequence[str], seed: int, *, overhead: int) -> Prompts:
    """Prompts as text: an anchor, then one-token words.

    `overhead` tokens, the anchor's and those of the chat template, count towards the ISL.
    """
    text = _RandomText([json.dumps(f" {word}")[1:-1].encode() for word in words], seed)
    return Prompts(text, overhead=overhead, opening=json.dumps(ANCHOR)[:-1].encode(), separator=b"", closing=b'"')


class _RandomText:
    """A long random text of vocabulary entries, each with its separator."""

    def __init__(self, entries: Sequence[bytes], seed: int) -> None:
        self._entries = list(entries)
        self._seed = seed
        self._extend(2 * _MIN_TEXT)

    def _extend(self, length: int) -> None:
        generator = np.random.Generator(np.random.Philox(self._seed))
        positions = generator.integers(0, len(self._entries), size=length)
        sizes = np.array([len(entry) for entry in self._entries], dtype=np.int64)[positions]
        self._length = length
        self._text = b"".join([self._entries[position] for position in positions.tolist()])
        self._starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)])

    def prompt(self, stage: int, index: int, length: int) -> bytes:
        """`length` entries: the request's number, then a window on the text."""
        base = len(self._entries)
        limit = _REQUESTS_A_STAGE if index < _REQUESTS_A_STAGE else _MAX_PIECES
        number = _digits(index, base, limit) + _digits(stage, base, STAGES_A_RUN)
        header = b"".join([self._entries[digit] for digit in number[:length]])
        rest = max(0, length - len(number))
        if rest + _MIN_TEXT > self._length:
            # A longer draw begins with the shorter one, so prompts written earlier would come out the same.
            self._extend(rest + _MIN_TEXT)
        first = (index * _STRIDE + stage) % _MIN_TEXT
        return header + self._text[self._starts[first] : self._starts[first + rest]]


def _digits(number: int, base: int, limit: int) -> list[int]:
    """The digits of a number below `limit`, least significant first, always the same count."""
    return [number // power % base for power in _powers(base, limit)]


@lru_cache(maxsize=16)
def _powers(base: int, limit: int) -> tuple[int, ...]:
    places = max(1, math.ceil(math.log(limit) / math.log(base)))
    return tuple(base**place for place in range(places))
