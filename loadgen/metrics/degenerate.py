"""What text no healthy engine writes, whatever it was asked: judged by its look, without a word of any language.

A prompt of random tokens may lead a healthy model into repeating a sentence, so only a loop of a few tokens counts.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Degeneracy = Literal["repeating", "unreadable", "blank"]

LEAST_EVENTS = 8  # a shorter answer may well be a number or a line end
_LONGEST_LOOP = 32  # characters
_LEAST_TURNS = 8
_LEAST_LOOPED = 24  # characters
_LOOPED_SHARE = 0.5
_UNREADABLE_SHARE = 0.25
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def degeneracy(text: str) -> tuple[Degeneracy | None, str]:
    """What is wrong with an answer, or with its beginning, and what it repeats; None where nothing is seen."""
    if not text.strip():
        return "blank", ""
    if text.count(_REPLACEMENT) >= _UNREADABLE_SHARE * len(text):
        return "unreadable", ""
    loop = loop_of(text)
    return "repeating" if loop else None, loop


def loop_of(text: str) -> str:
    """What at least half of a text repeats, begun where it sorts first; empty where nothing is."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    least = max(_LEAST_LOOPED, int(_LOOPED_SHARE * len(characters)))
    for length in range(1, min(_LONGEST_LOOP, len(characters) // _LEAST_TURNS) + 1):
        same = characters[length:] == characters[:-length]
        if np.count_nonzero(same) + length < least:
            continue
        breaks = np.flatnonzero(np.concatenate(([True], ~same, [True])))
        longest = int(np.argmax(np.diff(breaks)))
        start, looped = int(breaks[longest]), int(breaks[longest + 1] - breaks[longest]) - 1 + length
        if looped >= max(least, _LEAST_TURNS * length):
            loop = text[start : start + length]
            return min(loop[at:] + loop[:at] for at in range(length))
    return ""
