"""Types of fields in journals, results, captures and child output; larger numbers are damage, sums of them overflow."""

from typing import Annotated, Literal

import msgspec

Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
ClockS = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # a monotonic clock


Columns = dict[str, list[float | int | None]]
"""One column is `t_s`, seconds since the run began; all have the same length.

Where rows were merged, `t_s` is the first moment of each, a column `x` has the highest values and `x_min` the lowest;
without `x_min`, lowest and highest are equal everywhere.
"""


DevicesBy = Literal["given", "processes", "hbm", "simulated", "all"]
