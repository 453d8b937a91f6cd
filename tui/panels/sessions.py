"""The live sessions: how many send, pause or wait, and the ones with the longest contexts."""

from __future__ import annotations

from loadgen import format as fmt
from loadgen.report.tabular import Column
from loadgen.schema.deltas import SessionRow, SessionsNow
from tui.panels.frame import Frame
from tui.panels.stages import cell_words, head_words
from tui.widgets.rows import Row, Rows, titled

COLUMNS: tuple[Column[SessionRow], ...] = (
    Column("session", lambda row: str(row.session), width=11),
    Column("in the file", lambda row: str(row.trace), width=12),
    Column("request", lambda row: str(row.request), width=9),
    Column("of", lambda row: str(row.requests), width=7),
    Column("now", lambda row: f"{row.open} open" if row.open else "waits" if row.waits else "pause", width=12),
    Column("context", lambda row: fmt.number(row.context_tokens), width=10),
    Column("cached", lambda row: "" if row.cached_share is None else f"{row.cached_share:.0%}", width=8),
)


def sessions(frame: Frame, width: int, height: int) -> Rows:
    now = frame.snapshot.sessions
    if now is None:
        in_sessions = frame.no_load or frame.snapshot.load.in_sessions
        words = "no session is live" if in_sessions else "the load is not sessions: set load.sessions, or --sessions"
        return [titled("sessions", (), width), ((f" {words}", "dim"),)]
    heads = tuple(head_words(COLUMNS))
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


def _row(row: SessionRow) -> Row:
    role = "text" if row.open else "waiting" if row.waits else "dim"
    return tuple(cell_words(COLUMNS, [row], role))
