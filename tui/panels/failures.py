"""Failures: each kind with its share, when it was seen, the messages that differ, and what to do about it."""

from __future__ import annotations

import textwrap

from loadgen import format as fmt
from loadgen.metrics.snapshot import ErrorView
from loadgen.report.notes import account_words
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, cropped, titled

REMEDIES = {
    "connect": "is the server up, and is its port the one of the profile? `ss -ltn` shows what listens",
    "timeout": "load.timeout was too short for this load, or the engine is stuck: look at its log (6)",
    "stall": "a stream stopped in its middle: look at the engine's log (6) for preemptions or a hanging step",
    "reset": "the server closed the connection: did it restart, or reach its limit of connections? look at its log (6)",
    "http_4xx": "the server refuses the request: model name, max_model_len, API key; the message says which",
    "http_429": "the server limits the rate: less load, or a higher limit there",
    "http_5xx": "the server failed: its log (6) has the reason at the same time",
    "protocol": "this is not an OpenAI-compatible stream: is the URL that of the API, not of a page or a proxy?",
    "bad_event": "an event of the stream was no JSON: a proxy between, or a bug of the server",
    "engine_error": "the engine reported an error inside a stream: its log (6) has the reason",
    "empty": "streams ended without a token: max_tokens, stop words or the chat template",
}
_INDENT = 10


def failures(frame: Frame, width: int, height: int) -> Rows:
    """As many kinds as fit, each whole, the most frequent first."""
    kinds = frame.snapshot.errors
    total = sum(error.count for error in kinds)
    legend: Row = (
        ((f"{fmt.count(total)} of {fmt.count(_sent(frame))} requests", "bad"),) if total else (("none", "dim"),)
    )
    account = _account(frame, width)
    rows: Rows = []
    for number, error in enumerate(kinds):
        group = _kind(error, total, frame, width)
        if rows and len(rows) + len(group) > height - 2 - len(account):
            rows.append(((f" … {len(kinds) - number} kinds more", "dim"),))
            break
        rows += group
    return [titled("errors", legend, width), *account, *rows]


def _account(frame: Frame, width: int) -> Rows:
    """What became of every request of the run, and of those of the running stage."""
    stage, whole = frame.stage, frame.snapshot.whole
    found = [("run", whole)] if whole is not None and whole.sent else []
    found += [(f"stage {stage.number}", stage)] if stage is not None and len(frame.snapshot.stages) > 1 else []
    rows: Rows = []
    for name, each in found:
        first, *others = _wrapped(account_words(each), width, "text")
        rows += [((f" {name:<{_INDENT - 1}}", "dim"), *first[1:]), *others]
    return [*rows, ()] if rows else []


def _sent(frame: Frame) -> int | None:
    return frame.snapshot.whole.sent if frame.snapshot.whole is not None else None


def _kind(error: ErrorView, total: int, frame: Frame, width: int) -> Rows:
    share = fmt.percent(error.count / total if total else None)
    head: Row = (
        (f" {fmt.count(error.count):>7}  {fmt.plain(error.kind):<14}", "bad"),
        (f"{share:>6}  ", "text"),
        (seen(frame, error.kind), "dim"),
    )
    rows: Rows = [head]
    for example in error.examples or (error.message,):
        rows += _wrapped(fmt.plain(example), width, "text")
    if error.kind in REMEDIES:
        rows += _wrapped(f"→ {REMEDIES[error.kind]}", width, "key")
    return [cropped(row, width) for row in rows] + [()]


def seen(frame: Frame, kind: str) -> str:
    """When a kind of failure was first and last seen."""
    times_s = frame.timeline.error_times_s.get(kind)
    return f"first {fmt.clock(times_s[0])}, last {fmt.clock(times_s[1])}" if times_s is not None else ""


def _wrapped(text: str, width: int, role: str) -> Rows:
    lines = textwrap.wrap(text, max(20, width - _INDENT), break_on_hyphens=False)
    return [((" " * _INDENT, "text"), (line, role)) for line in lines]
