"""What came of a vendor's own tool, as `vramp doctor --probe` reports it."""

from __future__ import annotations

from typing import Literal

import msgspec

ProbeState = Literal["pass", "fail", "measured", "failed", "absent"]
"""`measured`: no public criterion for this part; `failed`: the tool did not get to its end."""


class ProbeFigure(msgspec.Struct, frozen=True):
    """One figure that a tool printed, or one test that it passed or failed."""

    name: str
    subject: str  # `gpu 2`, `gpu 0 to gpu 3`, `8 GPUs`
    value: float | None
    unit: str
    passed: bool | None = None  # what the tool itself says; None if it says nothing
    low: float | None = None  # the least that its part should reach; None without a public criterion
    source: str = ""  # of `low`

    @property
    def is_bad(self) -> bool:
        return self.passed is False or (self.low is not None and self.value is not None and self.value < self.low)

    @property
    def words(self) -> str:
        """The figure with what it is held against."""
        value = "" if self.value is None else f" {self.value:.5g} {self.unit}"
        if self.low is not None:
            return f"{self.subject}: {self.name}{value}, at least {self.low:g} {self.unit} ({self.source})"
        own = {True: ": passed", False: ": failed", None: ""}[self.passed]
        return f"{self.subject}: {self.name}{value}{own}"


class ProbeResult(msgspec.Struct, frozen=True):
    """What came of one tool."""

    name: str
    state: ProbeState
    why: str  # the worst figure, or why there is none
    figures: tuple[ProbeFigure, ...] = ()
    command: tuple[str, ...] = ()  # the first, if it ran several times
    took_s: float = 0.0
    output_path: str | None = None
