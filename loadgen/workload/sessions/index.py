"""Indexes recorded sessions: reads files of them once, in the form that they have, and writes each tree to disk.

The rows of a session may lie anywhere in its file, so they are first written to a file of their own and read back
session by session. Memory holds a few numbers a row, and one session.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.format import counted
from loadgen.workload.files import (
    MAX_RECORD_BYTES,
    START_BYTES,
    RawRecord,
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
from loadgen.workload.sessions.data import GENERATED, SAMPLE, SessionData, SessionFormat
from loadgen.workload.sessions.generated import generated_tree
from loadgen.workload.sessions.recordings import (
    NO_PARENT,
    MooncakeRow,
    OtelSpan,
    mooncake_row,
    mooncake_session,
    otel_session,
    otel_spans,
    weka_session,
)
from loadgen.workload.sessions.tree import SessionTree

KEY = "load.sessions.data"
_SAMPLE_SEED, _SAMPLE_SESSIONS = 0, 100
_GENERATED_SESSIONS = 1_000_000
_MEASURED_SESSIONS = 32  # of generated ones, for their mean lengths
_SUFFIXES = (".json", ".jsonl", ".ndjson")
_WITHOUT_ANSWERS = "without answers"
_TOO_LONG = "whose first request is longer than load.sessions.max_context"

_Records = Iterable[tuple[Path, RawRecord]]


def index_sessions(
    name: str, *, seed: int = 0, scale: float = 1.0, block_size: int = 512, max_context: int | None = None
) -> SessionData:
    """The sessions of a file, of a folder of files, `sample` or `generated`.

    Raises `ProfileError` that names file, line and what was expected.
    """
    if name in (SAMPLE, GENERATED):
        return _generated(name, _SAMPLE_SEED if name == SAMPLE else seed, scale, max_context)
    if scale != 1:
        raise ProfileError(
            f"load.sessions.scale: is for generated sessions, not for those of {name}; --unset load.sessions.scale"
        )
    path = path_of(KEY, name)
    with file_errors(KEY, path):
        files = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise ProfileError(f"{KEY}: {path}: no file in it ends in {', '.join(_SUFFIXES)}")
        states = tuple((file, file.stat().st_size, file.stat().st_mtime_ns) for file in files)
        for file in files:
            if not file.is_file():
                raise ProfileError(f"{KEY}: {file}: is not a file; give one that can be read more than once")
        return _indexed(path, states, block_size, max_context)


@lru_cache(maxsize=16)
def _generated(name: str, seed: int, scale: float, max_context: int | None) -> SessionData:
    totals = _Totals(max_context)
    for number in range(_MEASURED_SESSIONS):
        totals.take(generated_tree(seed, number, scale))
    if not totals.trees:
        raise ProfileError(f"{KEY} = {name!r}: {totals.emptiness}; lower load.sessions.scale")
    scaled = f", with {scale:g} times their tokens" if scale != 1 else ""
    sessions = _SAMPLE_SESSIONS if name == SAMPLE else _GENERATED_SESSIONS
    return SessionData(
        form="generated",
        path=name,
        sessions=sessions,
        seed=seed,
        scale=scale,
        note=f"sessions drawn from published distributions{scaled}",
        sha256=hashlib.sha256(msgspec.msgpack.encode([generated_tree(seed, 0, scale), seed, sessions])).hexdigest(),
        **totals.means,
    )


@lru_cache(maxsize=8)
def _indexed(
    path: Path, states: tuple[tuple[Path, int, int], ...], block_size: int, max_context: int | None
) -> SessionData:
    files = [file for file, *_ in states]
    form = _form_of(next(_records(files), None), path)
    left_out: Counter[str] = Counter()
    totals, entries, end = _Totals(max_context), array("q"), 0
    with new_index() as index:
        for tree in _trees(form, _records(files), left_out, block_size):
            if tree is None or not totals.take(tree):
                totals.left_out[_WITHOUT_ANSWERS] += tree is None
                continue
            content = msgspec.msgpack.encode(tree)
            index.write(content)
            entries.extend((end, len(content)))
            end += len(content)
        entries.tofile(index)
    if not totals.trees:
        raise ProfileError(f"{KEY}: {path}: {totals.emptiness}")
    return SessionData(
        form=form,
        path=str(path),
        index=str(index.name),
        sessions=totals.trees,
        left_out=totals.left_out.total(),
        note=totals.note(left_out),
        bytes=sum(size for _, size, _ in states),
        sha256=_digest(files),
        **totals.means,
    )


class _Totals:
    """What the sessions of an index have in all."""

    def __init__(self, max_context: int | None) -> None:
        self._max_context = max_context
        self.trees = self._requests = self._subagents = self._isl = self._osl = self._longest = 0
        self.left_out: Counter[str] = Counter()

    def take(self, tree: SessionTree) -> bool:
        """Count what is played of a session; False if that is nothing, because its first request is too long."""
        limit = self._max_context or math.inf
        played = list(takewhile(lambda request: request.isl + request.osl <= limit, tree.requests))
        if not played:
            self.left_out[_TOO_LONG] += 1
            return False
        self.trees += 1
        self._requests += len(played)
        self._subagents += len({request.chain for request in played}) - 1
        self._isl += sum(request.isl for request in played)
        self._osl += sum(request.osl for request in played)
        self._longest = max(self._longest, tree.longest)
        return True

    @property
    def means(self) -> dict[str, Any]:
        """Fields of `SessionData`."""
        return {
            "requests": self._requests,
            "subagents": self._subagents,
            "isl": max(1, round(self._isl / self._requests)),
            "osl": max(1, round(self._osl / self._requests)),
            "longest": min(self._longest, self._max_context or self._longest),
        }

    @property
    def emptiness(self) -> str:
        return f"no sessions to play{self._left_out('session', self.left_out)}"

    def note(self, requests_left_out: Counter[str]) -> str:
        """Describe what is played of the files, and what is not."""
        agents = f" and {counted(self._subagents, 'sub-agent')}" if self._subagents else ""
        orphans = requests_left_out.pop(NO_PARENT, 0)
        taken = f"; {counted(orphans, 'request')} {NO_PARENT}, taken as the outermost agent's" if orphans else ""
        left_out = self._left_out("session", self.left_out) + self._left_out("request", requests_left_out)
        return f"{counted(self.trees, 'session')} of {counted(self._requests, 'request')}{agents}{taken}{left_out}"

    def _left_out(self, what: str, reasons: Counter[str]) -> str:
        words = [f"{counted(number, what)} {why}" for why, number in reasons.items() if number]
        return f"; left out: {', '.join(words)}" if words else ""


def _records(files: Iterable[Path]) -> Iterator[tuple[Path, RawRecord]]:
    """The records of files: lines, elements of an array, or one object that fills a file."""
    for path in files:
        with opened(KEY, path) as (file, start):
            first_line = start.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0].rstrip()
            whole = len(start) < START_BYTES or first_line == b"{"
            if opens_array(start):
                records: Iterable[RawRecord] = array_records(KEY, path, file)
            elif whole and not first_line.endswith(b"}") and path.stat().st_size < MAX_RECORD_BYTES:
                records = [RawRecord(1, 0, file.read().strip(b"\xef\xbb\xbf \t\r\n"))]
            else:
                records = line_records(KEY, path, file)
            for raw in records:
                if raw.content:
                    yield path, raw


def _form_of(first: tuple[Path, RawRecord] | None, path: Path) -> SessionFormat:
    """The format of files that begin with this record."""
    if first is None:
        raise ProfileError(f"{KEY}: {path}: no sessions in it")
    path, raw = first
    try:
        keys: set[str] = set(msgspec.json.decode(raw.content, type=dict[str, msgspec.Raw]))
    except UNDECODABLE as error:
        raise malformed(KEY, path, raw.line, f"expected a JSON object; {error}") from None
    if "requests" in keys:
        return "weka"
    if "session_id" in keys and "input_length" in keys:
        return "mooncake"
    if {"resourceSpans", "resource_spans", "spans", "spanId", "span_id"} & keys:
        return "otel"
    raise malformed(
        KEY,
        path,
        raw.line,
        "expected sessions: weka's objects with `requests`, Mooncake's rows with `session_id` and `input_length`, or "
        f"OpenTelemetry's spans; found {', '.join(sorted(keys)) or 'an empty object'}",
    )


def _trees(
    form: SessionFormat, records: _Records, left_out: Counter[str], block_size: int
) -> Iterator[SessionTree | None]:
    """The sessions of files in the order in which they first appear; None for one without answers."""
    if form == "weka":
        for path, raw in records:
            with record_errors(KEY, path, raw.line):
                yield weka_session(raw.content, left_out)
        return
    with new_index() as file:
        rows = _Rows(file)
        for path, raw in records:
            with record_errors(KEY, path, raw.line):
                parsed = [mooncake_row(raw.content, block_size)] if form == "mooncake" else otel_spans(raw.content)
                rows.add_all(parsed, path, raw.line)
        file.flush()
        for path, line, contents in rows.sessions():
            with record_errors(KEY, path, line):
                if form == "mooncake":
                    yield mooncake_session([_decode_row(each) for each in contents], block_size, left_out)
                else:
                    yield otel_session([_decode_span(each) for each in contents], left_out)
        file.truncate(0)


_decode_row = msgspec.msgpack.Decoder(MooncakeRow).decode
_decode_span = msgspec.msgpack.Decoder(OtelSpan).decode


class _Rows:
    """Rows on disk, to be read back session by session."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._paths: list[Path] = []
        self._sessions, self._places, self._lines = array("Q"), array("q", [0]), array("q")
        self._of_paths = array("i")

    def add_all(self, rows: Iterable[MooncakeRow | OtelSpan], path: Path, line: int) -> None:
        """Add the rows of a record, which is on this line."""
        if not self._paths or self._paths[-1] != path:
            self._paths.append(path)
        for row in rows:
            content = msgspec.msgpack.encode(row)
            self._file.write(content)
            digest = hashlib.blake2b(str(row.session).encode("utf-8", "surrogatepass"), digest_size=8).digest()
            self._sessions.append(int.from_bytes(digest))
            self._places.append(self._places[-1] + len(content))
            self._lines.append(line)
            self._of_paths.append(len(self._paths) - 1)

    def sessions(self) -> Iterator[tuple[Path, int, list[bytes]]]:
        """The rows of each session in their order, with the file and line of the first."""
        if not self._lines:
            return
        _, firsts, numbers = np.unique(np.array(self._sessions), return_index=True, return_inverse=True)
        order = np.argsort(firsts[numbers], kind="stable")
        ends = np.flatnonzero(np.diff(firsts[numbers][order], append=-1)) + 1
        with Path(self._file.name).open("rb") as file:
            for rows in np.split(order, ends[:-1]):
                contents = []
                for row in rows.tolist():
                    file.seek(self._places[row])
                    contents.append(file.read(self._places[row + 1] - self._places[row]))
                first = int(rows[0])
                yield self._paths[self._of_paths[first]], self._lines[first], contents


def _digest(files: list[Path]) -> str:
    """The checksum of a file; for several, that of their checksums."""
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256"))
    of_all = digests[0] if len(files) == 1 else hashlib.sha256(b"".join(each.digest() for each in digests))
    return of_all.hexdigest()
