"""Bounds of numbers in journals, results, captures and child output: larger ones are damage, sums of them overflow."""

from typing import Annotated

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
ClockS = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # a monotonic clock
