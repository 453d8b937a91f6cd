"""Datasets: indexed once before anything is sent, then read one record at a time.

Indexing finds every malformed record (file, line, what was expected) and writes to disk where each record lies in the
file and, for a trace, its time and lengths. Workers map the index and read records by number, so memory stays bounded
whatever the size of the file, and which record a request takes depends only on the seed, its stage and its number.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import struct
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np

from loadgen.errors import ProfileError
from loadgen.format import counted, harmless
from loadgen.places import expanded
from loadgen.workload.records import DatasetRecord, TextFormat, parse_record
from loadgen.workload.traces import TraceOptions, TraceReader, TraceRow, hash_ids_of, is_trace

SAMPLE = "sample"  # `load.data = "sample"` is the dataset that comes with vramp
_SAMPLE_PATH = Path(__file__).with_name("sharegpt_sample.json")
_CHUNK_BYTES = 1 << 18
_MAX_RECORD_BYTES = 64 * 1024 * 1024
_OPENING = re.compile(r"\ufeff?\s*\[")
_SPACE = re.compile(r"[\s,]*")
_KEPT_MESSAGE = 400
_ENTRY = struct.Struct("<qidii")
_ENTRIES = np.dtype([("offset", "<i8"), ("length", "<i4"), ("at_s", "<f8"), ("isl", "<i4"), ("osl", "<i4")])
_TIMES_AT_ONCE = 4096
_GZIP = b"\x1f\x8b"

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


class _Raw(NamedTuple):
    line: int
    offset: int
    content: bytes


def index_dataset(name: str, form: Format | None = None, options: TraceOptions = _WHOLE_TRACE) -> Dataset:
    """Read a whole dataset once; raises `ProfileError` that names file, line and what was expected."""
    if "\0" in name:
        raise ProfileError(f"load.data = {name!r}: no file can have this name")
    path = (_SAMPLE_PATH if name == SAMPLE else Path(expanded(name))).absolute()
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ProfileError(f"load.data: {path}: is not a file; give one that can be read more than once")
        return _indexed(path, form, options, status.st_size, status.st_mtime_ns)
    except RecursionError:
        raise ProfileError(f"load.data: {path}: a record is nested too deeply") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            room = f"no room for its index in {tempfile.gettempdir()}; name another folder in TMPDIR"
            raise ProfileError(f"load.data: {path}: {room}") from None
        raise ProfileError(f"load.data: {path}: cannot be read: {error.strerror}") from None


@lru_cache(maxsize=16)
def _indexed(path: Path, form: Format | None, options: TraceOptions, _size: int, _changed_ns: int) -> Dataset:
    with path.open("rb") as file, _new_index() as index:
        start = file.read(65536)
        file.seek(0)
        if start.startswith(_GZIP):
            raise ProfileError(f"load.data: {path}: is compressed; unpack it with gunzip")
        known = form or guess_format(start, path.name)
        if known == "trace":
            data = _indexed_trace(path, file, index, options)
        else:
            array = known != "text" and _OPENING.match(start.decode("utf-8", "replace")) is not None
            data = _indexed_texts(path, file, index, known, array=array)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return msgspec.structs.replace(data, sha256=sha256, bytes=file.tell())


def _indexed_texts(path: Path, file: BinaryIO, index: BinaryIO, form: TextFormat, *, array: bool) -> Dataset:
    records = isl = osl = 0
    has_osl, has_messages = True, False
    left_out: Counter[str] = Counter()
    for raw in _array_records(file, path) if array else _line_records(file, path):
        try:
            entry = parse_record(raw.content, form)
        except ValueError as error:
            raise _malformed(path, raw.line, str(error)) from None
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
        raise ProfileError(f"load.data: {path}: no prompts in it{why if left_out else ''}")
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
    for raw in _line_records(file, path):
        try:
            row = trace.read(raw.content, raw.line)
        except ValueError as error:
            raise _malformed(path, raw.line, str(error)) from None
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
    if trace.disorder is not None and trace.disordered:
        raise _malformed(path, *trace.disorder)
    if not records:
        raise ProfileError(f"load.data: {path}: {trace.emptiness}")
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


def _malformed(path: Path, line: int, message: str) -> ProfileError:
    return ProfileError(f"load.data: {path}: line {line}: {harmless(message)[:_KEPT_MESSAGE]}")


def _new_index() -> BinaryIO:
    folder = _index_folder()
    return (folder / str(len(list(folder.iterdir())))).open("wb")


@lru_cache(maxsize=1)
def _index_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vramp-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _line_records(file: BinaryIO, path: Path) -> Iterator[_Raw]:
    offset = 0
    for number, content in enumerate(iter(partial(file.readline, _MAX_RECORD_BYTES), b""), start=1):
        if len(content) >= _MAX_RECORD_BYTES:
            raise _malformed(path, number, "expected a line of less than 64 MiB")
        stripped = content.strip(b"\xef\xbb\xbf \t\r\n") if offset == 0 else content.strip()
        if stripped:
            yield _Raw(number, offset + content.index(stripped), stripped)
        offset += len(content)


def _array_records(file: BinaryIO, path: Path) -> Iterator[_Raw]:
    """The elements of a JSON array, with no more of the file in memory than about its longest element."""
    # Only the ends of records matter here; int() would refuse very long numbers.
    decode = json.JSONDecoder(parse_int=float).raw_decode
    window = _Window(file, path)
    if not window.opens_array():
        raise _malformed(path, 1, "expected a JSON array")
    while not window.at_end():
        while True:
            try:
                _, end = decode(window.text, window.at)
                break
            except json.JSONDecodeError as error:
                at = error.pos - window.at
                if not window.grow():
                    line = window.line + window.text.count("\n", window.at, window.at + at)
                    cut = error.pos >= len(window.text.rstrip()) or error.msg.startswith("Unterminated")
                    why = f"expected JSON; {error.msg}{'; is the file cut off?' if cut else ''}"
                    raise _malformed(path, line, why) from None
        yield _Raw(window.line, window.offset, window.step(end - window.at))


class _Window:
    """The part of a text file that is being decoded; grows at its end and is cut at its start."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._rest = b""
        self.text = ""
        self.at = 0  # characters consumed
        self.offset = 0  # bytes of the file consumed
        self.line = 1

    def grow(self) -> bool:
        """Read more, at least doubling the text; False at the end of the file."""
        self.text, self.at = self.text[self.at :], 0
        if len(self.text) > _MAX_RECORD_BYTES:
            raise _malformed(self._path, self.line, "expected records of less than 64 MiB")
        read = self._file.read(max(_CHUNK_BYTES, len(self.text)))
        whole = self._rest + read
        # The last character may be cut in the middle.
        for cut in range(4):
            try:
                self.text += whole[: len(whole) - cut].decode()
            except UnicodeDecodeError as error:
                valid = whole[: error.start]
                continue
            self._rest = whole[len(whole) - cut :]
            return bool(read)
        raise _malformed(self._path, self.line + self.text.count("\n") + valid.count(b"\n"), "expected UTF-8 text")

    def step(self, characters: int) -> bytes:
        """Consume some characters and return them."""
        gone = self.text[self.at : self.at + characters]
        content = gone.encode()
        self.at += characters
        self.offset += len(content)
        self.line += gone.count("\n")
        return content

    def opens_array(self) -> bool:
        """Consume the opening bracket; False if there is none."""
        self.grow()
        start = _OPENING.match(self.text)
        self.step(start.end() if start else 0)
        return start is not None

    def at_end(self) -> bool:
        """Consume a separator; True at the closing bracket, raises `ProfileError` where it is missing."""
        while True:
            space = _SPACE.match(self.text, self.at)
            self.step(space.end() - self.at if space else 0)
            if self.at < len(self.text):
                return self.text[self.at] == "]"
            if not self.grow():
                raise _malformed(self._path, self.line, "expected the ] that closes the array; is the file cut off?")


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
        return row._replace(hash_ids=self._parsed(partial(hash_ids_of, self._data.block_size), offset, length))

    def _parsed(self, parse: Callable[[bytes], _Parsed | str], offset: int, length: int) -> _Parsed:
        content = os.pread(self._descriptor, length, offset)
        try:
            parsed = parse(content) if len(content) == length else ""
        except ValueError:
            parsed = ""
        if isinstance(parsed, str):
            raise ProfileError(f"load.data: {self._data.path}: was changed while it was in use")
        return parsed

    def times_s(self) -> Iterator[float]:
        """When each record of a trace is due, in seconds after the start."""
        for first in range(0, len(self._index), _TIMES_AT_ONCE):
            yield from self._index["at_s"][first : first + _TIMES_AT_ONCE].tolist()
