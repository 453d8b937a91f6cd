"""What is the matter and what to do about it: findings before a start, and the diagnosis of a server that ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

Severity = Literal["blocks", "warns", "info"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the preflight: what was seen of profile, installation or box, why it matters, and what to do about it."""

    id: str  # stable, for scripts: `unknown-flag`, `port-taken`
    severity: Severity
    """`blocks`: the start would fail, or harm; `warns`: it works, but not as meant; `info`: good to know."""
    seen: str
    why: str
    fix: str = ""  # the command or the change that removes it; empty where nothing has to be done
    source: str = ""  # where the claim comes from, for what a publication says


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, otherwise in the order in which they were found."""
    order = get_args(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


class Diagnosis(msgspec.Struct, frozen=True):
    """What ended a server."""

    cause: str  # stable, for scripts: `unknown-flag`, `kv-cache`; `unknown` where nothing known was found
    title: str
    evidence: tuple[str, ...]  # the lines that tell, most telling first; harmless, short and without credentials
    remedy: str
