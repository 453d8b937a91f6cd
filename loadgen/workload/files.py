"""Large files of records: one record at a time, each with its line and place, and the errors of files in one form.

`key` is the profile's key that names the file; every error begins with it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache, partial
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

from loadgen.errors import ProfileError
from loadgen.format import harmless
from loadgen.places import expanded

START_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 18
MAX_RECORD_BYTES = 64 * 1024 * 1024
_OPENING = re.compile(r"\ufeff?\s*\[")
_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_WORD = len("-Infinity")  # what is cut within the last characters may be whole once more is read
_decode = json.JSONDecoder(parse_int=float).raw_decode  # for the ends of records; int() refuses very long numbers
_KEPT_MESSAGE = 400
_GZIP = b"\x1f\x8b"


class RawRecord(NamedTuple):
    line: int
    offset: int
    content: bytes


def path_of(key: str, name: str) -> Path:
    if "\0" in name:
        raise ProfileError(f"{key} = {name!r}: no file can have this name")
    return Path(expanded(name)).absolute()


@contextlib.contextmanager
def file_errors(key: str, path: Path) -> Iterator[None]:
    """Turn what reading a file raises into a `ProfileError`."""
    try:
        yield
    except RecursionError:
        raise ProfileError(f"{key}: {path}: a record is nested too deeply") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            room = f"no room for its index in {tempfile.gettempdir()}; name another folder in TMPDIR"
            raise ProfileError(f"{key}: {path}: {room}") from None
        raise ProfileError(f"{key}: {path}: cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def opened(key: str, path: Path) -> Iterator[tuple[BufferedReader, bytes]]:
    """A file of records, and as much of its start as tells its form; raises `ProfileError` if it is compressed."""
    with path.open("rb") as file:
        start = file.read(START_BYTES)
        file.seek(0)
        if start.startswith(_GZIP):
            raise ProfileError(f"{key}: {path}: is compressed; unpack it with gunzip")
        yield file, start


def opens_array(start: bytes) -> bool:
    """Whether a file that begins with these bytes is a JSON array."""
    return _OPENING.match(start.decode("utf-8", "replace")) is not None


def malformed(key: str, path: Path, line: int, message: str) -> ProfileError:
    return ProfileError(f"{key}: {path}: line {line}: {harmless(message)[:_KEPT_MESSAGE]}")


@contextlib.contextmanager
def record_errors(key: str, path: Path, line: int) -> Iterator[None]:
    """Turn the `ValueError` of a record into a `ProfileError` that names its line."""
    try:
        yield
    except ValueError as error:
        raise malformed(key, path, line, str(error)) from None


def new_index() -> BinaryIO:
    folder = index_folder()
    return (folder / str(len(list(folder.iterdir())))).open("wb")


@lru_cache(maxsize=1)
def index_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vramp-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def line_records(key: str, path: Path, file: BinaryIO) -> Iterator[RawRecord]:
    offset = 0
    for number, content in enumerate(iter(partial(file.readline, MAX_RECORD_BYTES), b""), start=1):
        if len(content) >= MAX_RECORD_BYTES:
            raise malformed(key, path, number, "expected a line of less than 64 MiB")
        stripped = content.strip(b"\xef\xbb\xbf \t\r\n") if offset == 0 else content.strip()
        if stripped:
            yield RawRecord(number, offset + content.index(stripped), stripped)
        offset += len(content)


def array_records(key: str, path: Path, file: BinaryIO) -> Iterator[RawRecord]:
    """The elements of a JSON array, with no more of the file in memory than about its longest element."""
    window = _Window(key, path, file)
    if not window.opens_array():
        raise malformed(key, path, 1, "expected a JSON array")
    following = window.following()
    while following != "]":
        characters = window.value_length()
        yield RawRecord(window.line, window.offset, window.step(characters))
        following = window.following()
        if following == ",":
            window.step(1)
            window.following()
        elif following != "]":
            raise malformed(key, path, window.line, f"expected a comma or ] after a record, not {following!r}")
    window.step(1)
    if window.following(or_end=True):
        raise malformed(key, path, window.line, "expected nothing after the ] that closes the array")


class _Window:
    """The part of a text file that is being decoded; grows at its end and is cut at its start."""

    def __init__(self, key: str, path: Path, file: BinaryIO) -> None:
        self._key, self._path, self._file = key, path, file
        self._rest = b""
        self.text = ""
        self.at = 0  # characters consumed
        self.offset = 0  # bytes of the file consumed
        self.line = 1

    def grow(self) -> bool:
        """Read more, at least doubling the text; False at the end of the file."""
        self.text, self.at = self.text[self.at :], 0
        if len(self.text) > MAX_RECORD_BYTES:
            raise malformed(self._key, self._path, self.line, "expected records of less than 64 MiB")
        read = self._file.read(max(_CHUNK_BYTES, len(self.text)))
        whole = self._rest + read
        # The last character may be cut in the middle, unless the file ends there.
        for cut in range(4 if read else 1):
            try:
                self.text += whole[: len(whole) - cut].decode()
            except UnicodeDecodeError as error:
                valid = whole[: error.start]
                continue
            self._rest = whole[len(whole) - cut :]
            return bool(read)
        raise malformed(
            self._key, self._path, self.line + self.text.count("\n") + valid.count(b"\n"), "expected UTF-8 text"
        )

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

    def value_length(self) -> int:
        """The characters of the JSON value that begins here; raises `ProfileError` if there is none."""
        while True:
            try:
                _, end = _decode(self.text, self.at)
                return end - self.at
            except json.JSONDecodeError as error:
                at = error.pos - self.at
                is_open = error.msg.startswith("Unterminated")
                goes_on = is_open or error.pos + _LONGEST_WORD > len(self.text)
                if not goes_on or not self.grow():
                    line = self.line + self.text.count("\n", self.at, self.at + at)
                    cut = is_open or self.at + at >= len(self.text.rstrip())
                    why = f"expected JSON; {error.msg}{'; is the file cut off?' if cut else ''}"
                    raise malformed(self._key, self._path, line, why) from None

    def following(self, *, or_end: bool = False) -> str:
        """Consume white space, and return the character behind it; at the end of the file, "" if that may be there."""
        while True:
            space = _SPACE.match(self.text, self.at)
            self.step(space.end() - self.at if space else 0)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.grow():
                if or_end:
                    return ""
                raise malformed(
                    self._key, self._path, self.line, "expected the ] that closes the array; is the file cut off?"
                )
