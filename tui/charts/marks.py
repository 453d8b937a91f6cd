"""Marks on the time axis: the events of the run, and those inferred from its numbers.

Preemptions, throttling and failures come in bursts, and only the beginning of one is marked. There are never more than
`MAX_MARKS`: the least important and oldest are dropped first. Kinds differ by their sign, so that none needs a colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from loadgen import format as fmt
from loadgen.schema.result import RunEvent, StageResult
from loadgen.schema.snapshot import SeriesPoint, Snapshot

MAX_MARKS = 400
BURST_S = 10.0  # after so long without another one, the next begins a new burst
_LABEL = 24


class Kind(NamedTuple):
    """How a kind of mark is shown."""

    sign: str
    role: str
    rank: int  # of two marks in one place, the one with the lower rank is shown
    line: bool = False  # drawn through the charts too


KINDS = {
    "load": Kind("▴", "mark", 0, line=True),
    "note": Kind("✎", "strong", 1, line=True),
    "pause": Kind("=", "mark", 2, line=True),
    "resume": Kind("▸", "mark", 2, line=True),
    "error": Kind("!", "bad", 3),
    "clock": Kind("!", "bad", 3),
    "engine": Kind("↯", "warn", 4),  # restarted, or its metrics went away and came back
    "throttle": Kind("▾", "warn", 4),
    "preemption": Kind("↺", "warn", 5),
    "server": Kind("·", "mark", 6),
}
"""By the kind of an event; an unknown one is shown like `server`."""


class Mark(msgspec.Struct, frozen=True):
    """A moment on the time axis."""

    t_s: float
    kind: str
    label: str = ""  # for the axis, short
    text: str = ""  # a sentence; empty if an event of the run says it

    @property
    def how(self) -> Kind:
        return KINDS.get(self.kind, KINDS["server"])


class Marks:
    """Collects the marks of a run, snapshot by snapshot."""

    def __init__(self) -> None:
        self.all: list[Mark] = []
        self.first_load_s: float | None = None  # when the first stage began
        self._last_event: RunEvent | None = None
        self._stages_seen = 0
        self._last_point_s = -1.0
        self._preemptions: float | None = None
        self._last_of_burst: dict[str, float] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add what is new in a snapshot; must be called for every one."""
        events = snapshot.events
        # Those after the last one seen, or all if it is no longer there.
        seen = next((place for place in reversed(range(len(events))) if events[place] == self._last_event), -1)
        self._last_event = snapshot.events[-1] if snapshot.events else None
        begun = list(_begun(snapshot, snapshot.stages[self._stages_seen :]))
        self._stages_seen = len(snapshot.stages)
        if begun and self.first_load_s is None:
            self.first_load_s = begun[0].t_s
        found = [*begun]
        for event in events[seen + 1 :]:
            if event.kind != "load" or not begun:  # the stage's own mark replaces the request's
                label = fmt.plain(event.text)[:_LABEL].rstrip() if event.kind == "note" else ""
                found.append(Mark(event.t_s, event.kind, label))
        found += self._failures((*snapshot.past, snapshot.point))
        self.all += [*found, *self._preempted(snapshot), *self._throttled(snapshot)]
        while len(self.all) > MAX_MARKS:
            self.all.remove(max(self.all, key=lambda mark: (mark.how.rank, -mark.t_s)))

    def _failures(self, points: Sequence[SeriesPoint]) -> list[Mark]:
        new = [point for point in points if point.t_s > self._last_point_s]
        self._last_point_s = max((point.t_s for point in new), default=self._last_point_s)
        return [
            Mark(point.t_s, "error", text=f"requests fail: {point.errors} at once")
            for point in new
            if point.errors and self._begins("failures", point.t_s)
        ]

    def _preempted(self, snapshot: Snapshot) -> list[Mark]:
        now = snapshot.engine.preemptions if snapshot.engine is not None else None
        before, self._preemptions = self._preemptions, now
        if now is None or before is None or now <= before or not self._begins("preemptions", snapshot.t_s):
            return []
        return [Mark(snapshot.t_s, "preemption", text=f"engine preemptions: {fmt.count(now)} since its start")]

    def _throttled(self, snapshot: Snapshot) -> list[Mark]:
        found = {gpu.static.index: flag for gpu in snapshot.gpus for flag in gpu.flags if flag.startswith("THROTTLED")}
        new = [index for index in found if self._begins(f"gpu {index}", snapshot.t_s)]
        if not new:
            return []
        more = f", and {len(new) - 1} more" if len(new) > 1 else ""
        return [Mark(snapshot.t_s, "throttle", text=f"gpu {new[0]} {found[new[0]]}{more}")]

    def _begins(self, what: str, t_s: float) -> bool:
        """Whether this is the first of a burst."""
        last_s = self._last_of_burst.get(what)
        self._last_of_burst[what] = t_s
        return last_s is None or t_s - last_s > BURST_S


def _begun(snapshot: Snapshot, stages: tuple[StageResult, ...]) -> Iterator[Mark]:
    """Yield a mark with the target for each new stage: it began where the next one did, minus its own length."""
    starts_s = [snapshot.t_s - snapshot.load.stage_elapsed_s]
    for stage in reversed(stages[:-1]):
        starts_s.append(starts_s[-1] - stage.duration_s)
    for start_s, stage in zip(reversed(starts_s), stages, strict=False):
        label = stage.target.words
        if stage.target.concurrency == 0 and stage.label != fmt.NO_LOAD:
            label = fmt.plain(stage.label)[:_LABEL].rstrip()  # as named by the operator's mark
        yield Mark(start_s, "load", label)
