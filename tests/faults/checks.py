"""What must hold after a fault, whichever it was and whatever was hit: each check returns what is wrong, in words."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jsonschema_rs

from loadgen.errors import VrampError
from loadgen.schema.deltas import OUTCOMES
from loadgen.schema.journal import Line, RunStarted, Ticked
from loadgen.schema.result import RESULT
from loadgen.store.journal import JOURNAL, read_journal
from loadgen.store.recover import recover
from loadgen.store.runs import has_result
from tests.result_schema import require_schema

GONE_WITHIN_S = 30.0
LOST_AT_MOST_S = 1.0
_PROBES = 2  # requests of vramp's own before the load
# At the beginning of a line: a log on the screen, or a line of one that is told, is the server's.
_TRACEBACK = re.compile(r"^(?:Traceback \(most recent call last\)|Fatal Python error)", re.MULTILINE)
_ALTERNATE, _LEFT = "\x1b[?1049h", "\x1b[?1049l"


def nothing_left(find: Callable[[], dict[int, bytes]]) -> list[str]:
    """No process of the run lives on for half a minute."""
    until_s = time.monotonic() + GONE_WITHIN_S
    while (left := find()) and time.monotonic() < until_s:
        time.sleep(0.1)
    return [
        f"left: pid {pid}: {words.replace(bytes(1), b' ').decode(errors='replace')[:120]}"
        for pid, words in left.items()
    ]


def no_traceback(said: str, folder: Path) -> list[str]:
    """Neither in what it printed nor in its logs; the server's own are the server's."""
    found = []
    for name, text in [("output", said), *_logs(folder)]:
        at = _TRACEBACK.search(text)
        rest = text[at.start() : at.start() + 4000] if at is not None else ""
        if rest and (not name.startswith("server") or "server/process/guard" in rest):
            found.append(f"traceback in {name}: {rest.strip().splitlines()[-1][:200]}")
    return found


def _logs(folder: Path) -> Iterable[tuple[str, str]]:
    for path in folder.rglob("*.log"):
        with contextlib.suppress(OSError):
            yield path.name, path.read_text(encoding="utf-8", errors="replace")


def terminal_restored(said: str) -> list[str]:
    """A screen that was taken was given back."""
    return ["the terminal was left in its alternate screen"] if said.rfind(_ALTERNATE) > said.rfind(_LEFT) else []


def exit_code(code: int, expected: Iterable[int]) -> list[str]:
    return [] if code in expected else [f"exit code {code}, expected one of {sorted(expected)}"]


def names_the_cause(pattern: str, *texts: str) -> list[str]:
    """What was said, or what the result tells, matches."""
    reported = any(re.search(pattern, text, re.IGNORECASE) for text in texts)
    return [] if reported else [f"no message matches {pattern!r}"]


def words_of(document: dict[str, Any] | None) -> str:
    """What a result says of what went wrong."""
    if document is None:
        return ""
    stages = [[stage["requests"], stage["stop_reason"]] for stage in document["stages"]]
    return json.dumps([document["reason"], document["events"], document.get("diagnosis"), stages])


def result_of(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The result that is there, or that `vramp recover` makes; none if the run had not begun when it ended."""
    if not (folder / JOURNAL).exists() and not (folder / RESULT).exists():
        return None, []
    problems: list[str] = []
    if not has_result(folder):
        try:
            recover(folder)
        except VrampError as error:
            began = any(isinstance(line, RunStarted) for line in journal_of(folder))
            return None, [f"cannot be recovered: {error}"] if began else []
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the case is about
            return None, [f"recover fails: {error!r}"]
    content = (folder / RESULT).read_bytes()
    try:
        require_schema(content)
    except jsonschema_rs.ValidationError as error:
        problems.append(f"the result does not fit the schema: {error.message[:200]}")
    document: dict[str, Any] = json.loads(content)
    return document, problems + adds_up(document)


def adds_up(document: dict[str, Any]) -> list[str]:
    """Every request of every stage is accounted for."""
    wrong = []
    for stage in document["stages"]:
        requests = stage["requests"]
        parts = sum(requests[name] for name in OUTCOMES)
        failed = requests["failed"] + (requests.get("carried_failed") or 0)
        if requests["sent"] != parts:
            wrong.append(f"stage {stage['index']}: sent {requests['sent']} is not {parts}")
        if requests["scheduled"] != requests["sent"] + (requests["unsent"] or 0):
            wrong.append(f"stage {stage['index']}: scheduled is not sent and unsent")
        if sum(requests["errors"].values()) != failed:
            wrong.append(f"stage {stage['index']}: {failed} failed, {sum(requests['errors'].values())} errors")
    return wrong


def journal_of(folder: Path) -> list[Line]:
    try:
        return list(read_journal(folder / JOURNAL, skipped=[]))
    except VrampError:
        return []


def holds_what_was_served(folder: Path, served: int) -> list[str]:
    """The journal has the requests that the server completed until a second before the end, or before the fault."""
    recorded = sum(line.client.requests for line in journal_of(folder) if isinstance(line, Ticked))
    missing = served - _PROBES - recorded
    return [f"the journal has {recorded} completed requests of {served}"] if missing > 0 else []
