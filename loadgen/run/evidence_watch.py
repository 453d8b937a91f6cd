"""Takes the evidence of a run: when its server stalls or dies, and when the operator asks for it.

Invariants: one is taken at a time, before anything of the server is ended; nothing here fails the run, and what could
not be written is an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from loadgen.format import plain
from loadgen.metrics.stall import Stall
from loadgen.run.evidence import Scene, take_evidence
from loadgen.run.servers import ReportEvent

MAX_A_RUN = 5


class EvidenceWatch:
    """The evidence of one run: `see` each tick, `take` at any time, and `close` before its servers are ended."""

    def __init__(self, folder: Path, scene: Callable[[str], Scene], event: ReportEvent) -> None:
        """`scene` describes what there is to see, given the reason."""
        self._folder, self._scene, self._event = folder, scene, event
        self._task: asyncio.Task[None] | None = None
        self._begun = 0
        self._seen: tuple[float, bool] | None = None  # the last stall, and whether it was certain

    @property
    def is_taking(self) -> bool:
        return self._task is not None and not self._task.done()

    def see(self, stall: Stall | None, now_s: float) -> None:
        """Take the evidence of a stall, once; and once more if it becomes certain only later."""
        if stall is not None and (stall.since_s, stall.is_certain) != self._seen and not self.is_taking:
            self._seen = stall.since_s, stall.is_certain
            self.take(stall.words(now_s))

    def take(self, reason: str) -> None:
        """Begin to take it; a refusal is an event."""
        if self.is_taking:
            self._event("error", "evidence refused: it is being taken already")
        elif self._begun == MAX_A_RUN:
            self._event("error", f"evidence refused: this run has taken it {MAX_A_RUN} times")
        else:
            self._begun += 1
            name = "evidence" if self._begun == 1 else f"evidence-{self._begun}"
            self._task = asyncio.create_task(self._taken(reason, self._folder / name))

    async def take_now(self, reason: str) -> None:
        """Take it, and return when it is written."""
        await self.close()
        self.take(reason)
        await self.close()

    async def close(self, *, at_once: bool = False) -> None:
        """Wait until what is being taken is written; `at_once` breaks it off."""
        if self._task is not None:
            if at_once:
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _taken(self, reason: str, folder: Path) -> None:
        try:
            page = await take_evidence(self._scene(reason), folder)
        except OSError as error:
            self._event("error", f"{plain(str(folder))}: no evidence: {error.strerror}")
        else:
            self._event("server", f"evidence: {plain(str(page))}")
