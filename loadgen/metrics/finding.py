"""A finding of the preflight: something about profile, installation or box that the operator should know."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["blocks", "warns", "info"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen, why it matters, and what to do about it."""

    id: str
    """Stable, for scripts: `unknown-flag`, `port-taken`."""
    severity: Severity
    """`blocks`: the start would fail, or harm; `warns`: it works, but not as meant; `info`: good to know."""
    seen: str
    why: str
    fix: str = ""
    """The command or the change that removes it; empty where nothing has to be done."""
    source: str = ""
    """Where the claim comes from, for what a publication says."""
