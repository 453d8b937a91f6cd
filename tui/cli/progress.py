"""A run without a screen: progress lines on stderr, Ctrl-C to finish, twice to abort.

If nobody reads stderr, lines are lost but the run is not delayed; if it is closed, the run finishes and keeps its
result.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

from loadgen.format import count, interval, percent, significant, target
from loadgen.run.operations import Abort, Stop
from loadgen.system import map_large_blocks
from tui.cli.options import printable
from tui.cli.spoken import Spoken
from tui.exhausted import give_up_where_callbacks_fail
from tui.terminal import NonBlockingWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.run.run import Run
    from loadgen.schema.engine import EngineView
    from loadgen.schema.snapshot import Snapshot

_EVERY_S = 2.0


async def follow(run: Run, *, spoken: bool = False) -> bool:
    """Drive a run to its end, reporting in sentences if `spoken`; return True if it was interrupted."""
    give_up_where_callbacks_fail()
    map_large_blocks()
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            print_status("finishing: the result is kept; again to abort")
            run.apply(Stop())
        else:
            run.apply(Abort())

    def finish_unread() -> None:
        if interrupts == 0:
            interrupt()

    loop = asyncio.get_running_loop()
    writer = NonBlockingWriter(
        sys.stderr,
        caught_up=lambda: print_status("lines are missing here: they were not read in time"),
        gone=lambda: loop.call_soon_threadsafe(finish_unread),
    )

    def print_status(text: str) -> None:
        writer.write(printable(text) + "\n")

    # Explicitly: a shell starts background jobs with SIGINT ignored.
    for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(caught, interrupt)
    progress = Spoken(print_status) if spoken else _Progress(print_status)
    try:
        async for snapshot in run.snapshots():
            progress.show(snapshot)
    finally:
        await asyncio.to_thread(writer.close)  # signals are handled meanwhile
    return interrupts > 0


class _Progress:
    """Prints what is new, and a line of numbers every two seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._phase = ""
        self._stage = 0
        self._events = 0
        self._findings = 0
        self._milestones: set[str] = set()
        self._next_s = 0.0

    def show(self, snapshot: Snapshot) -> None:
        self._show_findings(snapshot)
        if snapshot.phase == "starting":
            self._show_milestones(snapshot)
        for event in snapshot.events[self._events :]:
            self._say(f"{event.t_s:7.1f} s  {event.kind}: {event.text}")
        self._events = len(snapshot.events)
        news = (snapshot.phase, snapshot.load.stage) != (self._phase, self._stage)
        if news or (snapshot.t_s >= self._next_s and snapshot.phase not in ("checking", "starting", "done")):
            self._phase, self._stage = snapshot.phase, snapshot.load.stage
            self._next_s = snapshot.t_s + _EVERY_S
            self._say(_line(snapshot))

    def _show_findings(self, snapshot: Snapshot) -> None:
        """Show the findings that need action; `vramp check` shows all of them."""
        found, self._findings = snapshot.findings[self._findings :], len(snapshot.findings)
        for finding in found:
            if finding.severity != "info":
                remedy = f" -> {finding.fix}" if finding.fix else ""
                self._say(f"{snapshot.t_s:7.1f} s  preflight {finding.severity}: {finding.id}: {finding.seen}{remedy}")

    def _show_milestones(self, snapshot: Snapshot) -> None:
        for milestone in snapshot.server.milestones:
            if milestone.state == "done" and milestone.id not in self._milestones:
                self._milestones.add(milestone.id)
                self._say(f"{snapshot.t_s:7.1f} s  server: {milestone.label} {milestone.detail}".rstrip())


def _line(snapshot: Snapshot) -> str:
    load, point = snapshot.load, snapshot.point
    if load.stage == 0 or snapshot.phase in ("stopping", "done"):
        return f"{snapshot.t_s:7.1f} s  {snapshot.headline}"
    stage = f"stage {load.stage} of {max(load.stage, load.stages_planned)}"
    if load.concurrency == 0:
        return f"{snapshot.t_s:7.1f} s  {stage}{_engine_words(snapshot.engine)}  {snapshot.headline}"
    return (
        f"{snapshot.t_s:7.1f} s  {stage}  {target(load.concurrency, load.rate)}  held {load.held}"
        f"  {significant(point.output_tokens_per_s)} tok/s  TTFT p50 {significant(point.ttft_p50_ms)} ms"
        f"  TPOT p50 {significant(point.tpot_p50_ms)} ms  {snapshot.headline}"
    )


def _engine_words(engine: EngineView | None) -> str:
    if engine is None:
        return ""
    ttft = engine.latency_ms.get("ttft")
    return (
        f"  running {count(engine.running)}  waiting {count(engine.waiting)}  KV {percent(engine.kv_usage)}"
        f"  {significant(engine.generation_tokens_per_s)} tok/s"
        f"  TTFT p50 {interval(ttft.within.get('p50') if ttft is not None else None)} ms"
    )
