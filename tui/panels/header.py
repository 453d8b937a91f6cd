"""The header: profile, server and progress, with the verdict at the right end.

If it does not fit, the verdict loses its explanation, which the panels give in full, and then the least important
items are dropped; profile and stage stay. A verdict that is still too long keeps at least half of the width.
"""

from __future__ import annotations

from loadgen import format as fmt
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, cropped, spread, width_of

_GAP: Word = ("  ", "text")
_Item = tuple[int, Row]  # a rank, of which the highest is dropped first and 0 never, and what to show
_PHASES = {
    "checking": "preflight",
    "starting": "server starting",
    "probing": "first request",
    "running": "",
    "holding": "plan done",
}
"""Names for phases whose own name is not clear."""
_WATCHING = {"guest": "watching", "watcher": "watching, read-only"}


def header(frame: Frame, width: int, height: int) -> Rows:
    """Draw all in one row, or with more height identity above and progress below."""
    if height > 1:
        above = _fitted(_identity(frame), width - 1)
        return [((" ", "text"), *above), _with_verdict(frame, _progress(frame), width)]
    return [_with_verdict(frame, [*_identity(frame), *_progress(frame)], width)]


def _with_verdict(frame: Frame, items: list[_Item], width: int) -> Row:
    shown = [item for item in items if width_of(item[1])]
    least = width_of(_spaced([item for item in shown if not item[0]]))
    healthy, text = frame.snapshot.healthy, fmt.plain(frame.snapshot.headline) or fmt.UNKNOWN
    text = text if healthy else f"! {text}"
    if frame.stale:
        healthy, text = False, f"! no data for {frame.age_s:.0f} s"
    if width_of(_spaced(shown)) + width_of(((text, ""),)) + 4 > width:
        # Without the explanation behind the second colon: `! client-limited: read lag p99 33 ms: the client read late`.
        text = ": ".join(text.split(": ")[:2])
    verdict = cropped(((text, "good" if healthy else "bad"),), max(width // 2, width - least - 4))
    left = _fitted(items, width - width_of(verdict) - 4)
    return ((" ", "text"), *spread(left, verdict, width - 2))


def _identity(frame: Frame) -> list[_Item]:
    snapshot, server = frame.snapshot, frame.snapshot.server
    state_role = {"ready": "good", "died": "bad"}.get(server.state, "warn")
    if not snapshot.has_server:
        return [
            (0, (("vramp", "title"),)),
            (0, ((fmt.plain(snapshot.profile), "strong"),)),
            (2, (("no server", "dim"),)),
        ]
    attached = server.engine == "attach"
    kind = snapshot.engine.kind if attached and snapshot.engine is not None else None
    engine = " ".join(fmt.plain(text) for text in (kind or server.engine, server.version) if text)
    # The uptime of a server that vramp did not start is unknown.
    uptime = "" if attached else f"up {fmt.clock(server.uptime_s)}"
    return [
        (0, (("vramp", "title"),)),
        (0, ((fmt.plain(snapshot.profile), "strong"),)),
        (4, ((fmt.plain(server.model or ""), "dim"),)),
        (2, ((f"{engine} ", "dim"), (server.state, state_role))),
        (3, ((uptime, "dim"),)),
        (6, (("" if server.pid is None else f"pid {server.pid}", "dim"),)),
    ]


def _progress(frame: Frame) -> list[_Item]:
    load, phase, current = frame.snapshot.load, frame.snapshot.phase, frame.stage
    moves = current is not None and current.running and current.target.moves is not None
    value = fmt.setting(frame.wanted.value)
    units = {"streams": f"conc {value}", "sessions": f"{value} sessions", "req/s": f"rate {value}/s"}
    wanted = fmt.NO_LOAD if frame.no_load and not frame.wanted.open_loop else units[frame.load_unit]
    role = "warn" if phase in ("blocked", "paused", "stopping", "holding") else "dim"
    now, replay = frame.snapshot.replay, ""
    if now is not None:
        speed = f"REPLAY x{fmt.setting(now.speed)}{' PAUSED' if now.paused else ''}"
        replay = f"{speed} {fmt.clock(now.position_s)} of {fmt.clock(now.length_s)}"
    return [
        (0, ((frame.snapshot.stage_words, "text"),)),
        (0, ((wanted, "strong"), (" ?" if frame.wanted.unconfirmed else "  ", "dim"))),
        (1, ((fmt.plain(current.label) if current is not None and moves else "", "text"),)),
        (0, ((replay, "warn"),)),
        (1, ((_WATCHING.get(frame.operator, ""), "warn"),)),
        (1, (("" if frame.no_load else "/".join(str(length) for length in frame.wanted.shape), "dim"),)),
        (2, ((_PHASES.get(phase, phase), role),)),
        (5, (("by hand" if load.manual else "", "dim"),)),
        (3, ((fmt.clock(frame.snapshot.t_s), "dim"),)),
    ]


def _fitted(items: list[_Item], width: int) -> Row:
    kept = [item for item in items if width_of(item[1])]
    while len(kept) > 1 and width_of(_spaced(kept)) > width and any(importance for importance, _ in kept):
        kept.remove(max(kept, key=lambda item: item[0]))
    return cropped(_spaced(kept), max(0, width))


def _spaced(items: list[_Item]) -> Row:
    words: list[Word] = []
    for _, row in items:
        words += [_GAP, *row] if words else row
    return tuple(words)
