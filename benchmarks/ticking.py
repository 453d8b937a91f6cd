"""`python -m benchmarks.ticking FILE WORDS`: the cockpit, with a line in a file for each stretch of its event loop.

A stretch lasts from one wait to the next. It may consist of several turns, between which keys are handled; within a
turn, they are not. The cost of both is the CPU time of the loop's thread; beside it is what the snapshot in the stretch
changed. Started by `benchmarks.screen`.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from pathlib import Path
from typing import Any

from loadgen.schema.snapshot import Snapshot
from tui.cli.__main__ import main

_about: list[str] = []


class _Ticking(selectors.DefaultSelector):
    """Logs each stretch, which ends at a select that may wait, with its longest turn, which ends at any select."""

    lines: Any = None
    began: tuple[float, float] | None = None
    turn_began_s = longest_turn_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        now_s = time.thread_time()
        self.longest_turn_s = max(self.longest_turn_s, now_s - self.turn_began_s)
        if timeout != 0 and self.began is not None:
            cpu_ms = (now_s - self.began[1]) * 1000
            if cpu_ms > 1:
                self.lines.write(json.dumps([self.began[0], cpu_ms, self.longest_turn_s * 1000, _about]) + "\n")
        found = super().select(timeout)
        self.turn_began_s = time.thread_time()
        if timeout != 0:
            _about.clear()
            self.began, self.longest_turn_s = (time.monotonic(), self.turn_began_s), 0.0
        return found


def _watch() -> None:
    """Note what each snapshot changes when it is taken for drawing."""
    from tui.screens.cockpit import CockpitScreen

    take = CockpitScreen.take

    def taking(self: CockpitScreen, snapshot: Snapshot) -> None:
        before, now = self.snapshot, snapshot
        _about.append("snapshot")
        if before is None or before.phase != now.phase:
            _about.append(f"phase {now.phase}")
        if before is not None and len(before.stages) != len(now.stages):
            _about.append(f"stage {len(now.stages)}")
        if before is not None and len(before.verdicts) != len(now.verdicts):
            _about.append(f"{len(now.verdicts)} verdicts")
        take(self, now)

    CockpitScreen.take = taking  # type: ignore[method-assign]


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w", buffering=1) as _Ticking.lines:
        selectors.DefaultSelector = _Ticking  # type: ignore[misc]
        _watch()
        main(sys.argv[2:])
