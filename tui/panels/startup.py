"""Shown instead of the charts before the load: the preflight's findings and the milestones of the server's start.

A finding is what was seen, why it matters, and the command that fixes it. If the server has died, its diagnosis is
above the milestones.
"""

from __future__ import annotations

from loadgen import format as fmt
from loadgen.schema.finding import Finding
from loadgen.schema.shared import Milestone
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, bar, hanging, padded, titled, whole_groups, wrapped

_SEVERITIES: dict[str, Word] = {
    "blocks": (" ! blocks  ", "bad"),
    "warns": (" ▲ warns   ", "warn"),
    "info": (" · info    ", "dim"),
}
_INDENT = 11
_SIGNS: dict[str, Word] = {"done": (" ✓ ", "good"), "running": (" ▸ ", "key"), "waiting": (" · ", "dim")}
_BAR = 24
_MARK = 3  # cells of ` ! `
_MAX_ROWS = 3  # rows of what is the matter, and of what to do


def findings(frame: Frame, width: int, height: int) -> Rows:
    """Draw as many findings as fit, the worst first."""
    found = frame.snapshot.findings
    groups = [finding_rows(finding, width) for finding in found]
    rows = whole_groups(groups, height - 2, "more: `vramp check` prints them all")
    return [titled("preflight", ((fmt.count(len(found)) if found else "nothing found", "dim"),), width), *rows]


def finding_rows(finding: Finding, width: int) -> Rows:
    """Return a finding, wrapped: what was seen, why it matters, what to do."""
    role = "strong" if finding.severity == "blocks" else "text"
    rows = hanging((_SEVERITIES[finding.severity],), finding.seen, width, role)
    rows += wrapped(finding.why, width, "dim", _INDENT)
    if finding.fix:
        rows += wrapped(f"→ {finding.fix}", width, "key", _INDENT)
    return rows


def startup(frame: Frame, width: int, height: int) -> Rows:
    """Draw a row for each milestone, with the diagnosis of a dead server above and signs of life below."""
    server = frame.snapshot.server
    name, about = "server start", fmt.clock(server.uptime_s) if server.uptime_s is not None else ""
    if server.state == "died":
        name, about = "server died", f"after {about}" if about else ""
    elif server.expected_s is not None:
        about = f"{about} of about {fmt.clock(server.expected_s)}"
    title = titled(name, ((about, "dim"),), width)
    label = min(40, max((len(milestone.label) for milestone in server.milestones), default=0))
    steps = [_milestone(milestone, label) for milestone in server.milestones]
    rows = [title, *_death(frame, width), *steps]

    life = server.liveness  # what its processes do: the log may be silent
    if life is None:
        return rows
    hbm = f"   HBM {fmt.number(life.hbm_used_bytes)}B" if life.hbm_used_bytes is not None else ""
    silence = f"   last line {fmt.duration(life.last_line_age_s)} ago" if life.last_line_age_s is not None else ""
    cpu = f"   alive: CPU {fmt.number(life.cpu_percent)}%   memory {fmt.number(life.rss_bytes)}B"
    return [*rows, (), ((cpu + hbm + silence, "dim"),)]


def _death(frame: Frame, width: int) -> Rows:
    server, headline = frame.snapshot.server, frame.snapshot.headline
    if server.state != "died":
        return []
    rows = hanging(((" ! ", "bad"),), headline, width, "bad", _MAX_ROWS)
    cause = server.diagnosis
    if cause is not None:
        title = "" if cause.title in headline else cause.title
        rows += wrapped(title, width, "strong", _MARK, _MAX_ROWS)
        rows += wrapped(f"→ {cause.remedy}", width, "key", _MARK, _MAX_ROWS)
        rows += [((f"   {fmt.plain(line)}", "dim"),) for line in cause.evidence]
    return [*rows, ()]


def _milestone(milestone: Milestone, label: int) -> Row:
    role = {"running": "strong", "waiting": "dim"}.get(milestone.state, "text")
    name: Word = (f"{padded(fmt.plain(milestone.label), label)}  ", role)
    match milestone.state:
        case "done":
            known = milestone.started_s is not None and milestone.finished_s is not None
            took = fmt.duration((milestone.finished_s or 0.0) - (milestone.started_s or 0.0)) if known else ""
            progress: Row = ((f"{took:>6}", "text"),)
        case "waiting":
            about = f"~{fmt.duration(milestone.expected_s)}" if milestone.expected_s is not None else ""
            progress = ((f"{about:>6}", "dim"),)
        case _:  # the progress that the log reports, else the share of the last start's duration that has passed
            elapsed, expected = milestone.elapsed_s, milestone.expected_s
            if milestone.progress is not None:
                progress = (*bar(milestone.progress, _BAR, "key"), (f" {fmt.percent(milestone.progress):>5}", "text"))
            elif elapsed is not None and expected:
                took = f" {fmt.duration(elapsed)} of about {fmt.duration(expected)}"
                progress = (*bar(min(elapsed / expected, 0.99), _BAR, "rule"), (took, "text"))
            else:
                progress = ((f"{fmt.duration(elapsed):>6}" if elapsed is not None else "", "text"),)
    return (_SIGNS[milestone.state], name, *progress, (f"  {fmt.plain(milestone.detail)}", "dim"))
