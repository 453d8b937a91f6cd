"""The findings of a preflight, for a person and for a script."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import msgspec

from loadgen.metrics.journal import Finding, Severity, by_severity

_WIDTH = 100
_WORDS: dict[Severity, tuple[str, str]] = {
    "blocks": ("blocks", "block"),
    "warns": ("warning", "warnings"),
    "info": ("note", "notes"),
}


def findings_json(findings: Sequence[Finding]) -> str:
    """A JSON list of objects with id, severity, seen, why, fix and source."""
    return msgspec.json.format(msgspec.json.encode(by_severity(findings)), indent=1).decode()


def findings_text(findings: Sequence[Finding]) -> str:
    """Each finding in a few lines, and a last line that counts them."""
    blocks = [_paragraph(finding) for finding in by_severity(findings)]
    return "\n\n".join([*blocks, findings_count(findings)])


def findings_count(findings: Sequence[Finding]) -> str:
    """How many of each kind, in words."""
    if not findings:
        return "nothing found"
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in _WORDS}
    return ", ".join(f"{count} {_WORDS[severity][count > 1]}" for severity, count in counts.items() if count)


def _paragraph(finding: Finding) -> str:
    head = f"{finding.severity:<6} {finding.id}: {finding.seen}"
    details = [("why", finding.why), ("fix", finding.fix), ("source", finding.source)]
    return "\n".join([_wrapped(head, "       "), *(_detail(name, text) for name, text in details if text)])


def _detail(name: str, text: str) -> str:
    return _wrapped(f"       {name}: {text}", "         ")


def _wrapped(text: str, indent: str) -> str:
    # A command that is to be copied must not be broken inside a word.
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
