"""Damages kept inputs: the same corpus, words and seed always give the same inputs, so a failure can be made again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

MAX_BYTES = 1 << 16
_Item = TypeVar("_Item")
_MAX_REPEATED = 4096
_LITERAL = re.compile(rb'-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"[^"\n]{0,200}"|\b(?:true|false|null)\b')

EXTREMES = (
    *(
        b"0",
        b"-0",
        b"-1",
        b"1e999",
        b"-1e999",
        b"NaN",
        b"nan",
        b"Infinity",
        b"inf",
        b"1e308",
        b"5e-324",
        b"0.1",
        b"1e18",
    ),
    *(
        str(sign * 2**power + by).encode()
        for power in (8, 15, 16, 31, 32, 53, 63, 64)
        for by in (-1, 0)
        for sign in (1, -1)
    ),
    *(b"9" * 30, b"9" * 400, b"9" * 5000, b"1" + b"0" * 309, b"0x10", b"1_000", b"01", "٣".encode(), b"+1", b"1."),
)
STRANGE = (
    *(b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b"\\"),
    *(
        "\u202e\u200b\u2028\x85\u0301".encode(),
        b"\x1b]0;t\x07",
        b"\x1b[31m",
        b"\x9b2J",
        b"\r",
        b"\n",
        b"\r\n",
        b"\t",
        b"\x7f",
    ),
    *(b"<script>", b"[bold]", b"%s", b"{0}", b"../../x", b'"', b"'", b"`", b"|", b",", b":", b";", b"=", b"#", b" "),
    *(b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b'""', b'{"":null}', b'"\\ud83d"', b'"\xff"', b'"\x1b[2J"'),
)
_STEPS = (1, 1, 1, 2, 2, 3, 4, 8)
_NESTING = ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b'"', b""), (b"\x1b", b""), (b"<", b">"))


class Mutator:
    def __init__(self, corpus: Sequence[bytes], words: Sequence[bytes] = ()) -> None:
        """`words` are what the format knows: names of its keys, marks, keywords."""
        self._corpus = list(corpus) or [b""]
        self._words = (*words, *STRANGE, *EXTREMES)

    def extremes(self) -> Iterator[bytes]:
        """Every kept input with an extreme in the place of one value, for each of its values and each extreme."""
        for data in self._corpus:
            for found in _LITERAL.finditer(data):
                yield from (data[: found.start()] + extreme + data[found.end() :] for extreme in EXTREMES)

    def inputs(self, seed: int) -> Iterator[bytes]:
        """Endless, each of at most 64 KiB."""
        random = Random(seed)
        while True:
            data = _pick(self._corpus, random)
            for _ in range(_pick(_STEPS, random)):
                data = _pick(_WAYS, random)(self, data, random)[:MAX_BYTES]
            yield data

    def _flip(self, data: bytes, random: Random) -> bytes:
        changed = bytearray(data or b"\0")
        for _ in range(_pick((1, 1, 1, 4), random)):
            changed[_below(len(changed), random)] ^= 1 << _below(8, random)
        return bytes(changed)

    def _byte(self, data: bytes, random: Random) -> bytes:
        at = _place(data, random)
        return data[:at] + random.randbytes(_pick((1, 1, 2, 8), random)) + data[at + _below(2, random) :]

    def _insert(self, data: bytes, random: Random) -> bytes:
        at = _place(data, random)
        return data[:at] + _pick(self._words, random) + data[at:]

    def _replace(self, data: bytes, random: Random) -> bytes:
        """Another value in the place of a number, a quoted text or a keyword."""
        start, end = _literal(data, random)
        new = _pick(self._words if random.random() < 0.3 else EXTREMES, random)
        if data[start : start + 1] == b'"' and random.random() < 0.6:
            new = b'"' + _pick(self._words, random) + b'"'
        return data[:start] + new + data[end:]

    def _move(self, data: bytes, random: Random) -> bytes:
        """One value of the input in the place of another."""
        start, end = _literal(data, random)
        low, high = _literal(data, random)
        return data[:start] + data[low:high] + data[end:]

    def _remove(self, data: bytes, random: Random) -> bytes:
        low, high = _span(data, random)
        return data[:low] + data[high:]

    def _truncate(self, data: bytes, random: Random) -> bytes:
        return data[: _place(data, random)]

    def _repeat(self, data: bytes, random: Random) -> bytes:
        low, high = _span(data, random)
        times = _pick((1, 2, 3, 10, 100), random)
        return data[:low] + data[low:high][:_MAX_REPEATED] * times + data[low:]

    def _splice(self, data: bytes, random: Random) -> bytes:
        other = _pick(self._corpus, random)
        return data[: _place(data, random)] + other[_place(other, random) :]

    def _lines(self, data: bytes, random: Random) -> bytes:
        """Swap, drop or double a line."""
        lines = data.split(b"\n")
        one, other = _below(len(lines), random), _below(len(lines), random)
        match _below(3, random):
            case 0:
                lines[one], lines[other] = lines[other], lines[one]
            case 1:
                del lines[one]
            case _:
                lines.insert(other, lines[one])
        return b"\n".join(lines)

    def _nest(self, data: bytes, random: Random) -> bytes:
        start, end = _literal(data, random)
        opening, closing = _pick(_NESTING, random)
        depth = _pick((2, 10, 200, 1100, 5000), random)
        return data[:start] + opening * depth + data[start:end] + closing * (depth * _below(2, random)) + data[end:]


_WAYS: tuple[Callable[[Mutator, bytes, Random], bytes], ...] = (
    *(Mutator._flip, Mutator._byte, Mutator._insert, Mutator._replace, Mutator._replace, Mutator._replace),
    *(Mutator._move, Mutator._remove, Mutator._truncate, Mutator._repeat, Mutator._splice, Mutator._lines),
    Mutator._nest,
)


def _below(number: int, random: Random) -> int:
    return int(random.random() * number)  # a third of the time of `randrange`


def _pick(items: Sequence[_Item], random: Random) -> _Item:
    return items[int(random.random() * len(items))]


def _place(data: bytes, random: Random) -> int:
    return _below(len(data) + 1, random)


def _span(data: bytes, random: Random) -> tuple[int, int]:
    low = _place(data, random)
    return low, min(len(data), low + _pick((1, 2, 8, 32, 200), random))


def _literal(data: bytes, random: Random) -> tuple[int, int]:
    """Where the next number, quoted text or keyword after some place is; else that place."""
    at = _place(data, random)
    found = _LITERAL.search(data, at) or _LITERAL.search(data)
    return found.span() if found is not None else (at, at)
