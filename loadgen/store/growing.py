"""A file that grows during a run, in whole pieces."""

from __future__ import annotations

import contextlib
import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from loadgen.errors import reported_as
from loadgen.places import open_private


def writing(path: Path, what: str) -> AbstractContextManager[None]:
    """Raise `ResultError` where the disk fails."""
    return reported_as(f"{path}: {what} cannot be written")


class GrowingFile:
    """A file to which whole pieces are appended; every method raises `ResultError` when the disk fails."""

    def __init__(self, path: Path, what: str, mode: Literal["ab", "wb"]) -> None:
        self.path, self._what = path, what
        with writing(path, what):
            self._file = open(path, mode, buffering=0, opener=open_private)  # noqa: SIM115 - it stays open

    def append(self, data: bytes) -> None:
        """Append all of it or nothing, even if the disk has room for a part."""
        with writing(self.path, self._what):
            place = self._file.seek(0, os.SEEK_END)
            try:
                if self._file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(place)
                raise

    def close(self) -> None:
        self._file.close()
