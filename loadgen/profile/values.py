"""The kinds of value in a profile: durations and limits with units, bounded numbers, arrivals, names of limits.

`reads` describes a key's values where its type alone does not; the profile reference shows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from itertools import pairwise
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from loadgen.distributions import REPLAY, burstiness_of, check_lengths_text
from loadgen.system import ALL_CPUS, parse_cpus

MAX_CONCURRENCY = 100_000
MAX_REQUESTS = 1_000_000_000
MIN_RATE, MAX_RATE = 0.001, 1_000_000.0
_MAX_S = 1e9  # as in a journal
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e-[0-9]+)?")
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)\s*")
_OVER_STAGE = re.compile(r"(ttft|ttft_from_intended|tpot|itl|e2e)_(mean|p([1-9][0-9]?|9[0-9]{2,3}))")
_PER_STREAM = ("ttft", "tpot", "itl", "e2e")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = "accept connection content-length content-type expect host transfer-encoding user-agent".split()


class ProfileTable(BaseModel):
    """A table of the document: frozen, without unknown keys, each key described by the docstring under it."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


def parse_duration_s(value: object) -> float:
    """Seconds of `30`, `2.5` or a text with a unit: `500ms`, `30s`, `2m`, `1h`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif (match := _DURATION.fullmatch(str(value))) is not None:
        seconds = float(match[1]) * _UNITS_S[match[2]]
    else:
        raise ValueError("expected a duration such as 30s, 500ms or 2m")
    if not abs(seconds) <= _MAX_S:
        raise ValueError(f"expected a duration of at most {_MAX_S:g} s")
    return float(seconds)


def _parse_warmup(value: object) -> object:
    """An int is a number of requests; a text is a time, returned as text in seconds."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else parse_duration_s(value)
    if not 0 <= number <= MAX_REQUESTS:
        raise ValueError(f"expected up to {MAX_REQUESTS:,} requests, or a time such as 5s")
    return number if isinstance(number, int) else f"{number}s"


