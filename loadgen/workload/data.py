"""Datasets: looked through once before anything is sent, then read a record at a time.

Looking through finds every malformed record (file, line, what was expected) and leaves an index: where each record lies
in the file, 16 bytes each. Workers map the index and read records by number, so memory stays bounded whatever the size
of the file, and which record a request takes depends on nothing but the seed, its stage and its number.

Of a ShareGPT conversation `vllm bench` sends the first turn, whoever speaks, and asks for as many tokens as the second
has; what is too short or too long it leaves out. So do we, by an estimate of the tokens: vramp has no tokenizer.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np

from loadgen.errors import ProfileError
from loadgen.format import harmless

SAMPLE = "sample"  # `load.data = "sample"` is the dataset that comes with vramp
_SAMPLE_PATH = Path(__file__).with_name("sharegpt_sample.json")
FEWEST_TOKENS, MOST_PROMPT_TOKENS, MOST_TOKENS = 4, 1024, 2048
"""Of a ShareGPT conversation: least of prompt and of answer, most of a prompt, most of both; those of `vllm bench`."""
_CHUNK_BYTES = 1 << 18
_LONGEST_RECORD_BYTES = 64 * 1024 * 1024
_OPENING = re.compile(r"\ufeff?\s*\[")
_SPACE = re.compile(r"[\s,]*")
_KEPT_MESSAGE = 300


class Dataset(msgspec.Struct, frozen=True):
    """A dataset that was looked through and found good; travels to the workers."""

    path: str
    form: Format
    bytes: int
    sha256: str
    index: str  # file of (offset, length) pairs, one for each record
    records: int
    isl: int  # mean tokens of a prompt; exact for a trace, else estimated
    osl: int | None  # mean tokens of an answer; None unless every record has it
    longest: int | None  # most tokens of prompt and answer together; None where they are estimates
    span_s: float = 0.0  # from the first to the last of a trace
    has_messages: bool = False
    sharing: int = 0  # records of a trace with `hash_ids`
    left_out: int = 0  # conversations that are no question with an answer, or too short or too long

    @property
    def is_sample(self) -> bool:
        return self.path == str(_SAMPLE_PATH)

    @property
    def note(self) -> str | None:
        """What of it is not replayed; None if everything is."""
        if not self.sharing:
            return None
        return f"{self.path}: hash_ids of {self.sharing} records are not replayed: shared prefixes are missing"


class _Raw(NamedTuple):
    line: int
    offset: int
    content: bytes


def index_dataset(name: str, form: Format | None = None) -> Dataset:
    """Read a whole dataset once; raises `ProfileError` that names file, line and what was expected."""
    path = (_SAMPLE_PATH if name == SAMPLE else Path(name).expanduser()).absolute()
    try:
        status = path.stat()
        return _indexed(path, form, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise ProfileError(f"load.data: {path}: cannot be read: {error.strerror}") from None


@lru_cache(maxsize=16)
def _indexed(path: Path, form: Format | None, _size: int, _changed_ns: int) -> Dataset:
    with path.open("rb") as file:
        known = form or guess_format(file.read(65536), path.name)
        file.seek(0)
        sums = _Sums(path, known)
        for raw in _array_records(file, path) if known == "sharegpt" else _line_records(file, path):
            sums.add(raw)
        file.seek(0)
        return sums.data(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


class _Sums:
    """What is known of the records seen so far."""

    def __init__(self, path: Path, form: Format) -> None:
        self._path, self._form = path, form
        self._index = array("q")
        self._isl = self._osl = self._longest = self._sharing = self._left_out = 0
        self._has_osl = True
        self._has_messages = False
        self._first_s = self._last_s = 0.0

    def add(self, raw: _Raw) -> None:
        """Check one record and remember where it lies."""
        try:
            entry = parse_record(raw.content, self._form)
            if entry is None:
                self._left_out += 1
                return
            if entry.at_s is not None and entry.at_s < self._last_s:
                raise ValueError(f"expected ascending timestamps; {entry.at_s:g} s comes after {self._last_s:g} s")
        except ValueError as error:
            raise _malformed(self._path, raw.line, str(error)) from None
        if entry.at_s is not None:
            self._first_s = entry.at_s if not self._index else self._first_s
            self._last_s = entry.at_s
        self._index.extend((raw.offset, len(raw.content)))
        self._isl += entry.isl
        self._osl += entry.osl or 0
        self._longest = max(self._longest, entry.isl + (entry.osl or 0))
        self._has_osl = self._has_osl and entry.osl is not None
        self._has_messages = self._has_messages or bool(entry.messages)
        self._sharing += entry.shares

    def data(self, sha256: str, size: int) -> Dataset:
        """The dataset; raises `ProfileError` for an empty one."""
        records = len(self._index) // 2
        if not records:
            left_out = f"; {self._left_out} records were left out: {_LEFT_OUT}" if self._left_out else ""
            expected = f"expected at least one {self._form} record{left_out}"
            raise ProfileError(f"load.data: {self._path}: no prompts in it; {expected}")
        index = _index_folder() / f"{len(list(_index_folder().iterdir()))}.npy"
        np.save(index, np.array(self._index, dtype=np.int64).reshape(-1, 2))
        return Dataset(
            path=str(self._path),
            form=self._form,
            bytes=size,
            sha256=sha256,
            index=str(index),
            records=records,
            isl=max(1, round(self._isl / records)),
            osl=max(1, round(self._osl / records)) if self._has_osl else None,
            longest=self._longest if self._form == "trace" else None,
            span_s=self._last_s - self._first_s,
            has_messages=self._has_messages,
            sharing=self._sharing,
            left_out=self._left_out,
        )


def _malformed(path: Path, line: int, message: str) -> ProfileError:
    return ProfileError(f"load.data: {path}: line {line}: {harmless(message)[:_KEPT_MESSAGE]}")


@lru_cache(maxsize=1)
def _index_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vramp-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _line_records(file: BinaryIO, path: Path) -> Iterator[_Raw]:
    offset = 0
    for number, content in enumerate(iter(partial(file.readline, _LONGEST_RECORD_BYTES), b""), start=1):
        if len(content) >= _LONGEST_RECORD_BYTES:
            raise _malformed(path, number, "expected a line of less than 64 MiB")
        stripped = content.strip(b"\xef\xbb\xbf \t\r\n") if offset == 0 else content.strip()
        if stripped:
            yield _Raw(number, offset + content.index(stripped), stripped)
        offset += len(content)


def _array_records(file: BinaryIO, path: Path) -> Iterator[_Raw]:
    """The elements of a JSON array, with no more of the file in memory than the longest of them."""
    decode = json.JSONDecoder().raw_decode
    window = _Window(file, path)
    if not window.opens_array():
        raise _malformed(path, 1, "expected a JSON array of conversations")
    while not window.at_end():
        while True:
            try:
                _, end = decode(window.text, window.at)
                break
            except RecursionError:
                raise _malformed(path, window.line, "expected a record that is not nested so deeply") from None
            except json.JSONDecodeError as error:
                at = error.pos - window.at
                if not window.grow():
                    line = window.line + window.text.count("\n", window.at, window.at + at)
                    raise _malformed(path, line, f"expected JSON; {error.msg}") from None
        yield _Raw(window.line, window.offset, window.step(end - window.at))


class _Window:
    """The part of a text file that is being decoded: it grows at its end and is dropped from its start."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._rest = b""
        self.text = ""
        self.at = 0  # how much of the text is done with
        self.offset = 0  # the same in bytes of the file
        self.line = 1

    def grow(self) -> bool:
        """Read some more, as much as there is already; False at the end of the file."""
        self.text, self.at = self.text[self.at :], 0
        if len(self.text) > _LONGEST_RECORD_BYTES:
            raise _malformed(self._path, self.line, "expected records of less than 64 MiB")
        read = self._file.read(max(_CHUNK_BYTES, len(self.text)))
        whole = self._rest + read
        # A character may be cut in two at the end of what was read.
        for cut in range(4):
            try:
                self.text += whole[: len(whole) - cut].decode()
            except UnicodeDecodeError:
                continue
            self._rest = whole[len(whole) - cut :]
            return bool(read)
        raise _malformed(self._path, self.line + self.text.count("\n"), "expected UTF-8 text")

    def step(self, characters: int) -> bytes:
        """Go past some characters and return them."""
        gone = self.text[self.at : self.at + characters]
        content = gone.encode()
        self.at += characters
        self.offset += len(content)
        self.line += gone.count("\n")
        return content

    def opens_array(self) -> bool:
        """Step over the opening bracket; False if there is none."""
        self.grow()
        start = _OPENING.match(self.text)
        self.step(start.end() if start else 0)
        return start is not None

    def at_end(self) -> bool:
        """Step over what separates records; True at the closing bracket, raises `ProfileError` where it is missing."""
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
        self._form = data.form
        self._descriptor = os.open(data.path, os.O_RDONLY | os.O_CLOEXEC)
        # Open as long as its stage is; nobody is told when that is over.
        weakref.finalize(self, os.close, self._descriptor)
        self._index = np.load(data.index, mmap_mode="r")

    def entry(self, number: int) -> DatasetRecord:
        """The record of this number; raises ValueError if the file was changed since it was looked through."""
        offset, length = self._index[number].tolist()
        entry = parse_record(os.pread(self._descriptor, length, offset), self._form)
        if entry is None:
            raise ValueError("the dataset was changed while it was in use")
        return entry

    def times_s(self) -> Iterator[float]:
        """When each record of a trace is wanted, in seconds after the first."""
        first_s = self.entry(0).at_s or 0.0
        for number in range(len(self._index)):
            yield (self.entry(number).at_s or 0.0) - first_s


