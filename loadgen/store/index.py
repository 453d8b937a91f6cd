"""An index of the runs below a folder, in sqlite, so that thousands are listed without reading their results again.

The folders are the truth. A row holds what `read` made of one folder, and counts while its file's time and size stay as
they were; runs that may still change are never kept. The index is a cache: it can be deleted at any time, one that is
damaged or of another layout is made again, and one that cannot be used is passed over, each with a message.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from loadgen.places import cache_folder
from loadgen.schema.result import RESULT
from loadgen.store.journal import JOURNAL

CERTIFICATE = "certificate.json"
_FILES = (RESULT, JOURNAL, CERTIFICATE)
_MAX_DEPTH = 6  # folders below the one that is searched
_BATCH = 200
_WAIT_S = 2.0  # for another process that writes the index
_TABLE = "CREATE TABLE runs (folder BLOB PRIMARY KEY, stamp TEXT, summary BLOB, details BLOB)"


class IndexEntry(NamedTuple):
    """What is kept of a run: enough to list it, and the details, which are read only where they are asked for."""

    summary: bytes
    details: bytes = b""
    ended: bool = True  # it will not change unless its file does


Read = Callable[[Path], IndexEntry | None]
"""Reads the run in a folder; None if it is gone."""


def index_path() -> Path:
    return cache_folder("index") / "runs.sqlite"


def runs_below(
    root: Path, read: Read, layout: int, *, details: bool = False, note: Callable[[str], None] = lambda _: None
) -> dict[str, IndexEntry]:
    """Every run below a folder, by its resolved path; `note` gets what the user should know about the index.

    `layout` is a number above zero that changes with what `read` makes.
    """
    whole = str(root.resolve())
    found = dict(_stamps(whole))
    for _ in range(2):
        try:
            with closing(sqlite3.connect(index_path(), timeout=_WAIT_S, isolation_level=None)) as index:
                _require_layout(index, layout, note)
                return _through(index, whole, found, read, details=details, note=note)
        except sqlite3.OperationalError as error:
            note(f"{index_path()}: the index cannot be used ({error}): the runs are read without it")
            break
        except sqlite3.DatabaseError as error:
            note(f"{index_path()}: the index is rebuilt: {error}")
            index_path().unlink(missing_ok=True)
    return dict(_read_all(found, read, note))


def _require_layout(index: sqlite3.Connection, layout: int, note: Callable[[str], None]) -> None:
    """Make the table, in place of one of another layout."""
    if _layout_of(index) == layout:
        return
    index.execute("BEGIN IMMEDIATE")
    if (other := _layout_of(index)) != layout:  # no other process was faster
        if other:
            note(f"{index_path()}: the index is rebuilt: it was written by another version of vramp")
        index.execute("DROP TABLE IF EXISTS runs")
        index.execute(_TABLE)
        index.execute(f"PRAGMA user_version = {layout}")
    index.execute("COMMIT")


def _layout_of(index: sqlite3.Connection) -> int:
    (layout,) = index.execute("PRAGMA user_version").fetchone()
    return int(layout)


def _through(
    index: sqlite3.Connection,
    root: str,
    found: dict[str, str],
    read: Read,
    *,
    details: bool,
    note: Callable[[str], None],
) -> dict[str, IndexEntry]:
    """The runs that were found, each as the index has it if that is current, and read into the index if not."""
    whole = os.fsencode(root).rstrip(b"/")
    rows = index.execute(
        f"SELECT folder, stamp, summary, {'details' if details else 'NULL'} FROM runs"  # noqa: S608 - a column's name
        " WHERE folder = ? OR folder > ? AND folder < ?",
        (whole, whole + b"/", whole + b"0"),  # `0` comes after `/`
    )
    kept, gone = {}, []
    for name, stamp, summary, more in rows:
        folder = os.fsdecode(name)
        if found.get(folder) == stamp:
            kept[folder] = IndexEntry(summary, more or b"")
        else:
            gone.append((name,))
    unread = {folder: stamp for folder, stamp in found.items() if folder not in kept}
    new: list[tuple[bytes, str, bytes, bytes]] = []
    for folder, entry in _read_all(unread, read, note):
        kept[folder] = entry
        if entry.ended:
            new.append((os.fsencode(folder), found[folder], *entry[:2]))
        if len(new) == _BATCH:
            _write(index, new, gone)
            new, gone = [], []
    _write(index, new, gone)
    return kept


def _write(index: sqlite3.Connection, new: list[tuple[bytes, str, bytes, bytes]], gone: list[tuple[bytes]]) -> None:
    if new or gone:
        index.execute("BEGIN IMMEDIATE")
        index.executemany("DELETE FROM runs WHERE folder = ?", gone)
        index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", new)
        index.execute("COMMIT")


def _read_all(found: dict[str, str], read: Read, note: Callable[[str], None]) -> Iterator[tuple[str, IndexEntry]]:
    """Read runs, those with the last names first, because names begin with the time."""
    if len(found) >= _BATCH:
        note(f"reading {len(found):,} runs")
    for folder in sorted(found, reverse=True):
        entry = read(Path(folder))
        if entry is not None:
            yield folder, entry


def _stamps(folder: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every folder of a run at or below this one, with the time and size of the file that tells about it."""
    for name in _FILES:
        try:
            found = os.stat(f"{folder}/{name}")  # noqa: PTH116 - ten thousand times
        except OSError:
            continue
        yield folder, f"{found.st_mtime_ns}:{found.st_size}"
        if name != CERTIFICATE:  # an acceptance has its runs below it
            return
    if depth < _MAX_DEPTH:
        try:
            with os.scandir(folder) as entries:
                children = [(entry.path, entry.is_symlink()) for entry in entries if entry.is_dir()]
        except OSError:
            return
        for child, is_link in children:
            yield from _stamps(child, _MAX_DEPTH if is_link else depth + 1)  # what links lead to may have no end
