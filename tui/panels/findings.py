"""What the preflight found, the worst first: what was seen, why it matters, and the command that removes it."""

from __future__ import annotations

import textwrap

from loadgen import format as fmt
from loadgen.metrics.journal import Finding
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, cropped, titled

_SIGNS: dict[str, Word] = {
    "blocks": (" ! blocks  ", "bad"),
    "warns": (" ▲ warns   ", "warn"),
    "info": (" · info    ", "dim"),
}
_INDENT = 11


def findings(frame: Frame, width: int, height: int) -> Rows:
    """As many findings as fit, each whole; what was left out is counted."""
    found = frame.snapshot.findings
    groups = [finding_rows(finding, width) for finding in found]
    rows: Rows = []
    for number, group in enumerate(groups):
        if len(rows) + len(group) > height - 2 and rows:
            rows.append(((f" … {len(groups) - number} more: `vramp check` prints them all", "dim"),))
            break
        rows += group
    return [titled("preflight", ((_count(found), "dim"),), width), *rows]


def _count(found: tuple[Finding, ...]) -> str:
    return fmt.count(len(found)) if found else "nothing found"


def finding_rows(finding: Finding, width: int) -> Rows:
    """One finding, wrapped: what was seen, why it matters, what to do."""
    role = "strong" if finding.severity == "blocks" else "text"
    rows = _wrapped(finding.seen, width, role)
    rows[0] = (_SIGNS[finding.severity], *rows[0][1:])
    rows += _wrapped(finding.why, width, "dim")
    if finding.fix:
        rows += _wrapped(f"→ {finding.fix}", width, "key")
    return [cropped(row, width) for row in rows]


def _wrapped(text: str, width: int, role: str) -> Rows:
    lines = textwrap.wrap(fmt.plain(text), max(20, width - _INDENT), break_on_hyphens=False)
    return [_line(line, role) for line in lines or [""]]


def _line(line: str, role: str) -> Row:
    return ((" " * _INDENT, "text"), (line, role))
