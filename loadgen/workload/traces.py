"""Traces: the arrival times and lengths of requests, without their text.

They are read as published: Mooncake's JSON lines, and the CSV files of Azure and BurstGPT, whose columns are found by
name. A malformed row is an error. A row that cannot be sent (no tokens, too many, or a timestamp before that of the row
above) is left out and counted, and the run reports how many and why.

The `hash_ids` of a row are the blocks of its prompt, in order: equal ids are equal tokens. A block has 512 tokens in
Mooncake's traces, where the last, shorter block of a prompt has an id too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from loadgen.errors import UNDECODABLE
from loadgen.format import counted, duration, harmless, percent

_MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 1e11  # thousands of years: more is not a valid time
MAX_IDS = 2**64  # ids may be 64-bit hashes
_MAX_DISORDER = 0.01  # share of rows out of order above which the file is refused
_MAX_PREFIXES = 2**21  # distinct prefixes remembered to compute the shared part of prompts, some 200 MB
_SHOWN_COLUMNS = 200

EMPTY_PROMPT = "without prompt tokens"
EMPTY_ANSWER = "without answer tokens (requests that failed)"
_TOO_LONG = "longer than load.trace.max_length"
_DISORDER = "with a timestamp before that of the row above"


class TraceOptions(msgspec.Struct, frozen=True):
    """How a trace is used, as the profile's `[load.trace]` says."""

    start: float = 0.0  # seconds of the trace, counted from its first row
    end: float | None = None
    speed: float = 1.0
    block_size: int = 512
    max_length: int | None = None


class TraceRow(NamedTuple):
    """One request of a trace."""

    at_s: float
    isl: int
    osl: int
    hash_ids: Sequence[int] = ()


class _Csv(NamedTuple):
    """A published CSV format: the names of the columns that are read."""

    name: str
    at: str
    isl: str
    osl: str
    seconds: Callable[[bytes], float]
    time: str  # what `seconds` parses, in words


