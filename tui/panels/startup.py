"""In the charts' place: the milestones while the server starts, and the diagnosis when it has died."""

from __future__ import annotations

from loadgen import format as fmt
from loadgen.metrics.journal import Diagnosis, Milestone
from loadgen.metrics.snapshot import ServerView
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, bar, cropped, padded, titled

_SIGNS: dict[str, Word] = {"done": (" ✓ ", "good"), "running": (" ▸ ", "key"), "waiting": (" · ", "dim")}
_BAR = 24


def startup(frame: Frame, width: int, height: int) -> Rows:
    """One row for each milestone; above them what is the matter, if something is, below them signs of life."""
    server = frame.snapshot.server
    died = server.state == "died"
    title = titled("server died" if died else "server start", ((_age(server), "dim"),), width)
    label = min(40, max((len(milestone.label) for milestone in server.milestones), default=0))
    steps = [_milestone(milestone, label) for milestone in server.milestones]
    rows = [*(_death(frame) if died else []), *steps, *_life(server)]
    return [title, *[cropped(row, width) for row in rows]]


def _age(server: ServerView) -> str:
    age = fmt.clock(server.uptime_s) if server.uptime_s is not None else ""
    if server.state == "died":
        return f"after {age}" if age else ""
    return f"{age} of about {fmt.clock(server.expected_s)}" if server.expected_s is not None else age


def _death(frame: Frame) -> Rows:
    headline: Row = ((" ! " + fmt.plain(frame.snapshot.headline), "bad"),)
    cause = frame.snapshot.server.diagnosis
    return [headline, *(_diagnosis(cause) if cause is not None else []), ()]


def _diagnosis(cause: Diagnosis) -> Rows:
    lines: Rows = [((f"   {fmt.plain(line)}", "dim"),) for line in cause.evidence]
    return [((f"   {fmt.plain(cause.title)}", "strong"),), *lines, ((f"   → {fmt.plain(cause.remedy)}", "key"),)]


def _milestone(milestone: Milestone, label: int) -> Row:
    role = {"running": "strong", "waiting": "dim"}.get(milestone.state, "text")
    name: Word = (f"{padded(fmt.plain(milestone.label), label)}  ", role)
    detail: Word = (f"  {fmt.plain(milestone.detail)}", "dim")
    sign = _SIGNS[milestone.state]
    if milestone.state == "done":
        return (sign, name, (f"{_took(milestone):>6}", "text"), detail)
    if milestone.state == "waiting":
        return (sign, name, (f"{_about(milestone):>6}", "dim"), detail)
    return (sign, name, *_progress(milestone), detail)


def _progress(milestone: Milestone) -> Row:
    """What the log says, else how much of the time is over that the last start took."""
    elapsed, expected = milestone.elapsed_s, milestone.expected_s
    if milestone.progress is not None:
        return (*bar(milestone.progress, _BAR, "key"), (f" {fmt.percent(milestone.progress):>5}", "text"))
    if elapsed is not None and expected:
        took = f" {fmt.duration(elapsed)} of about {fmt.duration(expected)}"
        return (*bar(min(elapsed / expected, 0.99), _BAR, "rule"), (took, "text"))
    return ((f"{fmt.duration(elapsed):>6}" if elapsed is not None else "", "text"),)


def _took(milestone: Milestone) -> str:
    if milestone.started_s is None or milestone.finished_s is None:
        return ""
    return fmt.duration(milestone.finished_s - milestone.started_s)


def _about(milestone: Milestone) -> str:
    return f"~{fmt.duration(milestone.expected_s)}" if milestone.expected_s is not None else ""


def _life(server: ServerView) -> Rows:
    """What the processes do although the log may be silent."""
    life = server.liveness
    if life is None:
        return []
    hbm = f"   HBM {fmt.number(life.hbm_used_bytes)}B" if life.hbm_used_bytes is not None else ""
    silence = f"   last line {fmt.duration(life.last_line_age_s)} ago" if life.last_line_age_s is not None else ""
    cpu = f"   alive: CPU {fmt.number(life.cpu_percent)}%   memory {fmt.number(life.rss_bytes)}B"
    return [(), ((cpu + hbm + silence, "dim"),)]
