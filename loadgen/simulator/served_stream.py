"""What the simulator notes of one stream as it serves it."""

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class ServedStream:
    """One stream: when its request came, and when each event with output was written."""

    received_ns: int
    stamps: "array[int]" = field(default_factory=lambda: array("q"))
    tokens: list[int] | None = None  # the tokens of each event; None: one each
    completed: bool = False
    ended_ns: int = 0  # 0 while it is open
