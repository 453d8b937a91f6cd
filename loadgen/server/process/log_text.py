"""The text of a server's log made fit to show: harmless to a terminal, and reduced to the lines that tell why.

A log is input from elsewhere (model names, prompts, libraries): no control sequence in it may reach the screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_LINE_CHARS = 2000

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
_ROUTINE = ("DEBUG", "INFO", "WARNING")


def clean_line(data: bytes) -> str:
    """One line of bytes as text without control sequences, tabs or excessive length."""
    text = _UNPRINTABLE.sub("", _ESCAPES.sub("", data.decode("utf-8", "replace").expandtabs(4)))
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


def telling_lines(lines: Iterable[str], limit: int = 15) -> list[str]:
    """The last lines that say what went wrong, without progress, routine and the middle of tracebacks.

    Falls back to the last lines as they are, if none of them tells.
    """
    plain = [line.rstrip() for line in lines if line.strip()]
    telling = list(dict.fromkeys(line for line in plain if _tells(line)))
    return (telling or plain)[-limit:]


def split_line(line: str) -> tuple[str, str]:
    """The level of a line, empty where it names none, and what it says after the names of process, time and source."""
    prefix = _PREFIX.match(line)
    assert prefix is not None, "every part of the pattern is optional"
    level = prefix["level"] or prefix["uvicorn"] or _TORCH_LEVELS.get(prefix["torch"] or "", "")
    return level, line[prefix.end() :]


def is_routine(level: str) -> bool:
    """Whether lines of this level say nothing about a failure."""
    return level in _ROUTINE


def _tells(line: str) -> bool:
    level, message = split_line(line)
    return not is_routine(level) and _UNTELLING.match(message) is None
