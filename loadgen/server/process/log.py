"""The log of a server: followed while it is written, and made safe to show.

A log is external input (model names, prompts, libraries): no control sequence and no secret in it may reach the screen.
Invariants: the same bytes give the same lines, however the writes were split; memory is bounded, whatever is written; a
line is shown only after `clean_line`. Carriage returns end lines too (progress bars); empty lines are dropped. Access
log lines of successful requests, hundreds a second, are passed on but not kept.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from loadgen.masking import masked_text
from loadgen.places import open_file

MAX_LINE_CHARS = 2000
RING_LINES = 1000
_MAX_LINE_BYTES = 16_384
_MAX_POLL_BYTES = 1 << 20
_MAX_DIAGNOSED_BYTES = 8 << 20
_BREAK = re.compile(rb"[\r\n]+")
_ANSWERED = re.compile(r"INFO: +\S+ - \"[A-Z]+ \S+ HTTP/[\d.]+\" 2\d\d\b")  # uvicorn's access log of a success

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)?"  # OSC: titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b\x9c]*(?:\x1b\\|\x9c|$)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x9d[^\x07\x9c]*[\x07\x9c]?|[\x90\x98\x9e\x9f][^\x9c]*\x9c?"  # their one-byte forms
    r"|\x1b[ -/]*[0-~]?"  # every other escape
)
# C0 and C1, line separators, and the marks that turn the direction of text or hide it.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")

# The process that logs, then the level as vLLM, torch's C++ side or uvicorn writes it.
_PREFIX = re.compile(
    r"(?:\([^()]*(?:pid|rank)=[^()]*\)\s*)?(?:\[rank\d+\]:\s?)?"
    r"(?:(?P<level>[A-Z]+) [\d-]+ [\d:.,]+ (?:\[[^\]]*\]|\S+\]) ?"
    r"|\[(?P<torch>[IWEF])\d{3,4} [^\]]*\] ?"
    r"|(?P<uvicorn>DEBUG|INFO|WARNING|ERROR|CRITICAL): +)?"
)
_TORCH_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_UNTELLING = re.compile(r'\s*$|\s+\S|Traceback \(most recent|\s*File "|[\s^~]*$|.*\d+%\|')


class LogTail:
    """The lines of a growing file from `offset` on; the last thousand interesting ones are kept."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.total = 0  # lines kept so far; the ring holds the last of them
        self._start = self._offset = offset
        self._partial = b""
        self._ring: deque[str] = deque(maxlen=RING_LINES)

    @property
    def lines(self) -> list[str]:
        return list(self._ring)

    @property
    def unfinished(self) -> str:
        """The line that has not ended yet, such as the current state of a progress bar."""
        return clean_line(self._partial)

    def distinct_lines(self) -> list[str]:
        """The distinct lines of the last 8 MiB: a server that dies under load repeats itself for each stream."""
        try:
            with open_file(self.path) as file:
                size = file.seek(0, 2)
                file.seek(max(min(self._start, size), size - _MAX_DIAGNOSED_BYTES))
                entries = dict.fromkeys(_BREAK.split(file.read(_MAX_DIAGNOSED_BYTES)))
        except FileNotFoundError:
            return []
        return [line for line in (clean_line(entry[: _MAX_LINE_BYTES + 1]) for entry in entries) if line]

    def poll(self) -> list[str]:
        """The lines completed since the last call; reads at most 1 MiB at a time."""
        try:
            with open_file(self.path) as file:
                if file.seek(0, 2) < self._offset:  # it was truncated: begin again
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(_MAX_POLL_BYTES)
        except FileNotFoundError:
            return []
        if not data:
            return []
        self._offset += len(data)
        *complete, rest = _BREAK.split(self._partial + data)
        # Bytes beyond a line's limit are dropped as they arrive, so that they take no memory.
        self._partial = rest[: _MAX_LINE_BYTES + 1]
        lines = [line for line in (clean_line(entry[: _MAX_LINE_BYTES + 1]) for entry in complete if entry) if line]
        kept = [line for line in lines if not _ANSWERED.search(line)]
        self._ring.extend(kept)
        self.total += len(kept)
        return lines


def clean_line(data: bytes) -> str:
    """One line of bytes as text without control sequences, secrets, tabs or excessive length."""
    text = data.decode("utf-8", "replace").expandtabs(4)
    if not text.isprintable():  # otherwise there is nothing to remove
        text = _UNPRINTABLE.sub("", _ESCAPES.sub("", text))
    return shortened(masked_text(text), MAX_LINE_CHARS)  # in this order: half a secret would not be recognised


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def telling_lines(lines: Iterable[str], limit: int = 15) -> list[str]:
    """The last lines that say what went wrong, without progress, routine and the middle of tracebacks.

    Falls back to the last lines of any kind if there are none.
    """
    plain = [line.rstrip() for line in lines if line.strip()]
    split = ((line, *split_line(line)) for line in plain)
    telling = (line for line, level, message in split if not is_routine(level) and not _UNTELLING.match(message))
    return (list(dict.fromkeys(telling)) or plain)[-limit:]


def split_line(line: str) -> tuple[str, str]:
    """The level of a line (empty if none) and its message after process name, time and source."""
    prefix = _PREFIX.match(line)
    assert prefix is not None, "every part of the pattern is optional"
    level = prefix["level"] or prefix["uvicorn"] or _TORCH_LEVELS.get(prefix["torch"] or "", "")
    return level, line[prefix.end() :]


def is_routine(level: str) -> bool:
    return level in ("DEBUG", "INFO", "WARNING")
