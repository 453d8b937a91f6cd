"""View: what the panels draw: the latest snapshot beside what the operator has just asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

from loadgen.metrics.snapshot import Snapshot, StageView

STALE_AFTER_S = 0.75
"""Two beats of 250 ms without a snapshot, and half a beat of patience."""


class RunControl(Protocol):
    """The part of `loadgen.run.Run` that the cockpit holds in its hand; nothing of it blocks."""

    def snapshots(self) -> AsyncIterator[Snapshot]:
        """The states of the run, four a second, until one whose phase is `done`."""

    def start_anyway(self) -> None:
        """Start although the preflight says that it will not work."""

    def set_concurrency(self, concurrency: int, /) -> None:
        """End the stage and go on in closed loop."""

    def set_rate(self, requests_per_s: float, /) -> None:
        """End the stage and go on in open loop."""

    def pause(self) -> None:
        """Send nothing new."""

    def resume(self) -> None:
        """Send again."""

    def next_stage(self) -> None:
        """End the stage and begin the plan's next."""

    def extend(self) -> None:
        """Let the running stage go on for its length once more."""

    def redo(self) -> None:
        """Measure the running stage of the plan again, or else the last one that is done."""

    def note(self, text: str, /) -> None:
        """Put a remark on the time axis."""

    def stop(self) -> None:
        """Finish: end the load, stop the server, keep the result."""

    def abort(self) -> None:
        """Finish now: cut streams, kill the server, keep what there is."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The load that the operator wants, before and after the run confirms it."""

    value: float | None = None
    open_loop: bool = False
    paused: bool = False
    unconfirmed: bool = False

    @property
    def unit(self) -> str:
        """What the value counts."""
        return "rate, req/s" if self.open_loop else "concurrency"


@dataclass(frozen=True, slots=True)
class View:
    """One frame's worth of facts."""

    snapshot: Snapshot
    wanted: Wanted
    age_s: float = 0.0
    """Since the snapshot came; 0 on the beat that brings one."""
    ending: Literal["", "stop", "abort"] = ""
    """What the operator has asked for and the run has not yet done."""
    ended: bool = False
    """No more snapshots will come."""
    log_filter: str = ""
    """Only lines of the log that have this are shown."""

    @property
    def stale(self) -> bool:
        """Whether the numbers are old although the run should still be telling us some."""
        return not self.done and self.age_s > STALE_AFTER_S

    @property
    def stage(self) -> StageView | None:
        """The running stage, or the last one that ran."""
        return self.snapshot.stages[-1] if self.snapshot.stages else None

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return self.ended or self.snapshot.phase == "done"
