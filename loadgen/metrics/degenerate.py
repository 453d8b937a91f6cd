"""Recognises text that no healthy engine writes, whatever the prompt, by its form and in any language.

A prompt of random tokens may make a healthy model repeat a sentence, so only loops of a few tokens count.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Degeneracy = Literal["repeating", "unreadable", "blank"]

MIN_EVENTS = 8  # a shorter answer may well be a number or a newline
_MAX_LOOP = 32  # characters
_MIN_TURNS = 8
_MIN_LOOPED = 24  # characters
_LOOPED_SHARE = 0.5
_UNREADABLE_SHARE = 0.25
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def degeneracy(text: str) -> tuple[Degeneracy | None, str]:
    """The flaw of an answer or its beginning, and the repeated text; None if there is no flaw."""
    if not text.strip():
        return "blank", ""
    if text.count(_REPLACEMENT) >= _UNREADABLE_SHARE * len(text):
        return "unreadable", ""
    loop = loop_of(text)
    return "repeating" if loop else None, loop


def loop_of(text: str) -> str:
    """The text whose repetition fills at least half of `text`, rotated to a canonical start; empty if there is none."""
    characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    least = max(_MIN_LOOPED, int(_LOOPED_SHARE * len(characters)))
    for length in range(1, min(_MAX_LOOP, len(characters) // _MIN_TURNS) + 1):
        same = characters[length:] == characters[:-length]
        if np.count_nonzero(same) + length < least:
            continue
        breaks = np.flatnonzero(np.concatenate(([True], ~same, [True])))
        longest = int(np.argmax(np.diff(breaks)))
        start, looped = int(breaks[longest]), int(breaks[longest + 1] - breaks[longest]) - 1 + length
        if looped >= max(least, _MIN_TURNS * length):
            loop = text[start : start + length]
            return min(loop[at:] + loop[:at] for at in range(length))
    return ""
