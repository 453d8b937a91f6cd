"""What the preflight finds, as the journal keeps it and every table shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

Severity = Literal["blocks", "warns", "info"]
ORPHANED = "orphaned-server"  # the id of the finding that something is left of a run that was killed


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the preflight saw of profile, installation or box, why it matters, and what to do about it."""

    id: str  # stable, for scripts: `unknown-flag`, `port-taken`
    severity: Severity
    """`blocks`: the start would fail, or harm; `warns`: it works, but not as meant; `info`: good to know."""
    seen: str
    why: str
    fix: str = ""  # the command or the change that removes it; empty where nothing has to be done
    source: str = ""  # where the claim comes from, for what a publication says


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, otherwise in the order in which they were found; before all, servers that nobody ends."""
    order = get_args(Severity)
    return sorted(findings, key=lambda finding: (finding.id != ORPHANED, order.index(finding.severity)))
