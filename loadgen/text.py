"""Text from outside, made harmless for a terminal: what a server says must not move a cursor or hide a word."""

from __future__ import annotations

import re

# Control characters (C0 but for the newline, DEL, C1) and those that change the direction of writing.
_HARMFUL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")


def harmless(text: str) -> str:
    """The text with every run of control characters replaced by a visible mark; newlines stay."""
    return _HARMFUL.sub("\N{SYMBOL FOR SUBSTITUTE FORM TWO}", text)
