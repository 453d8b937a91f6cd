"""What is wrong with the text of a profile, and on which line: pure functions, asked at every pause in the typing.

The words are those that `vramp run` would print. The line is looked for by key, because a validated document knows
none; it is where to look, not a promise, and None where the text does not tell.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.errors import ProfileError
from loadgen.plan import plan_of
from loadgen.profile import build_profile, variant_names

_WHERE = "here"
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_TABLE = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_PART = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_ASSIGNED = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that keeps the text from being a profile."""

    words: str
    line: int | None = None  # from 1


def check_text(text: str, name: str) -> tuple[dict[str, Any], list[Problem]]:
    """The document, empty if it is no TOML, and all its problems; a variant is checked like the document itself.

    `name` is what it is called if it gives itself no name.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return {}, [_syntax_problem(str(error), text)]
    document.setdefault("name", name)
    found: dict[str, Problem] = {}
    for variant in (None, *variant_names(document)):
        for problem in _problems_of(document, variant, text):
            found.setdefault(problem.words.removeprefix(f"variant {variant}: "), problem)
    return document, list(found.values())


def _syntax_problem(message: str, text: str) -> Problem:
    match = _AT_LINE.search(message)
    if match is not None:
        return Problem(message[: match.start()].strip(), int(match[1]))
    return Problem(message, max(1, len(text.splitlines())))


def _problems_of(document: dict[str, Any], variant: str | None, text: str) -> Iterator[Problem]:
    try:
        plan_of(build_profile(document, where=_WHERE, variant=variant))
    except ProfileError as error:
        prefix = f"variant {variant}: " if variant is not None else ""
        for line in str(error).splitlines():
            words = line.removeprefix(f"{_WHERE}: ")
            yield Problem(f"{prefix}{words}", _line_of_words(text, words, variant))


def _line_of_words(text: str, words: str, variant: str | None) -> int | None:
    key = _KEY.match(words)
    if key is None:
        return None
    path = key[0].strip(".").split(".")
    return (line_of(text, ["variants", variant, *path]) if variant is not None else None) or line_of(text, path)


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line, from 1, that sets a key or else the nearest table above it that has a line of its own."""
    best, best_depth = None, 0
    for number, found in _keys_by_line(text):
        if len(found) > best_depth and found == list(path[: len(found)]):
            best, best_depth = number, len(found)
    return best


def _keys_by_line(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each line that opens a table or sets a key, and its whole path; tables of an array count from 0."""
    table: list[str] = []
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        opened = _TABLE.match(line)
        assigned = _ASSIGNED.match(line)
        if opened is not None:
            table = _parts(opened[2])
            if opened[1] == "[[":
                counts[opened[2]] = counts.get(opened[2], -1) + 1
                table = [*table, str(counts[opened[2]])]
            yield number, table
        elif assigned is not None:
            yield number, [*table, *_parts(assigned[1])]


def _parts(key: str) -> list[str]:
    return [part.strip().strip("\"'") for part in key.split(".")]
