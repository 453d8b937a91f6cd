"""An unnamed temporary file for the figures of stages that ended long ago; it disappears with the run.

In memory they would make a run grow by a few kilobytes per stage. What cannot be written, because the disk is full or
no descriptor is left, stays in memory; the journal reports problems with the disk.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

from loadgen.errors import ResultError


class Extent(NamedTuple):
    """Where in the file something lies, in bytes."""

    begin: int
    length: int


class SpillFile:
    """Takes bytes, and gives them back; the extent of what has been read is not used again."""

    def __init__(self, folder: Path | None = None) -> None:
        """The file will be in this folder, otherwise where the system has its temporary ones."""
        self._folder = folder
        self._file: int | None = None  # its descriptor
        self._end = 0
        self._kept: dict[Extent, bytes] = {}  # what could not be written

    def write(self, figures: bytes) -> Extent:
        extent = Extent(self._end, len(figures))
        self._end += len(figures)
        try:
            if self._file is None:
                self._file = self._open()
            is_written = os.pwrite(self._file, figures, extent.begin) == len(figures)
        except OSError:
            is_written = False
        if not is_written:
            self._kept[extent] = figures
        return extent

    def read(self, extent: Extent) -> bytes:
        """What was written there; raises `ResultError` if the disk does not give it back."""
        if extent in self._kept:
            return self._kept[extent]
        assert self._file is not None, "nothing has an extent without being written"
        try:
            figures = os.pread(self._file, extent.length, extent.begin)
        except OSError as error:
            raise ResultError(f"figures of an earlier stage cannot be read back: {error}") from error
        if len(figures) < extent.length:
            raise ResultError("figures of an earlier stage cannot be read back: their file has been cut")
        return figures

    def _open(self) -> int:
        with tempfile.TemporaryFile(buffering=0, dir=self._folder) as file:
            descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, descriptor)
        return descriptor
