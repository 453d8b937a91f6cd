"""What the fleet knows of one worker: its ticks on our clock, its silence, its death and what was lost with it."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from loadgen.errors import UNDECODABLE, WorkerError
from loadgen.fleet.host import CLOSE_S, Host, Pipe
from loadgen.format import counted
from loadgen.metrics.stage import merge_stages
from loadgen.schema.deltas import SessionCounts, StageDelta
from loadgen.worker import messages
from loadgen.worker.messages import TICK_NS, Tick

SILENT_S = 5.0
START_S = 60.0


class Worker:
    """A worker on a host; `on_change` is called whenever it ticks or dies."""

    def __init__(self, number: int, instance: int, host: Host, pipe: Pipe, on_change: Callable[[], None]) -> None:
        """`instance` is the number of the server that it drives."""
        self.number = number
        self.instance = instance
        self.host = host
        self.last: Tick | None = None
        self.alive = True
        self.share: int | None = None  # its share of the running closed loop
        self.death: str | None = None  # why it died, until `take_death`
        self._pipe = pipe
        self.taken: list[Tick] = []  # by the last call of `take`
        self.stages: dict[int, StageDelta] = {}  # what happened in them, and what was lost when it died
        self.most_held = 0  # open streams in them and the one before: ticks of two workers may lie one apart
        self._ticks: list[Tick] = []
        self._latest: list[Tick] = []  # that was taken, if any
        self._lost: dict[int, StageDelta] = {}
        self._on_change = on_change
        self._moments: dict[tuple[int, str], int] = {}  # window times by stage and field, on our clock
        self._moved_ns = host.moved_ns
        self._silent_s = 0.0
        self._closing = False
        self._ahead_ns = host.offset_ns + host.uncertainty_ns  # the most that its host's clock was ever ahead of ours
        self._last_number = (
            time.monotonic_ns() + host.offset_ns - host.uncertainty_ns
        ) // TICK_NS  # as its host counts

    @property
    def ready(self) -> bool:
        """Whether it can take part."""
        return self.alive and self.last is not None

    @property
    def held(self) -> int:
        """Its open streams; its last tick may be older than its last command."""
        return max(self.last.held if self.last is not None else 0, self.share or 0)

    @property
    def pid(self) -> int | None:
        return self._pipe.pid if self.alive else None

    @property
    def has_ticked(self) -> bool:
        return bool(self._ticks)

    @property
    def name(self) -> str:
        return f"worker {self.number}" + (f" on {self.host.name}" if self.host.name else "")

    def take(self) -> list[Tick]:
        """The ticks since the last call."""
        self.most_held = max((tick.most_held for tick in (*self._latest, *self._ticks)), default=0)
        self._latest = self._ticks[-1:] or self._latest
        self.stages = merge_stages([*(tick.stages for tick in self._ticks), self._lost])
        self.taken, self._ticks = self._ticks, []
        self._lost = {}
        return self.taken

    def take_death(self) -> str | None:
        """Why it died; returned only once."""
        death, self.death = self.death, None
        return death

    async def start(self) -> None:
        """Raises `WorkerError`."""
        try:
            await self._pipe.start(self._hear, self._gone)
        except WorkerError as error:
            self._gone(str(error))
            raise WorkerError(self.death) from error

    def send(self, command: messages.Command) -> None:
        """Send a command; does nothing if the worker is gone."""
        if self.alive:
            self._pipe.write(messages.encode(command) + b"\n")

    def check_silence(self, span_s: float) -> None:
        """Add `span_s` to its silence, and kill it if it has been silent for too long, or if its host is lost.

        Silence is summed over calls, not read from a clock: if vramp itself was stopped, its workers were not silent.
        """
        if self.alive and self.host.lost is not None:
            self.end(self.host.lost)
        if self._ticks or not self.alive:
            self._silent_s = 0.0
            return
        self._silent_s += span_s
        patience_s = START_S if self.last is None else SILENT_S
        if self._silent_s >= patience_s:
            words = "did not start within" if self.last is None else "sent no tick for"
            self.end(f"{words} {patience_s:g} s and was killed")

    def end(self, why: str) -> None:
        """Kill it, in any state."""
        self._gone(why)
        self._pipe.kill()

    async def close(self) -> None:
        """Let it exit, or else kill it; safe to call at any time and more than once."""
        self._closing = True
        await self._pipe.close()
        self._gone(f"did not exit within {CLOSE_S:g} s and was killed")

    def _hear(self, line: bytes) -> None:
        if not self.alive:
            return
        try:
            tick = messages.decode_tick(line)
            # Ticks are numbered by its machine's clock: a number ahead of it, or one that does not grow, is garbage. A
            # tick may predate that clock's being set back.
            self._ahead_ns = max(self._ahead_ns, self.host.offset_ns + self.host.uncertainty_ns)
            latest = (time.monotonic_ns() + self._ahead_ns) // TICK_NS + 1
            if tick.worker != self.number or not self._last_number < tick.number <= latest:
                raise ValueError(f"tick {tick.number} of worker {tick.worker} after {self._last_number}")
        except UNDECODABLE as error:
            self.end(f"sent an invalid tick and was killed: {error}")
            return
        self._last_number = tick.number
        self.last = tick = self._on_our_clock(tick) if self.host.offset_ns else tick
        self._ticks.append(tick)
        self._on_change()

    def _on_our_clock(self, tick: Tick) -> Tick:
        """The tick as if this machine's clock had timed it; its number grows even if the offset is corrected."""
        after = self.last.number if self.last is not None else 0
        number = round(tick.number - self.host.offset_ns / TICK_NS)
        stages = {index: self._moments_on_our_clock(index, delta) for index, delta in tick.stages.items()}

        # What its host's clock was set ahead since the last tick is no time for which streams were held.
        by_ns, self._moved_ns = self.host.moved_ns - self._moved_ns, self.host.moved_ns
        if by_ns > 0 and self.last is not None:
            for index, delta in stages.items():
                if index == self.last.running and delta.window_start_ns is not None:
                    area_ns = delta.held_area_ns - by_ns * self.last.held
                    stages[index] = msgspec.structs.replace(delta, held_area_ns=area_ns)

        return msgspec.structs.replace(tick, number=max(after + 1, number), stages=stages)

    def _moments_on_our_clock(self, index: int, delta: StageDelta) -> StageDelta:
        """The delta with its times on our clock; those repeated in every tick are converted once, so as not to move."""
        offset_ns, end_ns = self.host.offset_ns, delta.window_end_ns
        moments: dict[str, int | None] = {name: getattr(delta, name) for name in ("window_start_ns", "tail_start_ns")}
        for name, at_ns in moments.items():
            if at_ns is not None:
                moments[name] = self._moments.setdefault((index, name), at_ns - offset_ns)
        if end_ns is not None:
            # A tick may predate a step of its host's clock.
            moments["window_end_ns"] = min(end_ns - offset_ns, time.monotonic_ns())
        return msgspec.structs.replace(delta, **moments)

    def _gone(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        last = self.last
        # Sessions that live when the load is over end with it.
        sessions = last.sessions.live if last is not None and last.sessions is not None and not self._closing else 0
        if last is not None and last.running is not None and (last.open_sent or sessions):
            lost = SessionCounts(lost=sessions) if sessions else None
            delta = StageDelta(unfinished=last.open_sent, lost=last.open_sent, sessions=lost)
            self._lost = {last.running: delta}
        if not self._closing or self._lost:
            streams = last.held if last is not None else 0
            words = [counted(streams, "stream")] if streams else []
            words += [counted(sessions, "session")] if sessions else []
            verb = "is" if streams + sessions == 1 else "are"
            lost_words = f"; {' and '.join(words)} {verb} lost with it" if words else ""
            self.death = f"{self.name} {why}{lost_words}"
        self._on_change()
