"""The kinds of value in a profile: durations and limits with their units, bounded numbers."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e-[0-9]+)?")
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)\s*")


def parse_duration_s(value: object) -> float:
    """Seconds of `30`, `2.5` or a text with a unit: `500ms`, `30s`, `2m`, `1h`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise ValueError("expected a duration such as 30s, 500ms or 2m")
    return float(match[1]) * _UNITS_S[match[2]]


def parse_warmup(value: object) -> object:
    """Requests as they are, a time as a text in seconds."""
    return value if isinstance(value, int) else f"{parse_duration_s(value)}s"


def parse_slo_ms(value: object) -> float:
    """Milliseconds of a time that names its unit."""
    if not isinstance(value, str):
        raise ValueError("expected a time with its unit, such as 2s or 50ms")
    return parse_duration_s(value) * 1000.0


def parse_share(value: object) -> float:
    """A share of 0 to 1 from `1%` or `0.01`; a bare 1 could mean either, so it is refused."""
    text = str(value).strip()
    match = _NUMBER.fullmatch(text.removesuffix("%"))
    share = float(text.removesuffix("%")) if match is not None and not isinstance(value, bool) else -1.0
    most = 100.0 if text.endswith("%") else math.nextafter(1.0, 0.0)
    if not 0 <= share <= most:
        raise ValueError('expected a share such as "1%" or 0.01')
    return share / 100 if text.endswith("%") else share


def parse_base_url(value: object) -> object:
    """A server as its clients are told of it, `http://host:8000/v1`, without the `/v1`: every path here has its own."""
    return re.sub(r"(?<!/)/v1/?$", "", value) if isinstance(value, str) else value


def as_list(value: object) -> object:
    """A single value is a list of one."""
    return value if isinstance(value, list | tuple) else [value]


BaseUrl = Annotated[str, BeforeValidator(parse_base_url)]
Seconds = Annotated[float, BeforeValidator(parse_duration_s), Field(gt=0)]
Milliseconds = Annotated[float, BeforeValidator(parse_slo_ms)]
Share = Annotated[float, BeforeValidator(parse_share)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=100_000)]
Concurrencies = Annotated[list[Concurrency], BeforeValidator(as_list), Field(min_length=1)]
Rate = Annotated[float, Field(gt=0, le=1_000_000)]
Rates = Annotated[list[Rate], BeforeValidator(as_list)]
Warmup = Annotated[int | str, BeforeValidator(parse_warmup)]
Scalar = str | int | float | bool
