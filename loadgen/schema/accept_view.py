"""What the screen and the progress lines of an acceptance are made of."""

from __future__ import annotations

import msgspec

from loadgen.criteria import PhaseName
from loadgen.schema.certificate import Certificate
from loadgen.schema.snapshot import Snapshot


class AcceptView(msgspec.Struct, frozen=True):
    """The state of an acceptance at one moment."""

    certificate: Certificate  # from what is known so far
    phase: PhaseName | None  # the one that is carried out
    run: str  # the folder of the run that goes on; empty if none does
    snapshot: Snapshot | None  # of that run
    left_s: float  # at least
    ending: bool
    over: bool
