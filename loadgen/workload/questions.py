"""Questions with one right answer, a number: vramp's own, or a file in the format of GSM8K.

vramp's own are sums, differences, products and looked-up values, the same at every call, with two worked examples so
that a base model knows what to do. They are easy on purpose: they show whether an engine computes what its model would
answer, not how good the model is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from random import Random

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.places import expanded, read_whole

_SEED = "vramp questions 1"  # never change it: answers to other questions cannot be compared
_MARK = "####"  # before the answer, in GSM8K
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_NAMES = "Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jana Kai Lea".split()
_LISTED = 8
_HOW = "Answer with the number alone."
_HOW_IN_GSM8K = f"Solve it step by step, and write the answer as a number after {_MARK} at the end."
_EXAMPLES = f"Q: What is 12 + 30? {_HOW}\nA: 42\n\nQ: What is 7 * 8? {_HOW}\nA: 56\n\n"


class Question(msgspec.Struct, frozen=True):
    """A prompt, and the number that answers it."""

    prompt: str
    answer: str

    def is_answered_by(self, text: str) -> bool:
        """Whether the answer gives the right number: the one after the mark, or else the last before a new question."""
        text = text.rpartition("</think>")[2].partition("\nQ:")[0]
        _, mark, marked = text.partition(_MARK)
        numbers = _NUMBER.findall(marked if mark else text)
        return bool(numbers) and _value(numbers[0] if mark else numbers[-1]) == _value(self.answer)


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


def questions_of(path: str | None, count: int) -> Sequence[Question]:
    """The first questions of a file, or of vramp's own; raises `ProfileError` for a file without such questions."""
    return list(islice(_own() if path is None else _in_file(Path(expanded(path))), count))


def _own() -> Iterator[Question]:
    random = Random(_SEED)
    while True:
        a, b, factor = random.randrange(100, 1000), random.randrange(100, 1000), random.randrange(2, 10)
        yield _question(f"What is {a} + {b}?", a + b)
        yield _question(f"What is {max(a, b)} - {min(a, b)}?", max(a, b) - min(a, b))
        yield _question(f"What is {a} * {factor}?", a * factor)
        codes = {name: random.randrange(1000, 10_000) for name in random.sample(_NAMES, _LISTED)}
        name = random.choice(list(codes))
        listed = ", ".join(f"{each} {code}" for each, code in codes.items())
        yield _question(f"These are codes: {listed}. What is the code of {name}?", codes[name])


def _question(question: str, answer: int) -> Question:
    return Question(f"{_EXAMPLES}Q: {question} {_HOW}\nA:", str(answer))


class _Row(msgspec.Struct):
    question: str
    answer: str


def _in_file(path: Path) -> Iterator[Question]:
    try:
        rows = read_whole(path).removeprefix(b"\xef\xbb\xbf").splitlines()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        why = getattr(error, "strerror", None) or error
        raise ProfileError(f"accept.questions = {str(path)!r}: cannot be read: {why}") from error
    if not any(map(bytes.strip, rows)):
        raise ProfileError(f"accept.questions = {str(path)!r}: has no question")
    for number, text in enumerate(rows, start=1):
        if not text.strip():
            continue
        try:
            row = msgspec.json.decode(text, type=_Row)
        except UNDECODABLE as error:
            raise ProfileError(f"{path}:{number}: not a question as in GSM8K: {error}") from error
        answer = _NUMBER.search(row.answer.partition(_MARK)[2])
        if answer is None:
            raise ProfileError(f"{path}:{number}: the answer has no number after {_MARK}")
        yield Question(f"{row.question}\n{_HOW_IN_GSM8K}", answer[0])
