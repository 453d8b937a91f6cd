"""Where a run leaves what it leaves: a folder of its own, claimed and tried before anything is started."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from loadgen.errors import ResultError
from loadgen.metrics.journal import Journal, Line

RUNS = Path("runs")


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
    if path.is_dir():
        raise ResultError(f"{path}: is a folder; --json takes the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".vramp-")
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(descriptor)
    Path(name).unlink()


def _unwritable(path: Path, error: OSError) -> ResultError:
    return ResultError(f"{path.absolute()}: the result cannot be written there: {error.strerror}; nothing was started")


class SafeJournal:
    """A journal that gives up, once and with a word, when the disk does: the run goes on without it."""

    def __init__(self, path: Path) -> None:
        self._journal: Journal | None = Journal(path)

    def write(self, line: Line) -> str | None:
        """Append a line; returns why, the one time that it fails."""
        if self._journal is None:
            return None
        try:
            self._journal.write(line)
        except ResultError as error:
            self.close()
            return f"{error}; the run goes on, but would not survive a crash"
        return None

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
