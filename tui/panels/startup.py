"""In the charts' place: the milestones while the server starts, and the verdict when it has died."""

from __future__ import annotations

from loadgen.metrics.snapshot import Milestone
from tui import format as fmt
from tui.paint import Row, Rows, Word, bar, cropped, titled
from tui.view import View

_SIGNS: dict[str, Word] = {"done": (" ✓ ", "good"), "running": (" ▸ ", "key"), "waiting": (" · ", "dim")}
_BAR = 24


def startup(view: View, width: int, height: int) -> Rows:
    """One row for each milestone; above them what is the matter, if something is."""
    server = view.snapshot.server
    died = server.state == "died"
    uptime = f"{fmt.clock(server.uptime_s)}" if server.uptime_s is not None else ""
    title = titled("server died" if died else "server start", ((uptime, "dim"),), width)
    headline: Rows = [((" ! " + fmt.plain(view.snapshot.headline), "bad"),), ()] if died else []
    label = max((len(milestone.label) for milestone in server.milestones), default=0)
    rows = [_milestone(milestone, min(label, 40)) for milestone in server.milestones]
    return [title, *headline, *[cropped(row, width) for row in rows]]


def _milestone(milestone: Milestone, label: int) -> Row:
    role = {"running": "strong", "waiting": "dim"}.get(milestone.state, "text")
    name: Word = (f"{fmt.plain(milestone.label)[:label]:<{label}}  ", role)
    detail: Word = (f"  {fmt.plain(milestone.detail)}", "dim")
    if milestone.state == "done":
        return (_SIGNS["done"], name, (f"{_took(milestone):>6}", "text"), detail)
    if milestone.progress is None:
        return (_SIGNS[milestone.state], name, detail)
    progress = (*bar(milestone.progress, _BAR, "key"), (f" {fmt.percent(milestone.progress):>5}", "text"))
    return (_SIGNS[milestone.state], name, *progress, detail)


def _took(milestone: Milestone) -> str:
    if milestone.started_s is None or milestone.finished_s is None:
        return ""
    return fmt.duration(milestone.finished_s - milestone.started_s)
