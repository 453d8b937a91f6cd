"""The live sessions: how many send, pause or wait, and the ones with the longest contexts."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen import format as fmt
from loadgen.schema.deltas import SessionRow, SessionsNow
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, titled

HEADS = ("session", "in the file", "request", "of", "now", "context", "cached")
_WIDTHS = (11, 12, 9, 7, 12, 10, 8)


def sessions(frame: Frame, width: int, height: int) -> Rows:
    now = frame.snapshot.sessions
    if now is None:
        in_sessions = frame.no_load or frame.snapshot.load.in_sessions
        words = "no session is live" if in_sessions else "the load is not sessions: set load.sessions, or --sessions"
        return [titled("sessions", (), width), ((f" {words}", "dim"),)]
    heads: Row = (("".join(f"{head:>{cells}}" for head, cells in zip(HEADS, _WIDTHS, strict=True)), "dim"),)
    return [titled("sessions", (summary(frame, now),), width), heads, *map(_row, now.rows[: height - 2])]


def summary(frame: Frame, now: SessionsNow) -> tuple[str, str]:
    """Return how many there are, and whether their contexts fit into the KV cache."""
    start = frame.snapshot.server.start
    pool = start.kv_cache_tokens if start is not None else None
    contexts = f"contexts {fmt.number(now.context_tokens)} tokens"
    contexts += f" of {fmt.number(pool)}" if pool is not None else ""
    states = f"{now.live} live, {now.pausing} in a pause, {fmt.counted(frame.snapshot.load.held, 'request')} open"
    due = f", {now.due} due" if now.due else ""
    return (f"{states}{due}; {contexts}", "warn" if pool is not None and now.context_tokens > pool else "text")


def cells(row: SessionRow) -> Sequence[str]:
    state = f"{row.open} open" if row.open else "waits" if row.waits else "pause"
    cached = "" if row.cached_share is None else f"{row.cached_share:.0%}"
    numbers = (str(row.session), str(row.trace), str(row.request), str(row.requests))
    return (*numbers, state, fmt.number(row.context_tokens), cached)


def _row(row: SessionRow) -> Row:
    text = "".join(f"{cell:>{width}}" for cell, width in zip(cells(row), _WIDTHS, strict=True))
    return ((text, "text" if row.open else "waiting" if row.waits else "dim"),)
