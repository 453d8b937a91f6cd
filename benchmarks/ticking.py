"""`python -m benchmarks.ticking FILE WORDS`: the cockpit, with a line in a file for each stretch of its event loop.

A stretch lasts from one wait to the next: nothing else, not even a key, is seen to meanwhile. Its cost is the CPU time
of the loop's thread; beside it stand what the snapshot in it changed. Started by `benchmarks.screen`.
"""

from __future__ import annotations

import json
import selectors
import sys
import time
from pathlib import Path
from typing import Any

from loadgen.metrics.snapshot import Snapshot
from tui.cli.__main__ import main

_about: list[str] = []


class _Ticking(selectors.DefaultSelector):
    """Tells of each stretch between two selects that may wait."""

    lines: Any = None
    began: tuple[float, float] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0 and self.began is not None:
            cpu_ms = (time.thread_time() - self.began[1]) * 1000
            if cpu_ms > 1:
                self.lines.write(json.dumps([self.began[0], cpu_ms, _about]) + "\n")
        found = super().select(timeout)
        if timeout != 0:
            _about.clear()
            self.began = (time.monotonic(), time.thread_time())
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
