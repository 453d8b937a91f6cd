"""Datasets: indexed once before anything is sent, then read one record at a time.

Indexing finds every malformed record (file, line, what was expected) and writes to disk where each record lies in the
file and, for a trace, its time and lengths. Workers map the index and read records by number, so memory stays bounded
whatever the size of the file, and which record a request takes depends only on the seed, its stage and its number.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import msgspec
import numpy as np

from loadgen.errors import ProfileError
from loadgen.format import counted
from loadgen.workload.files import (
    array_records,
    file_errors,
    line_records,
    malformed,
    new_index,
    opened,
    opens_array,
    path_of,
    record_errors,
)
from loadgen.workload.records import DatasetRecord, TextFormat, parse_record
from loadgen.workload.traces import TraceOptions, TraceReader, TraceRow, is_trace, json_row

KEY = "load.data"
SAMPLE = "sample"  # `load.data = "sample"` is the dataset that comes with vramp
_SAMPLE_PATH = Path(__file__).with_name("sharegpt_sample.json")
_ENTRY = struct.Struct("<qidii")
_ENTRIES = np.dtype([("offset", "<i8"), ("length", "<i4"), ("at_s", "<f8"), ("isl", "<i4"), ("osl", "<i4")])
_TIMES_AT_ONCE = 4096

_WHOLE_TRACE = TraceOptions()

Format = TextFormat | Literal["trace"]
_Parsed = TypeVar("_Parsed")


class Dataset(msgspec.Struct, frozen=True):
    """An indexed, valid dataset; travels to the workers."""

    path: str
    form: Format
    index: str  # file with an entry per record
    records: int
    isl: int  # mean tokens of a prompt; exact for a trace, else estimated
    osl: int | None  # mean tokens of an answer; None unless every record has it
    longest: int | None  # most tokens of prompt and answer together; None where lengths are estimates
    span_s: float = 0.0  # from the first to the last record of a trace
    has_messages: bool = False
    block_size: int = 0  # tokens per block of a trace's `hash_ids`; 0 without them
    note: str | None = None  # what is sent of it and what is not, and why
    left_out: int = 0  # records or rows that are not sent
    bytes: int = 0
    sha256: str = ""

    @property
    def is_sample(self) -> bool:
        return self.path == str(_SAMPLE_PATH)

    @property
    def repeats(self) -> bool:
        """Whether prompts may share prefixes; prompts for a trace without `hash_ids` are synthetic and unique."""
        return self.form != "trace" or self.block_size > 0


def index_dataset(name: str, form: Format | None = None, options: TraceOptions = _WHOLE_TRACE) -> Dataset:
    """Read a whole dataset once; raises `ProfileError` that names file, line and what was expected."""
    path = _SAMPLE_PATH if name == SAMPLE else path_of(KEY, name)
    with file_errors(KEY, path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ProfileError(f"{KEY}: {path}: is not a file; give one that can be read more than once")
        return _indexed(path, form, options, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _indexed(path: Path, form: Format | None, options: TraceOptions, _size: int, _changed_ns: int) -> Dataset:
    with opened(KEY, path) as (file, start), new_index() as index:
        known = form or guess_format(start, path.name)
        if known == "trace":
            data = _indexed_trace(path, file, index, options)
        else:
            array = known != "text" and opens_array(start)
            data = _indexed_texts(path, file, index, known, array=array)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return msgspec.structs.replace(data, sha256=sha256, bytes=file.tell())


def _indexed_texts(path: Path, file: BinaryIO, index: BinaryIO, form: TextFormat, *, array: bool) -> Dataset:
    records = isl = osl = 0
    has_osl, has_messages = True, False
    left_out: Counter[str] = Counter()
    for raw in array_records(KEY, path, file) if array else line_records(KEY, path, file):
        with record_errors(KEY, path, raw.line):
            entry = parse_record(raw.content, form)
        if isinstance(entry, str):
            left_out[entry] += 1
            continue
        index.write(_ENTRY.pack(raw.offset, len(raw.content), 0.0, 0, 0))
        records += 1
        isl += entry.isl
        osl += entry.osl or 0
        has_osl = has_osl and entry.osl is not None
        has_messages = has_messages or not entry.prompt
    why = "; left out: " + ", ".join(f"{counted(number, 'record')} {reason}" for reason, number in left_out.items())
    if not records:
        raise ProfileError(f"{KEY}: {path}: no prompts in it{why if left_out else ''}")
    return Dataset(
        path=str(path),
        form=form,
        index=str(index.name),
        records=records,
        isl=max(1, round(isl / records)),
        osl=max(1, round(osl / records)) if has_osl else None,
        longest=None,
        has_messages=has_messages,
        note=f"{counted(records, 'record')}{why}" if left_out else None,
        left_out=left_out.total(),
    )


def _indexed_trace(path: Path, file: BinaryIO, index: BinaryIO, options: TraceOptions) -> Dataset:
    trace = TraceReader(options)
    records = isl = osl = longest = 0
    first_s = last_s = 0.0
    for raw in line_records(KEY, path, file):
        with record_errors(KEY, path, raw.line):
            row = trace.read(raw.content, raw.line)
        if trace.over:
            break
        if row is None:
            continue
        index.write(_ENTRY.pack(raw.offset, len(raw.content), row.at_s, row.isl, row.osl))
        first_s, last_s = first_s if records else row.at_s, row.at_s
        records += 1
        isl += row.isl
        osl += row.osl
        longest = max(longest, row.isl + row.osl)
    if trace.disorder is not None:
        raise malformed(KEY, path, *trace.disorder)
    if not records:
        raise ProfileError(f"{KEY}: {path}: {trace.emptiness}")
    return Dataset(
        path=str(path),
        form="trace",
        index=str(index.name),
        records=records,
        isl=max(1, round(isl / records)),
        osl=max(1, round(osl / records)),
        longest=longest,
        span_s=last_s - first_s,
        block_size=options.block_size if trace.shares else 0,
        note=trace.note(records, last_s - first_s),
        left_out=trace.left_out,
    )


def guess_format(start: bytes, name: str) -> Format:
    """The format of a file, from its first bytes and its name."""
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if name.endswith(".txt"):
        return "text"
    if start.startswith(b"["):
        return "sharegpt"
    if name.endswith(".csv") or is_trace(start.partition(b"\n")[0].strip()):
        return "trace"
    return "jsonl" if start.startswith(b"{") else "text"


class DatasetReader:
    """The records of a dataset by number."""

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._descriptor = os.open(data.path, os.O_RDONLY | os.O_CLOEXEC)
        # It stays open while the reader is referenced, because the end of its stage is not signalled.
        weakref.finalize(self, os.close, self._descriptor)
        self._index = np.memmap(data.index, dtype=_ENTRIES, mode="r")

    def text(self, number: int) -> DatasetRecord:
        """The record with this number; raises `ProfileError` if the file has changed since it was indexed."""
        offset, length, *_ = self._index[number].item()
        form = self._data.form
        assert form != "trace"
        return self._parsed(lambda line: parse_record(line, form), offset, length)

    def row(self, number: int) -> TraceRow:
        """The row of a trace with this number; raises `ProfileError` as `text` does."""
        offset, length, at_s, isl, osl = self._index[number].item()
        row = TraceRow(at_s, isl, osl)
        if not self._data.block_size:
            return row
        whole = self._parsed(partial(json_row, self._data.block_size), offset, length)
        return row._replace(hash_ids=whole.hash_ids)

    def _parsed(self, parse: Callable[[bytes], _Parsed | str], offset: int, length: int) -> _Parsed:
        content = os.pread(self._descriptor, length, offset)
        try:
            parsed = parse(content) if len(content) == length else ""
        except ValueError:
            parsed = ""
        if isinstance(parsed, str):
            raise ProfileError(f"{KEY}: {self._data.path}: was changed while it was in use")
        return parsed

    def times_s(self) -> Iterator[float]:
        """When each record of a trace is due, in seconds after the start."""
        for first in range(0, len(self._index), _TIMES_AT_ONCE):
            yield from self._index["at_s"][first : first + _TIMES_AT_ONCE].tolist()