Format = Literal["sharegpt", "jsonl", "text", "trace"]

CHARACTERS_A_TOKEN = 4  # an estimate, used only where a text stands for a number of tokens


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: str
    content: str


class DatasetRecord(msgspec.Struct, frozen=True):
    """What one record asks for."""

    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()  # in place of `prompt`, for chats
    isl: int = 0  # tokens of the prompt: exact for a trace, else estimated
    osl: int | None = None  # tokens of the answer, if the record has them: estimated where it has the text
    at_s: float | None = None  # when a trace wants it
    shares: bool = False  # A trace says which blocks of the prompt others have too


class _Turn(msgspec.Struct):
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]


class _JsonLine(msgspec.Struct):
    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()
    output_tokens: int | None = None
    output_length: int | None = None


class _TraceLine(msgspec.Struct):
    input_length: int
    output_length: int
    timestamp: float | None = None
    timestamp_s: float | None = None
    hash_ids: msgspec.Raw = msgspec.Raw(b"[]")


_decode_conversation = msgspec.json.Decoder(_Conversation).decode
_decode_line = msgspec.json.Decoder(_JsonLine).decode
_decode_trace = msgspec.json.Decoder(_TraceLine).decode


def parse_record(raw: bytes, form: Format) -> DatasetRecord | None:
    """The record, or None for a conversation that is left out; raises ValueError."""
    try:
        match form:
            case "sharegpt":
                return _conversation(_decode_conversation(raw))
            case "jsonl":
                return _line(_decode_line(raw))
            case "trace":
                return _trace(_decode_trace(raw))
            case "text":
                return _asked(raw.decode())
    except UnicodeDecodeError:
        raise ValueError("expected UTF-8 text") from None
    except msgspec.DecodeError as error:  # a ValueError too, but without what was expected
        raise ValueError(f"expected {_SHAPES[form]}; {error}") from None