def _parse_slo_ms(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError("expected a time with its unit, such as 2s or 50ms")
    return parse_duration_s(value) * 1000.0


def parse_share(value: object) -> float:
    """A share from 0 to 1, from `1%` or `0.01`; a bare 1 could mean either and is refused."""
    text = str(value).strip()
    match = _NUMBER.fullmatch(text.removesuffix("%"))
    share = float(text.removesuffix("%")) if match is not None and not isinstance(value, bool) else -1.0
    most = 100.0 if text.endswith("%") else math.nextafter(1.0, 0.0)
    if not 0 <= share <= most:
        raise ValueError('expected a share such as "1%" or 0.01')
    return share / 100 if text.endswith("%") else share


def _without_v1(value: object) -> object:
    """A base URL without the trailing `/v1` that OpenAI clients use: every path in vramp has its own."""
    return re.sub(r"(?<!/)/v1/?$", "", value) if isinstance(value, str) else value


def is_http_url(url: str) -> bool:
    """Whether it is an HTTP URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that are not closed, or a port that is none
        return False


def _check_page_url(url: str) -> str:
    if not is_http_url(url):
        raise ValueError("expected a URL such as http://host:9400/metrics")
    return url


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


def _check_ladder(value: object) -> object:
    if value == []:
        raise ValueError("an empty ladder; expected the highest load, such as 64, or a list, such as [1, 8, 64]")
    return value


def _check_arrival(arrival: str) -> str:
    if arrival != REPLAY:
        burstiness_of(arrival)
    return arrival


def _check_cpus(text: str) -> str:
    if text != ALL_CPUS and not parse_cpus(text):
        raise ValueError(f'expected CPUs as Linux lists them, such as "8-15", or "{ALL_CPUS}"')
    return text


def mean_rate(points: Sequence[tuple[float, float]]) -> float:
    requests = sum((t1 - t0) * (r0 + r1) / 2 for (t0, r0), (t1, r1) in pairwise(points))
    return requests / (points[-1][0] - points[0][0])


def _check_rate_points(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if points and len(points) < 2:
        raise ValueError("expected at least two points, such as [[0, 1], [60, 10]]")
    if any(later <= earlier for (earlier, _), (later, _) in pairwise(points)):
        raise ValueError("expected points in ascending time")
    if points and mean_rate(points) < MIN_RATE:
        raise ValueError(f"expected a mean rate of {MIN_RATE:g} at least")
    return points


def _check_header_name(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a header")
    if name.lower() in _OWN_HEADERS:
        raise ValueError(f"{name} is set by vramp")
    return name


def _check_header_text(text: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise ValueError("expected the value of a header: printable ASCII")
    return text


def _check_address(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        raise ValueError(f"expected an IP address of this machine, not {address!r}") from None


def slo_problem(name: str) -> str | None:
    """Why a name is not a measurable limit; None if it is."""
    if name in _PER_STREAM or _OVER_STAGE.fullmatch(name) is not None:
        return None
    return (
        f"slo.{name}: expected a metric and a statistic, such as ttft_p99 or tpot_mean, "
        f"or {', '.join(_PER_STREAM)} alone for a limit that each stream must meet"
    )


def limit_of(name: str) -> tuple[str, float | None]:
    """Metric and percentile of a limit over a stage, None for the mean: `ttft_p999` is ("ttft", 99.9)."""
    metric, _, statistic = name.rpartition("_")
    if statistic == "mean":
        return metric, None
    digits = statistic.removeprefix("p")
    return metric, float(f"{digits[:2]}.{digits[2:] or 0}")


def per_stream_limits_ms(slo: Mapping[str, float]) -> dict[str, float]:
    """The limits that each stream must meet, by metric."""
    return {name: limit_ms for name, limit_ms in slo.items() if name in _PER_STREAM}


def stage_limits_ms(slo: Mapping[str, float]) -> dict[str, float]:
    """The limits on statistics over a stage, by name."""
    return {name: limit_ms for name, limit_ms in slo.items() if name not in _PER_STREAM}


def reads(words: str) -> WithJsonSchema:
    """Describe what a value may be, for the profile reference."""
    return WithJsonSchema({"format": words})


Scalar = str | int | float | bool
BaseUrl = Annotated[str, BeforeValidator(_without_v1), reads("URL")]
PageUrl = Annotated[str, AfterValidator(_check_page_url)]
Seconds = Annotated[float, BeforeValidator(parse_duration_s), Field(gt=0), reads("duration above 0")]
Milliseconds = Annotated[float, BeforeValidator(_parse_slo_ms)]
Share = Annotated[float, BeforeValidator(parse_share), reads('share: `"1%"` or `0.01`')]
Fraction = Annotated[float, Field(ge=0, le=1)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)]
Held = Annotated[int, Field(ge=0, le=MAX_CONCURRENCY)]
Concurrencies = Annotated[
    list[Held],
    BeforeValidator(_as_list),
    Field(min_length=1),
    reads(f"integer from 0 to {MAX_CONCURRENCY:,}, or a list of them"),
]
Requests = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
Rate = Annotated[float, Field(ge=MIN_RATE, le=MAX_RATE)]
Rates = Annotated[list[Rate], BeforeValidator(_as_list), reads(f"number from {MIN_RATE:g}, or a list of them")]
Warmup = Annotated[int | str, BeforeValidator(_parse_warmup), reads("requests, or a duration")]
Ladder = Annotated[
    Concurrency | list[Rate], BeforeValidator(_check_ladder), reads("integer from 1, or a list of loads")
]
Flags = Annotated[dict[str, Scalar | list[Any] | dict[str, Any]], reads("table of flags")]
LengthsText = Annotated[int | str, BeforeValidator(check_lengths_text), reads("integer or [lengths](#lengths)")]
ArrivalText = Annotated[
    str, AfterValidator(_check_arrival), reads('`"poisson"`, `"constant"`, `"gamma:B"` or `"replay"`')
]
AddressText = Annotated[str, AfterValidator(_check_address)]
HeaderName = Annotated[str, AfterValidator(_check_header_name)]
HeaderText = Annotated[str, AfterValidator(_check_header_text)]
CpusText = Annotated[str, AfterValidator(_check_cpus), reads(f'CPUs: `"8-15,24-31"`, or `"{ALL_CPUS}"`')]
Moment = Annotated[float, BeforeValidator(parse_duration_s), Field(ge=0), reads("duration")]
RatePoints = Annotated[
    list[tuple[Moment, Annotated[float, Field(ge=0, le=MAX_RATE)]]],
    AfterValidator(_check_rate_points),
    reads("list of [duration, requests a second]"),
]
