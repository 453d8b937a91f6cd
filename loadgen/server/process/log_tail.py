"""Follows the log file of a server while it is written.

Invariants: the same bytes give the same lines, however they were split into writes; memory is bounded, whatever is
written; a line is shown only after `clean_line`. Carriage returns end lines too (progress bars); empty lines are
dropped. Under load a server writes a line for each request that it answered, hundreds a second: those are handed on,
but not kept, so that what the engine has to say stays in sight.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from loadgen.server.process.log_text import clean_line

RING_LINES = 1000
_MAX_LINE_BYTES = 16_384
_MAX_POLL_BYTES = 1 << 20
_BREAK = re.compile(rb"[\r\n]+")
_ANSWERED = re.compile(r"INFO: +\S+ - \"[A-Z]+ \S+ HTTP/[\d.]+\" 2\d\d\b")
"""How uvicorn, vLLM's web server, tells that all went well."""


class LogTail:
    """The lines of a growing file from `offset` on; of those worth a look the last thousand are kept."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.total = 0  # lines kept so far; the ring holds the last of them
        self._offset = offset
        self._partial = b""
        self._ring: deque[str] = deque(maxlen=RING_LINES)

    @property
    def lines(self) -> list[str]:
        return list(self._ring)

    @property
    def unfinished(self) -> str:
        """What has been written of a line that has not ended yet: the current state of a progress bar."""
        return clean_line(self._partial)

    def poll(self) -> list[str]:
        """The lines that were completed since the last call; at most a mebibyte of file is read each time."""
        data = self._read()
        if not data:
            return []
        *complete, rest = _BREAK.split(self._partial + data)
        # The excess of a line without an end is dropped as it comes, so that it needs no memory.
        self._partial = rest[: _MAX_LINE_BYTES + 1]
        lines = [line for line in (clean_line(entry[: _MAX_LINE_BYTES + 1]) for entry in complete if entry) if line]
        kept = [line for line in lines if not _ANSWERED.search(line)]
        self._ring.extend(kept)
        self.total += len(kept)
        return lines

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # truncated by somebody: begin again
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(_MAX_POLL_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data
