"""`accept.jsonl`: what an acceptance was asked for and has done, line by line.

A line is on the disk before the next step begins, so that an acceptance can continue after a crash of vramp or of the
machine. The file is locked while vramp works in its folder; the beginning of a line that a crash cut off is removed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from loadgen.errors import ResultError
from loadgen.masking import masked
from loadgen.places import read_whole
from loadgen.schema.certificate import AcceptLine
from loadgen.store.acceptance import LINES, read_lines
from loadgen.store.growing import GrowingFile, writing

_WHAT = "the record of the acceptance"


class AcceptLog(GrowingFile):
    """The lines so far, and room for more."""

    def __init__(self, folder: Path) -> None:
        """Open the file in a folder; raises `ResultError`, also while another vramp has it open."""
        super().__init__(folder / LINES, _WHAT, "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ResultError(f"{folder}: another vramp works in this folder; wait for it, or end it") from None
        except OSError:
            pass  # a filesystem without locks
        written = read_whole(self.path)
        with writing(self.path, _WHAT):
            os.truncate(self.path, written.rfind(b"\n") + 1)
        self.lines = read_lines(folder) if written.rfind(b"\n") >= 0 else []

    def write(self, line: AcceptLine) -> None:
        """Append a line, without secrets, and wait until the disk has it; raises `ResultError`."""
        line = masked(line)
        self.append(msgspec.json.encode(line) + b"\n")
        with writing(self.path, _WHAT):
            os.fsync(self._file)
        self.lines.append(line)
