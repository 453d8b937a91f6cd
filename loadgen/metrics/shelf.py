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


class Place(NamedTuple):
    """Where on a shelf something lies, in bytes."""

    begin: int
    length: int


class Shelf:
    """Takes bytes, and gives them back; the place of what is taken out is not used again."""

    def __init__(self, folder: Path | None = None) -> None:
        """The file will be in this folder, otherwise where the system has its temporary ones."""
        self._folder = folder
        self._file: int | None = None  # its descriptor
        self._end = 0
        self._kept: dict[Place, bytes] = {}  # what could not be written

    def put(self, figures: bytes) -> Place:
        place = Place(self._end, len(figures))
        self._end += len(figures)
        try:
            if self._file is None:
                self._file = self._open()
            is_written = os.pwrite(self._file, figures, place.begin) == len(figures)
        except OSError:
            is_written = False
        if not is_written:
            self._kept[place] = figures
        return place

    def take(self, place: Place) -> bytes:
        """What was put there; raises `ResultError` if the disk does not give it back."""
        if place in self._kept:
            return self._kept[place]
        assert self._file is not None, "nothing has a place without being put there"
        try:
            figures = os.pread(self._file, place.length, place.begin)
        except OSError as error:
            raise ResultError(f"figures of an earlier stage cannot be read back: {error}") from error
        if len(figures) < place.length:
            raise ResultError("figures of an earlier stage cannot be read back: their file has been cut")
        return figures

    def _open(self) -> int:
        with tempfile.TemporaryFile(buffering=0, dir=self._folder) as file:
            descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, descriptor)
        return descriptor