_LEFT_OUT = (
    f"fewer than two turns, one of fewer than {FEWEST_TOKENS} tokens, a prompt of more than {MOST_PROMPT_TOKENS}, "
    f"or more than {MOST_TOKENS} in all"
)
_SHAPES: dict[Format, str] = {
    "sharegpt": '{"conversations": [{"from": "human", "value": "..."}, ...]}',
    "jsonl": '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}',
    "trace": '{"timestamp": milliseconds, "input_length": tokens, "output_length": tokens}',
    "text": "a line of text",
}


def _asked(prompt: str, osl: int | None = None) -> DatasetRecord:
    return DatasetRecord(prompt=prompt, isl=_estimate(prompt), osl=osl)


def _conversation(document: _Conversation) -> DatasetRecord | None:
    if len(document.conversations) < 2:
        return None
    prompt, answer = (turn.value for turn in document.conversations[:2])
    isl, osl = _estimate(prompt), _estimate(answer)
    fits = min(isl, osl) >= FEWEST_TOKENS and isl <= MOST_PROMPT_TOKENS and isl + osl <= MOST_TOKENS
    return _asked(prompt, osl) if fits else None


def _line(line: _JsonLine) -> DatasetRecord:
    osl = line.output_tokens if line.output_tokens is not None else line.output_length
    if osl is not None and osl < 1:
        raise ValueError(f"expected output_tokens of at least 1, not {osl}")
    if bool(line.prompt) == bool(line.messages):
        raise ValueError(f"expected {_SHAPES['jsonl']}, one of the two and not empty")
    if line.prompt:
        return _asked(line.prompt, osl)
    return DatasetRecord(messages=line.messages, isl=sum(_estimate(each.content) for each in line.messages), osl=osl)


def _trace(line: _TraceLine) -> DatasetRecord:
    at_s = line.timestamp_s if line.timestamp is None else line.timestamp / 1000
    if at_s is None or at_s < 0 or line.input_length < 1 or line.output_length < 1:
        raise ValueError(f"expected {_SHAPES['trace']}, none of them missing, negative or without tokens")
    shares = bytes(line.hash_ids) not in (b"[]", b"null")
    return DatasetRecord(isl=line.input_length, osl=line.output_length, at_s=at_s, shares=shares)


def _estimate(text: str) -> int:
    return max(1, round(len(text) / CHARACTERS_A_TOKEN))


def guess_format(start: bytes, name: str) -> Format:
    """What a file holds, by its first bytes and, for plain text, its name; raises ValueError."""
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if name.endswith(".txt"):
        return "text"
    if start.startswith(b"["):
        return "sharegpt"
    if not start.startswith(b"{"):
        return "text"
    try:
        keys: Any = msgspec.json.decode(start.splitlines()[0])
    except msgspec.DecodeError:
        return "jsonl"
    return "trace" if {"timestamp", "timestamp_s"} & set(keys) else "jsonl"
