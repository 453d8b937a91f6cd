"""Where a run leaves what it leaves: a folder of its own, claimed and tried before anything is started."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from loadgen.errors import ResultError
from loadgen.metrics.hlog import HistogramLog
from loadgen.metrics.journal import Journal, Line, RunFinished
from loadgen.metrics.stream_rows import RowsFormat, StreamRow, StreamRows, open_rows
from loadgen.store.lookup import HISTOGRAMS, JOURNAL, RUNS

_File = Journal | HistogramLog | StreamRows


def claim_folder(name: str, started: datetime) -> Path:
    """Make `runs/<UTC time>-<name>/`; a second run in the same second gets a number. Raises `ResultError`."""
    stem = f"{started.astimezone(UTC):%Y%m%dT%H%M%SZ}-{name}"
    for attempt in range(1, 1000):
        folder = RUNS / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if RUNS.is_dir():
                continue
            raise ResultError(f"{RUNS.absolute()}: is not a folder; results go there") from None
        except OSError as error:
            raise _unwritable(folder, error) from error
        return folder
    raise ResultError(f"{RUNS.absolute()}: cannot make a folder for {stem}")


def require_writable(path: Path) -> None:
    """Try that a file can be written where the result is to go; raises `ResultError`."""
    try:
        # From Python 3.14 `is_dir` does not tell what is wrong with a name that cannot be.
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(path.stat().st_mode):
                raise ResultError(f"{path}: is a folder; --json takes the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".vramp-")
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(descriptor)
    Path(name).unlink()


def _unwritable(path: Path, error: OSError) -> ResultError:
    return ResultError(f"{path.absolute()}: the result cannot be written there: {error.strerror}; nothing was started")


class SafeFiles:
    """The files that grow with a run. Each is given up, once and with a word, when the disk does not take it."""

    def __init__(self, folder: Path, records: RowsFormat | None = None) -> None:
        """Begin them, with `records` that of every stream's row too; raises `ResultError`."""
        self._journal = Journal(folder / JOURNAL)
        self._histograms = HistogramLog(folder / HISTOGRAMS)
        self._rows = open_rows(folder, records) if records is not None else None
        self._given_up: set[_File] = set()

    @property
    def keeps_rows(self) -> bool:
        """Whether every stream's row is asked for."""
        return self._rows is not None

    def write(self, line: Line) -> list[str]:
        """Take in a line; returns why what could not be written, each the one time that it fails."""
        problems = self._attempt(
            self._journal, lambda: self._journal.write(line), "; the run goes on, but would not survive a crash"
        )
        problems += self._attempt(self._histograms, lambda: self._histograms.apply(line))
        if isinstance(line, RunFinished) and self._rows is not None:
            problems += self._attempt(self._rows, self._rows.close)
        return problems

    def write_rows(self, rows: Mapping[int, Sequence[StreamRow]], model: str | None) -> list[str]:
        """Take in rows by worker, `model` where a row names none; returns what `write` does."""
        kept = self._rows
        if kept is None:
            return []
        return [
            problem
            for worker, its_rows in rows.items()
            for problem in self._attempt(kept, partial(kept.write, worker, its_rows, model))
        ]

    def flush(self) -> list[str]:
        """Bring the histograms of all that has been seen to the disk; returns what `write` does."""
        return self._attempt(self._histograms, self._histograms.flush)

    def close(self) -> None:
        """Close the files; what comes after that is not kept."""
        for file in (self._journal, self._histograms, self._rows):
            if file is not None:
                file.close()
                self._given_up.add(file)

    def _attempt(self, file: _File, write: Callable[[], None], loss: str = "; the run goes on without it") -> list[str]:
        if file in self._given_up:
            return []
        try:
            write()
        except ResultError as error:
            self._given_up.add(file)
            return [f"{error}{loss}"]
        return []
