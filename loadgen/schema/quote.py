"""The judgement whether the figures of a result can be quoted."""

from __future__ import annotations

import msgspec


class QuoteProblem(msgspec.Struct, frozen=True):
    """A rule that the figures break."""

    rule: str  # stable, for scripts: `few-requests`
    evidence: str
    remedy: str


class Quote(msgspec.Struct, frozen=True):
    """Every rule is in one of the three: broken, not checked for lack of evidence, or kept."""

    fit: bool  # no rule is broken
    problems: tuple[QuoteProblem, ...]
    not_checked: dict[str, str]  # why, by rule
    kept: tuple[str, ...]
