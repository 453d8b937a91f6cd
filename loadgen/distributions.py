"""The distributions of lengths and of arrivals, in the syntax of profiles and the command line.

    256                          always
    uniform:64:512               from 64 to 512, all equally likely
    normal:512:128               mean and standard deviation
    lognormal:512:0.5            median, and the standard deviation of the logarithm
    normal:512:128:64:1024       normal or lognormal, kept within bounds
    0.7*256+0.3*normal:2048:256  a weighted mixture
    data                         as in the dataset

Invariant: a length is a pure function of one number from 0 to 1, so the draw of that number decides everything.
Workers parse these, too, so nothing here imports pydantic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

REPLAY = "replay"  # the arrival of a recorded schedule
MAX_TOKENS = 10_000_000
FROM_DATA = "data"
_TAIL = 4.0  # standard deviations after which a distribution without bounds is cut off
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_EXPECTED = (
    "expected an integer, uniform:LOW:HIGH, normal:MEAN:SD[:LOW:HIGH], lognormal:MEDIAN:SIGMA[:LOW:HIGH], "
    "a mixture such as 0.7*256+0.3*uniform:1:64, or data"
)


class Lengths(NamedTuple):
    """A distribution of lengths in tokens."""

    at: Callable[[float], int]  # the length of a request that has drawn this number from 0 to 1
    shortest: int
    longest: int

    @property
    def nominal(self) -> int:
        """The rounded mean, by which a stage is labelled."""
        if self.shortest == self.longest:
            return self.longest
        steps = 4096
        return max(1, round(sum(self.at((step + 0.5) / steps) for step in range(steps)) / steps))


def parse_lengths(text: str | int) -> Lengths:
    """The distribution that a text names, except `data`; raises a ValueError that says what was expected."""
    parts = str(text).replace(" ", "").split("+")
    if len(parts) == 1 and "*" not in parts[0]:
        return _single(parts[0])
    weighted = [part.partition("*") for part in parts]
    if not all(star and _NUMBER.fullmatch(weight) for weight, star, _ in weighted):
        raise ValueError(f"each part of a mixture has a weight, such as 0.7*256; {_EXPECTED}")
    return _mixture([float(weight) for weight, _, _ in weighted], [_single(part) for _, _, part in weighted])


def check_lengths_text(value: object) -> object:
    """Check a profile's lengths; returns a number as int, any other text without blanks; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(_EXPECTED)
    text = str(value).replace(" ", "")
    if text == FROM_DATA:
        return text
    parse_lengths(text)
    return int(text) if text.isdecimal() else text


def _single(text: str) -> Lengths:
    kind, *words = text.split(":")
    if kind.isdecimal() and kind.isascii() and not words:
        tokens = int(kind)
        if not 1 <= tokens <= MAX_TOKENS:
            raise ValueError(f"a length must be greater than or equal to 1 and at most {MAX_TOKENS} tokens")
        return Lengths(lambda _: tokens, tokens, tokens)
    if not all(_NUMBER.fullmatch(word) for word in words):
        raise ValueError(_EXPECTED)
    match kind, [float(word) for word in words]:
        case "uniform", [low, high]:
            least, most = _bounds(low, high)
            return Lengths(lambda share: min(most, least + int(share * (most - least + 1))), least, most)
        case "normal", [mean, sd, *clip] if len(clip) in (0, 2):
            bell = NormalDist(mean, _positive(sd))
            return _clipped(bell.inv_cdf, clip or [1, mean + _TAIL * sd])
        case "lognormal", [median, sigma, *clip] if len(clip) in (0, 2):
            log = NormalDist(math.log(_positive(median)), _positive(sigma))
            highest = median * math.exp(min(_TAIL * sigma, 50.0))
            return _clipped(lambda share: math.exp(min(50.0, log.inv_cdf(share))), clip or [1, highest])
        case _:
            raise ValueError(_EXPECTED)


def _clipped(inverse: Callable[[float], float], clip: list[float]) -> Lengths:
    low, high = _bounds(*clip)

    def at(share: float) -> int:
        if share <= 0.0:
            return low
        if share >= 1.0:
            return high
        return round(min(float(high), max(float(low), inverse(share))))

    return Lengths(at, low, high)


def _mixture(weights: list[float], parts: list[Lengths]) -> Lengths:
    total = sum(weights)
    if total <= 0:
        raise ValueError("the weights of a mixture add up to 0")

    def at(share: float) -> int:
        left = min(max(share, 0.0), math.nextafter(1.0, 0.0)) * total
        for weight, part in zip(weights, parts, strict=True):
            if left < weight:
                return part.at(left / weight)
            left -= weight
        return parts[-1].at(1.0)

    used = [part for weight, part in zip(weights, parts, strict=True) if weight > 0]
    return Lengths(at, min(part.shortest for part in used), max(part.longest for part in used))


def _bounds(low: float, high: float) -> tuple[int, int]:
    if not (1 <= low <= high <= MAX_TOKENS):
        raise ValueError(f"bounds must be tokens from 1 to {MAX_TOKENS}, the lower one first, not {low:g} and {high:g}")
    return int(low), int(high)


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("mean, median and deviation must be above 0")
    return value


def burstiness_of(arrival: str) -> float:
    """The shape of the gaps: 1 is Poisson, below it bursts, above it evens out, infinity is constant.

    Raises ValueError for anything but `poisson`, `constant` and `gamma:B`.
    """
    if arrival == "poisson":
        return 1.0
    if arrival == "constant":
        return math.inf
    match = re.fullmatch(r"gamma:([0-9]+(?:\.[0-9]+)?)", arrival)
    if match is None or not 0.001 <= float(match[1]) <= 1000:
        raise ValueError("expected poisson, constant, replay, or gamma:B with a burstiness B from 0.001 to 1000")
    return float(match[1])
