"""Drives the streams of one worker: closed-loop slots, open-loop arrivals, and the connections under both.

Invariants: a free channel is used before a new one is opened; nothing blocks the loop for longer than a slice (`_SLICE`
requests); a failed stream makes its slot rest a little, so that a dead server is not hammered; lowering the load,
changing the stage and ending it never touch a running stream. The first requests of a closed loop are written, and
their connections opened, before its stage begins; until then the stage before goes on.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from loadgen.metrics.deltas import StreamRow
from loadgen.stream.channel import Channel
from loadgen.stream.samples import ClientSamples
from loadgen.stream.stream import Stream
from loadgen.stream.transport import Sockets
from loadgen.worker.messages import BeginStage, Configure
from loadgen.worker.stage_run import StageRun
from loadgen.worker.timing import LoopLag, PreciseTimer, timer_lead_ns
from loadgen.workload.prompts import Prompts

_SLICE = 16
_PREPARE_S = 5.0  # A stage begins after this time, whatever is still missing of its connections
_CONNECTING_AT_ONCE = 128
_PREPARED_OPEN_LOOP = 64
_REST_FIRST_S = 0.01
_REST_MOST_S = 1.0


class Driver:
    """All streams of this worker; steered by the commands of `loadgen.worker.messages`."""

    def __init__(self, settings: Configure, prompts: Prompts, tls: ssl.SSLContext | None) -> None:
        self._settings = settings
        self._prompts = prompts
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._timer = PreciseTimer(self._loop, self._arrived)
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: list[Channel] = []
        self._waiting: deque[int] = deque()
        self._next_due_ns: int | None = None
        self._resting = 0
        self._failures_in_row = 0
        self._schedule_start_ns = 0
        self._filling = False
        self._preparing = False
        self._slot_free_ns = 0  # when the open loop was last held back by `max_concurrency` and a stream ended
        self.client = ClientSamples()
        self._sockets = Sockets(self.client)
        self._sockets.send_due = self._timer.check
        if tls is not None:
            self._loop_lag = LoopLag(self._loop, self.client.read_lag_ns.append)
        self.rows: list[StreamRow] | None = [] if settings.rows else None
        """Of the streams that are over, until they are taken; None if nobody asks for them."""
        self.open: set[Channel] = set()  # channels that carry a stream
        self.stages: dict[int, StageRun] = {}
        self.current: StageRun | None = None
        self._coming: StageRun | None = None  # A closed loop that begins once its first requests can be sent
        self._coming_by_s = 0.0
        self._spares: set[asyncio.Task[None]] = set()  # connections that are being opened for it
        self._unconnected: set[Stream] = set()  # streams that wait for a connection on which to be sent again
        self._steps: list[asyncio.TimerHandle] = []

    @property
    def queued(self) -> int:
        """Open loop: arrivals that are due and wait for a connection."""
        return len(self._waiting)

    def take_rows(self) -> list[StreamRow]:
        """The rows of the streams that ended since the last call."""
        taken = list(self.rows or ())
        if self.rows is not None:
            self.rows.clear()
        return taken

    # Commands.

    def begin_stage(self, command: BeginStage) -> None:
        """End the running stage and begin another, once it can send what it begins with."""
        run = StageRun(command, self._prompts, self.client, self._settings.seed, self.rows)
        self._coming = None
        if command.concurrency is None:
            self._begin_run(run)
            return
        self._coming, self._coming_by_s = run, time.monotonic() + _PREPARE_S
        self._loop.call_later(_PREPARE_S, self._make_ready)
        self._make_ready()

    def _make_ready(self) -> None:
        """Write the requests that the stage to come begins with and connect; once that is done, begin it."""
        run = self._coming
        if run is None:
            return
        missing = run.missing_streams(len(self.open) + len(self._unconnected))
        if all(run.prepare_one(missing) for _ in range(_SLICE)):
            self._loop.call_soon(self._make_ready)
        elif self._connected_enough(missing):
            self._coming = None
            self._begin_run(run)

    def _connected_enough(self, missing: int) -> bool:
        """Whether there are idle connections for so many streams; opens more if not."""
        missing -= len(self._idle)
        if missing <= 0 or time.monotonic() >= self._coming_by_s or self._failures_in_row:
            return True
        for _ in range(min(missing, _CONNECTING_AT_ONCE) - len(self._spares)):
            self._spawn(self._connect(None), self._spares)
        return False

    def _begin_run(self, run: StageRun) -> None:
        command = run.command
        self._end_current()
        run.begin(list(self._streams()))
        self.stages[command.index] = run
        self.current = run
        self._failures_in_row = 0
        self._schedule_start_ns = command.start_ns
        measured_at_s = (command.start_ns + command.warmup_ns - time.monotonic_ns()) / 1e9
        self._loop.call_later(max(0.0, measured_at_s), self._measure_by_time, run)
        self._prepare_soon()
        if command.rate is None:
            self._fill_soon()
        else:
            self._connect_spares(run)
            self._timer.lead_ns = timer_lead_ns(command.rate / command.ranks)
            self._next_due_ns = run.next_arrival()
            self._arm()

    def _measure_by_time(self, run: StageRun) -> None:
        if run is self.current:
            run.measure_by_time(self._streams)
            self._begin_steps(run)

    def _begin_steps(self, run: StageRun) -> None:
        """Move the load from now on, if the stage's does."""
        if run.window.is_open and not self._steps:
            self._steps = [
                self._loop.call_later(offset_ns / 1e9, self._go_to_step, run, step)
                for step, (offset_ns, _) in enumerate(run.command.steps)
            ]

    def _go_to_step(self, run: StageRun, step: int) -> None:
        run.go_to_step(step)
        self._fill_soon()

    @property
    def _busy(self) -> int:
        """Places of the closed loop that are taken."""
        return len(self.open) + len(self._tasks) + self._resting

    def _streams(self) -> Iterator[Stream]:
        """All that are open, on a connection or waiting for one."""
        yield from [channel.stream for channel in self.open if channel.stream is not None]
        yield from self._unconnected

    def send_due(self) -> None:
        """Open loop: send what is due now or within the timer's lead; called before each piece of other work."""
        self._timer.check()

    def open_window(self, index: int) -> None:
        """The transient of the running stage is over; nothing if another has begun."""
        if self.current is not None and self.current.command.index == index:
            self.current.open_window(self._streams())
            self._begin_steps(self.current)

    def end_load(self, *, abort: bool) -> None:
        """Send no more; with `abort`, cut off what is running and count it as unfinished."""
        self._coming = None
        if not abort:
            self._end_current()
            return
        # Cut off before the end: what is cut off is unfinished, and not carried over into nothing.
        for task in (*self._tasks, *self._spares):
            task.cancel()
        for channel in list(self.open):
            self._cut_off(channel)
        for channel in self._idle:
            channel.close()
        self._idle.clear()
        self._end_current()

    def _cut_off(self, channel: Channel) -> None:
        stream = channel.stream
        channel.close()
        self._closed(channel)
        if stream is not None:
            self._give_up(self.stages[stream.stage], stream)

    def _end_current(self) -> None:
        run = self.current
        if run is not None:
            run.end(list(self._streams()), self._unsent(run))
        self._waiting.clear()
        self._timer.cancel()
        self._next_due_ns = None
        for step in self._steps:
            step.cancel()
        self._steps = []
        self.current = None

    def _unsent(self, run: StageRun) -> list[int]:
        """Open loop: when the schedule wanted the requests that are due and were not sent (CLOCK_REALTIME)."""
        monotonic_ns = time.monotonic_ns()
        realtime_ns = time.time_ns() - monotonic_ns + self._schedule_start_ns
        late = []
        while self._next_due_ns is not None and self._schedule_start_ns + self._next_due_ns <= monotonic_ns:
            late.append(realtime_ns + self._next_due_ns)
            self._next_due_ns = run.next_arrival()
        return [*self._waiting, *late]

    # Closed loop.

    def _fill_soon(self) -> None:
        if not self._filling:
            self._filling = True
            self._loop.call_soon(self._fill)

    def _fill(self) -> None:
        self._filling = False
        for _ in range(_SLICE):
            run = self.current
            if run is None or not self._wants_more(run):
                break
            channel = self._take_idle()
            if channel is not None:
                self._launch(run, channel, time.time_ns())
            elif len(self._tasks) < _CONNECTING_AT_ONCE:
                self._spawn(self._connect(run), self._tasks)
            else:
                break
        else:
            self._fill_soon()
        self._note_held()

    def _wants_more(self, run: StageRun) -> bool:
        return run.target is not None and self._busy + run.thinking < run.target and not run.exhausted

    def _may_send(self, run: StageRun) -> bool:
        most = run.command.max_concurrency
        return most is None or len(self.open) < most

    def _take_idle(self) -> Channel | None:
        while self._idle:
            channel = self._idle.pop()
            if channel.usable:
                return channel
        return None

    # Open loop.

    def _arm(self) -> None:
        if self._next_due_ns is not None:
            self._timer.set(self._schedule_start_ns + self._next_due_ns)

    def _arrived(self) -> None:
        run = self.current
        if run is None:
            return
        start_ns = self._schedule_start_ns
        realtime_ns = time.time_ns() - time.monotonic_ns()
        # One by one: through the loop and its timer, two requests could not be nearer to each other than 50 us.
        for _ in range(_SLICE):
            due_ns = self._next_due_ns
            if due_ns is None or not self._timer.reached(start_ns + due_ns):
                break
            self._waiting.append(realtime_ns + start_ns + due_ns)
            self._next_due_ns = run.next_arrival()
            self._serve_waiting(run)
        if not self._failures_in_row:
            self._connect_spares(run)
        self._arm()

    def _serve_waiting(self, run: StageRun) -> None:
        while self._waiting and self._may_send(run):
            channel = self._take_idle()
            if channel is None:
                break
            self._launch(run, channel, self._waiting.popleft())
        wanted = len(self._waiting)
        if run.command.max_concurrency is not None:
            wanted = min(wanted, run.command.max_concurrency - len(self.open))
        for _ in range(min(wanted, _CONNECTING_AT_ONCE) - len(self._tasks)):
            self._spawn(self._connect(run), self._tasks)

    def _connect_spares(self, run: StageRun) -> None:
        """Keep connections for the next quarter of a second: a request that waits for its own is late."""
        command = run.command
        wanted = min(_CONNECTING_AT_ONCE, 4 + int((command.rate or 0.0) / command.ranks / 4))
        if command.max_concurrency is not None:
            wanted = min(wanted, command.max_concurrency - len(self.open))
        for _ in range(wanted - len(self._idle) - len(self._tasks)):
            self._spawn(self._connect(run), self._tasks)

    # Streams.

    def _launch(self, run: StageRun, channel: Channel, intended_ns: int) -> None:
        stream = run.next_stream(intended_ns)
        stream.due_ns = max(intended_ns, self._slot_free_ns)
        run.open += 1
        run.open_sent += stream.measured
        self._begin(channel, stream)
        self._prepare_soon()

    def _begin(self, channel: Channel, stream: Stream) -> None:
        now_s = time.monotonic()
        stream.deadline_s = now_s + self._settings.timeout_s
        stream.quiet_since_s = now_s
        self.open.add(channel)
        if self.current is not None:
            self.current.window.held_changed(len(self.open))
        channel.begin(stream)
        if stream.cancel_after_s is not None:
            self._loop.call_later(stream.cancel_after_s, self._hang_up, channel, stream)

    def _hang_up(self, channel: Channel, stream: Stream) -> None:
        """Close the connection of a stream as an impatient client does, unless the stream is over."""
        if channel.stream is not stream:
            return
        self._note_free_slot(time.time_ns())
        channel.close()
        self._closed(channel)
        stream.cancel()
        self.stages[stream.stage].note_end(stream)
        self._fill_soon()
        if self.current is not None:
            self._serve_waiting(self.current)
        self._note_held()

    def _note_free_slot(self, at_ns: int) -> None:
        """A stream is over: what waited for its place could not be sent before."""
        if self.current is not None and not self._may_send(self.current):
            self._slot_free_ns = at_ns

    def _stream_ended(self, channel: Channel, stream: Stream, stamp_ns: int) -> None:
        self._note_free_slot(stamp_ns)
        self._closed(channel)
        ended = self.stages[stream.stage]
        ended.note_end(stream)
        self._let_think(ended, stream)
        run = self.current
        failed = not stream.done or not stream.first_ns
        self._failures_in_row = self._failures_in_row + 1 if failed else 0
        refilled = channel.usable and not failed and run is not None and self._go_on(run, channel, stamp_ns)
        if not channel.usable:
            channel.close()
        elif not refilled:
            self._idle.append(channel)
        if failed:
            self._rest()
        elif not refilled:
            self._fill_soon()
        self._note_held()

    def _let_think(self, run: StageRun, stream: Stream) -> None:
        """After a turn of a conversation the next is due, once its client has thought."""
        thought = run.think(stream)
        if thought is None:
            return
        if run.command.work.think_s:
            self._loop.call_later(run.command.work.think_s, self._go_on_talking, thought)
        else:
            thought()

    def _go_on_talking(self, thought: Callable[[], None]) -> None:
        thought()
        self._fill_soon()

    def _go_on(self, run: StageRun, channel: Channel, stamp_ns: int) -> bool:
        """Send the next request on the channel that has just become free, without a turn of the loop."""
        if self._waiting and self._may_send(run):
            self._launch(run, channel, self._waiting.popleft())
            return True
        if self._wants_more(run):
            self._launch(run, channel, stamp_ns)
            return True
        return False

    def _closed(self, channel: Channel) -> None:
        self.open.discard(channel)
        if self.current is not None:
            self.current.window.held_changed(len(self.open))

    def _note_held(self) -> None:
        """A moving load keeps its figures by the streams held: told when every free place has been refilled."""
        if self.current is not None and self.current.bins is not None and self.current.window.is_open:
            self.current.bins.note_held(len(self.open))

    def _rest(self) -> None:
        self._resting += 1
        rest_s = min(_REST_MOST_S, _REST_FIRST_S * 2 ** min(10, self._failures_in_row // max(1, len(self.open) + 1)))
        self._loop.call_later(rest_s, self._rested)

    def _rested(self) -> None:
        self._resting -= 1
        self._fill_soon()
        if self.current is not None:
            self._serve_waiting(self.current)

    # Connections.

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _connect(self, run: StageRun | None, stream: Stream | None = None) -> None:
        """Open a connection: for a stream, for the next of a stage, or to have one; `run` is None for the last."""
        channel = Channel(self.client, self._stream_ended, self._unanswered)
        settings = self._settings
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await self._sockets.connect(channel, settings.address, self._tls)
        except asyncio.CancelledError:
            if stream is not None:
                self._unconnected.discard(stream)
                self._give_up(self.stages[stream.stage], stream)
            raise
        except TimeoutError:
            self._connect_failed(run, stream, f"no connection within {settings.connect_timeout_s:g} s")
        except OSError as error:
            self._connect_failed(run, stream, error.strerror or str(error))
        else:
            self._connected(channel, stream)

    def _connected(self, channel: Channel, stream: Stream | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.discard(task)  # before the slots are counted
        self._spares.discard(task)
        if stream is not None:
            self._unconnected.discard(stream)
            self._begin(channel, stream)
            return
        self._idle.append(channel)
        run = self.current
        if run is not None and run.command.rate is not None:
            self._serve_waiting(run)
        else:
            self._fill_soon()
        self._make_ready()

    def _connect_failed(self, run: StageRun | None, stream: Stream | None, message: str) -> None:
        """A request that could not be sent because there is no connection has failed."""
        self._failures_in_row += 1
        if stream is not None:
            self._unconnected.discard(stream)
            self.stages[stream.stage].note_end(stream)
        elif run is None:
            self._make_ready()
            return
        elif run is not self.current or run.exhausted:
            return
        elif run.command.rate is None:
            stream = run.next_stream(time.time_ns())
        elif self._waiting:
            stream = run.next_stream(self._waiting.popleft())
        else:
            return
        stream.fail("connect", message)
        self._rest()

    def _give_up(self, run: StageRun, stream: Stream) -> None:
        stream.cut_off()
        run.note_end(stream)

    def _unanswered(self, channel: Channel, stream: Stream) -> None:
        """A reused connection died before the response: send the request once more on a fresh one."""
        self._closed(channel)
        stream.retried = True
        stream.restart()
        stream.samples.retried += 1
        self._unconnected.add(stream)
        self._spawn(self._connect(self.stages[stream.stage], stream), self._tasks)

    # Background.

    def _prepare_soon(self) -> None:
        if not self._preparing:
            self._preparing = True
            self._loop.call_soon(self._prepare)

    def _prepare(self) -> None:
        self._preparing = False
        run = self.current
        if run is None:
            return
        # Few at a time: events that arrive meanwhile wait for this.
        for _ in range(4):
            self.send_due()
            if not run.prepare_one(_PREPARED_OPEN_LOOP if run.target is None else run.target):
                return
        self._prepare_soon()

    def sweep(self) -> None:
        """Fail the streams whose deadline has passed or that have been silent for too long."""
        now_s = time.monotonic()
        for channel in list(self.open):
            stream = channel.stream
            if stream is None:
                continue
            if stream.events != stream.events_at_sweep:
                stream.events_at_sweep = stream.events
                stream.quiet_since_s = now_s
            if now_s >= stream.deadline_s:
                channel.give_up("timeout", f"not complete within {self._settings.timeout_s:g} s")
            elif now_s - stream.quiet_since_s >= self._settings.stall_timeout_s:
                channel.give_up("stall", f"no event for {self._settings.stall_timeout_s:g} s")

    def note_clock_step(self) -> None:
        """The wall clock was stepped: nothing stamped since the last tick, and no open stream, can be timed."""
        for channel in self.open:
            if channel.stream is not None:
                channel.stream.note_clock_step()
        for run in self.stages.values():
            run.drop_samples()
