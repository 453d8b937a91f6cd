"""What the preflight finds, as stored in the journal and shown in every table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

Severity = Literal["blocks", "warns", "info"]
ORPHANED = "orphaned-server"  # the id of the finding that a killed run left a server behind


class Skipped(msgspec.Struct, frozen=True):
    """A rule that could not be judged."""

    rule: str
    reason: str


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the preflight saw of profile, installation or box, why it matters, and what to do about it."""

    id: str  # stable, for scripts: `unknown-flag`, `port-taken`
    severity: Severity
    """`blocks`: the start would fail, or harm; `warns`: it works, but not as meant; `info`: good to know."""
    seen: str
    why: str
    fix: str = ""  # the command or change that removes it; empty if nothing needs to be done
    source: str = ""  # the publication or issue behind it
    skipped: tuple[Skipped, ...] = ()  # by `not-checked` only


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The most severe first, otherwise in order of discovery; orphaned servers before all."""
    order = get_args(Severity)
    return sorted(findings, key=lambda finding: (finding.id != ORPHANED, order.index(finding.severity)))


def not_checked(skipped: Iterable[Skipped]) -> list[Finding]:
    """A finding for each reason, with the rules that could not be judged for it."""
    by_reason: defaultdict[str, list[Skipped]] = defaultdict(list)
    for one in skipped:
        by_reason[one.reason].append(one)
    return [
        Finding(
            "not-checked",
            "info",
            f"{', '.join(one.rule for one in alike)}: could not be checked",
            reason,
            skipped=tuple(alike),
        )
        for reason, alike in by_reason.items()
    ]


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line on the health of a GPU or the limit of a stage, with the numbers behind it."""

    id: str  # stable, for scripts: `throttled`, `pcie-below-maximum`, `kv-limited`
    subject: str  # `gpu 5`, `stage 3`
    text: str
    bad: bool = True  # it needs attention; otherwise it only explains