def timestamp_s(text: str) -> float:
    """Unix seconds of a date and time; UTC if it has no zone."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def whole_number(value: object) -> int:
    """A whole number, which some exporters write as a text or as 5.0; raises ValueError."""
    try:
        return int(str(value))
    except ValueError:
        number = float(str(value))
        if number.is_integer():
            return int(number)
        raise


_PUBLISHED = (
    _Csv(
        "Azure",
        "TIMESTAMP",
        "ContextTokens",
        "GeneratedTokens",
        lambda field: timestamp_s(field.decode()),
        "a time such as 2023-11-16 18:15:46.68",
    ),
    _Csv("BurstGPT", "Timestamp", "Request tokens", "Response tokens", float, "seconds"),
)
_IMAGES = "NumImages"  # a column of Azure's 2025 traces


class _JsonRow(msgspec.Struct):
    input_length: int
    output_length: int
    timestamp: float | None = None
    timestamp_s: float | None = None
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None


_decode_json = msgspec.json.Decoder(_JsonRow, strict=False).decode  # 5.0 is a count, too
_JSON = '{"timestamp": milliseconds, "input_length": tokens, "output_length": tokens}'


class TraceReader:
    """Reads the lines of a trace in order, and returns the rows to send."""

    def __init__(self, options: TraceOptions) -> None:
        self._options = options
        self._kind = ""
        self._parse: Callable[[bytes], TraceRow] | None = None
        self._origin_s = self._last_s = 0.0
        self._rows = 0
        self._left_out: Counter[str] = Counter()
        self._disorder: tuple[int, str] | None = None  # line of the first row out of order, and what is wrong with it
        self.over = False  # no later row is to be sent
        self.shares = False  # some row has `hash_ids`
        self._prefixes: set[int] = set()
        self._prompt_tokens = self._repeated_tokens = 0

    def read(self, line: bytes, number: int) -> TraceRow | None:
        """The row of a line, with its time in the run; None if it is not sent. Raises ValueError."""
        if self._parse is None:
            self._kind, self._parse = row_parser(line, self._options.block_size)
            if self._kind != "JSON":
                return None
        row = self._parse(line)
        self._origin_s = self._origin_s if self._rows else row.at_s
        self._rows += 1
        since_s = row.at_s - self._origin_s
        if row.at_s < self._last_s:
            self._note_disorder(row, number)
            return None
        self._last_s = row.at_s
        self.over = self._options.end is not None and since_s >= self._options.end
        if self.over or since_s < self._options.start:
            return None
        why = self._unusable(row)
        if why is not None:
            self._left_out[why] += 1
            return None
        self._count_repeated(row)
        return row._replace(at_s=(since_s - self._options.start) / self._options.speed)

    def _count_repeated(self, row: TraceRow) -> None:
        self._prompt_tokens += row.isl
        self.shares |= bool(row.hash_ids)
        if len(self._prefixes) > _MAX_PREFIXES:
            return
        prefix, repeated = 0, 0
        for place, block in enumerate(row.hash_ids, start=1):
            prefix = hash((prefix, block))
            if prefix in self._prefixes:
                repeated = place
            else:
                self._prefixes.add(prefix)
        self._repeated_tokens += min(row.isl, repeated * self._options.block_size)

    def _note_disorder(self, row: TraceRow, number: int) -> None:
        self._left_out[_DISORDER] += 1
        early = f"this one is {self._last_s - row.at_s:g} s before that of an earlier row"
        self._disorder = self._disorder or (number, f"expected ascending timestamps; {early}; sort the file by them")

    def _unusable(self, row: TraceRow) -> str | None:
        """Why a row cannot be sent; None if it can."""
        if row.isl < 1:
            return EMPTY_PROMPT
        if row.osl < 1:
            return EMPTY_ANSWER
        most = self._options.max_length
        return _TOO_LONG if most is not None and row.isl + row.osl > most else None

    @property
    def left_out(self) -> int:
        """How many rows between start and end were left out."""
        return self._left_out.total()

    @property
    def emptiness(self) -> str:
        """Why there is nothing to send."""
        if self._left_out:
            return f"nothing to send; left out: {self._left_out_words}"
        if self._rows:
            return "no rows between load.trace.start and load.trace.end"
        return f"no rows in it; expected {_JSON}, or the CSV of {' or '.join(csv.name for csv in _PUBLISHED)}"

    @property
    def _left_out_words(self) -> str:
        return ", ".join(f"{counted(number, 'row')} {why}" for why, number in self._left_out.items())

    @property
    def disorder(self) -> tuple[int, str] | None:
        """The first row out of order, if there are so many that leaving them out would make it another trace."""
        return self._disorder if self._left_out[_DISORDER] > _MAX_DISORDER * self._rows else None

    def note(self, records: int, span_s: float) -> str:
        """Describe what is sent of it and what is not."""
        options = self._options
        kind = ("Mooncake" if self.shares else "") if self._kind == "JSON" else self._kind
        words = [f"{f'{kind} trace'.strip()} of {counted(records, 'request')} in {duration(span_s)}"]
        if options.start or options.end is not None:
            end = "its end" if options.end is None else duration(options.end)
            words.append(f"from {duration(options.start)} to {end} of the file")
        if options.speed != 1:
            words.append(f"at {options.speed:g} times its speed")
        if self._left_out:
            words.append(f"left out: {self._left_out_words}")
        if self.shares and len(self._prefixes) > _MAX_PREFIXES:
            words.append("too many blocks to compute how much its prompts share")
        elif self.shares:
            repeated = percent(self._repeated_tokens / self._prompt_tokens)
            words.append(f"at most {repeated} of its prompt tokens can come from the prefix cache")
        return "; ".join(words)


def is_trace(line: bytes) -> bool:
    """Whether a file that begins with this line is a trace."""
    if not line.startswith(b"{"):
        return any({csv.at, csv.isl, csv.osl} <= set(_columns(line)) for csv in _PUBLISHED)
    try:
        keys: set[str] = set(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    except UNDECODABLE:  # reading it reports what is wrong
        return b'"input_length"' in line
    return bool({"timestamp", "timestamp_s", "input_length"} & keys)


def row_parser(line: bytes, block_size: int) -> tuple[str, Callable[[bytes], TraceRow]]:
    """The kind of trace that begins with this line, and the parser of its rows; raises ValueError."""
    if line.startswith(b"{"):
        return "JSON", partial(json_row, block_size)
    names = _columns(line)
    if _IMAGES in names:
        raise ValueError(f"column {_IMAGES}: vramp sends no images, so this trace cannot be replayed")
    for csv in _PUBLISHED:
        if {csv.at, csv.isl, csv.osl} <= set(names):
            return csv.name, _csv_parser(csv, names)
    known = " or ".join(f"{', '.join(csv[1:4])} ({csv.name})" for csv in _PUBLISHED)
    found = harmless(line[:_SHOWN_COLUMNS].decode("utf-8", "replace"))
    raise ValueError(f"expected {_JSON} (Mooncake), or a header with the columns {known}; found {found!r}")


def _columns(line: bytes) -> list[str]:
    return [_text(field) for field in line.split(b",")]


def _text(field: bytes) -> str:
    return field.strip(b'" \t').decode("utf-8", "replace")


def _csv_parser(csv: _Csv, names: list[str]) -> Callable[[bytes], TraceRow]:
    at, isl, osl = (names.index(name) for name in (csv.at, csv.isl, csv.osl))

    def tokens(field: bytes) -> int:
        return whole_number(field.decode())

    def parse(line: bytes) -> TraceRow:
        fields = line.split(b",")
        if len(fields) != len(names):
            why = "is the file cut off?" if len(fields) < len(names) else "no value may have a comma in it"
            raise ValueError(f"expected {counted(len(names), 'column')} as in the header, found {len(fields)}; {why}")
        return TraceRow(
            _value(csv.at, fields[at], csv.seconds, csv.time, MAX_SECONDS),
            int(_value(csv.isl, fields[isl], tokens, "a whole number of tokens", _MAX_TOKENS)),
            int(_value(csv.osl, fields[osl], tokens, "a whole number of tokens", _MAX_TOKENS)),
        )

    return parse


def _value(column: str, field: bytes, read: Callable[[bytes], float], what: str, most: float) -> float:
    try:
        value = read(field.strip(b'" \t'))
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= most:
        raise ValueError(f"column {column}: expected {what}, not {_text(field)[:40]!r}")
    return value


def json_row(block_size: int, line: bytes) -> TraceRow:
    """The row of a JSON line; raises ValueError."""
    try:
        row = _decode_json(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"expected {_JSON}; {error}") from None
    at_s = row.timestamp_s if row.timestamp is None else row.timestamp / 1000
    if at_s is None or not 0 <= at_s <= MAX_SECONDS:
        raise ValueError(f"expected {_JSON}; timestamp is {'missing' if at_s is None else 'not a time'}")
    ids = row.hash_ids or ()
    require_lengths(row.input_length, row.output_length, _MAX_TOKENS)
    require_blocks(ids, row.input_length, block_size, "load.trace.block_size")
    return TraceRow(at_s, row.input_length, row.output_length, ids)


def require_lengths(input_length: int, output_length: int, most: int) -> None:
    for name, tokens in (("input_length", input_length), ("output_length", output_length)):
        if not 0 <= tokens <= most:
            raise ValueError(f"{name}: expected a number of tokens, not {tokens}")


def require_blocks(ids: Sequence[int], tokens: int, block_size: int, key: str) -> None:
    """Raise ValueError unless these can be the blocks of a prompt; `key` of the profile says how large they are."""
    if ids and not tokens // block_size <= len(ids) <= -(-tokens // block_size):
        raise ValueError(
            f"hash_ids: {counted(len(ids), 'block')} of {block_size} tokens cannot be a prompt of {tokens}; "
            f"if the blocks of this trace have another size, give it as {key}"
        )
    if ids and max(ids) >= MAX_IDS:
        raise ValueError("hash_ids: expected numbers below 2^64")
