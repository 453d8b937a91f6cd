"""Drives the streams of one worker: closed-loop slots, open-loop arrivals, and the connections under both.

Invariants: nothing blocks the loop for longer than a slice (`_SLICE` requests); after a failed stream its slot stays
empty for a while, so that a dead server is not hammered; lowering the load, changing the stage and ending it never
touch a running stream. Before a closed-loop stage begins, its first requests are written and its connections opened;
until then the previous stage continues.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from functools import partial
from itertools import count

from loadgen.schema.deltas import StreamRow
from loadgen.stream.channel import Channel
from loadgen.stream.samples import ClientSamples
from loadgen.stream.stream import Stream
from loadgen.stream.transport import Sockets
from loadgen.worker.connections import AT_ONCE, BackOff, Connections
from loadgen.worker.messages import BeginStage, Configure
from loadgen.worker.queues import ArrivalQueue
from loadgen.worker.sampling import AnswerSampler
from loadgen.worker.sessions import LiveSessions
from loadgen.worker.stage_run import StageRun
from loadgen.worker.timing import LoopLag
from loadgen.workload.prompts import Prompts
from loadgen.workload.sessions.ceiling import Ceilings

_SLICE = 16
_PREPARE_S = 5.0  # a stage begins so long after its connections could all be open, even if some are missing
_EARLY_S = 0.005  # no timer of the loop ends earlier than that
_PREPARED_OPEN_LOOP = 64
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""A closed loop sends nothing more while the kernel has yet to take this much: long prompts add up to gigabytes."""


class Driver:
    """All streams of this worker, steered by the commands of `loadgen.worker.messages`."""

    def __init__(self, settings: Configure, prompts: Prompts, tls: ssl.SSLContext | None) -> None:
        self._settings = settings
        self._prompts = prompts
        self._loop = asyncio.get_running_loop()
        self.client = ClientSamples()
        self.arrivals = ArrivalQueue(self._loop, self._arrived)
        self.send_due = self.arrivals.check
        """Open loop: sends what is due now or within the timer's lead; called before every other piece of work."""
        self.sockets = Sockets(self.client)
        self.sockets.send_due = self.send_due
        self.sockets.rest_taken = self._fill_soon
        self._connections = Connections(
            settings,
            tls,
            self.sockets,
            place_free=self._make_ready,
            new_channel=lambda: Channel(
                self.client, self._stream_ended, self._unanswered, self._connections.drop, settings.echo_header
            ),
        )
        if tls is not None:
            self._loop_lag = LoopLag(self._loop, self.client.read_lag_ns.append)
        self.rows: list[StreamRow] | None = [] if settings.rows else None
        """A row per ended stream, until the next tick takes them; None if rows are not wanted."""
        self.open: set[Channel] = set()  # channels that carry a stream
        self._most_open = 0  # at the same time, since the last tick
        self.sessions: LiveSessions | None = None  # which live on from stage to stage
        self._session_serials = count()  # over the whole run, so that no play is sent twice
        self._ceilings = Ceilings()
        self.stages: dict[int, StageRun] = {}
        self.current: StageRun | None = None
        self._coming: StageRun | None = None  # a closed-loop stage that begins once its first requests can be sent
        self._coming_by_s = 0.0
        self._resending: set[Stream] = set()  # streams waiting for a connection to be sent again
        self._back_off = BackOff(self._send_more)
        self._filling = False
        self._preparing = False
        self.sampler = AnswerSampler(wanted=settings.sample_answers)
        self._slot_free_ns = 0  # when a stream last ended while `max_concurrency` held the open loop back

    def take_most_open(self) -> int:
        """The most streams open at the same time since the last call."""
        taken, self._most_open = self._most_open, len(self.open)
        return taken

    # Commands.

    def begin_stage(self, command: BeginStage) -> None:
        """End the running stage and begin the next, once it is time and its first requests can be sent."""
        sessions = self._sessions_for(command)
        run = StageRun(command, self._prompts, self.client, self._settings.seed, self.rows, sessions)
        prepare_s = _PREPARE_S + self._connections.ahead_s(run.concurrency or 0, command.ranks)
        self._coming, self._coming_by_s = run, time.monotonic() + prepare_s
        if run.concurrency is not None:
            self._loop.call_later(prepare_s + _EARLY_S, self._make_ready)
        self._make_ready()

    def _sessions_for(self, command: BeginStage) -> LiveSessions | None:
        """The sessions of a stage: those that live, if it continues them."""
        wanted = command.stage.work.sessions
        if wanted is None or (self.sessions is not None and self.sessions.wanted == wanted):
            return None if wanted is None else self.sessions
        return LiveSessions(
            wanted,
            self._prompts,
            self._fill_soon,
            seed=self._settings.seed,
            worker=self._settings.worker,
            kv_tokens=self._settings.kv_tokens,
            serials=self._session_serials,
            ceilings=self._ceilings,
        )

    def _make_ready(self) -> None:
        """Write the next stage's first requests and open their connections; then begin the stage when it is time."""
        run = self._coming
        if run is None:
            return
        missing = 0 if run.concurrency is None else run.missing_streams(len(self.open) + len(self._resending))
        if missing and all(run.prepare_one(missing) for _ in range(_SLICE)):
            self._loop.call_soon(self._make_ready)
        elif self._connected_enough(missing, run.command.ranks):
            wait_s = (run.command.start_ns - time.monotonic_ns()) / 1e9
            if wait_s > 0:
                # The loop's timers may end too early: then it waits once more.
                self._loop.call_later(wait_s, self._make_ready)
                return
            self._coming = None
            self._begin_run(run)

    def _connected_enough(self, missing: int, workers: int) -> bool:
        """Whether `missing` free connections exist, or waiting for them is over; opens more if not."""
        missing -= len(self._connections.free)
        if missing <= 0 or time.monotonic() >= self._coming_by_s or self._back_off.failures_in_row:
            return True
        self._connections.open_ahead(missing, workers, self._connected, self._connect_failed_ahead)
        return False

    def _begin_run(self, run: StageRun) -> None:
        command = run.command
        self._end_current()
        self._continue_sessions(run.sessions)
        run.begin(list(self._streams()))
        self.stages[command.index] = self.current = run
        self._back_off.failures_in_row = 0
        measured_at_s = (command.start_ns + command.warmup_ns - time.monotonic_ns()) / 1e9
        self._loop.call_later(max(0.0, measured_at_s), self._warmup_over, run)
        self._prepare_soon()
        if run.rate is None:
            self._fill_soon()
        else:
            self._connect_ahead(run)
            self.arrivals.begin(command.start_ns, run.rate, run.next_arrival)
        if run.opens_at_once:
            self.open_window(command.index)

    def _continue_sessions(self, sessions: LiveSessions | None) -> None:
        """Keep only these sessions; what was due while nothing was sent could not be sent before now."""
        if self.sessions is not None and self.sessions is not sessions:
            self.sessions.resize(0)
        self.sessions = sessions
        if sessions is not None:
            self._slot_free_ns = time.time_ns()

    def _warmup_over(self, run: StageRun) -> None:
        if run is self.current:
            run.measure_by_time(self._streams)
            run.begin_steps(self._fill_soon)

    def open_window(self, index: int) -> None:
        """The transient of stage `index` is over: measure it if it still runs, or as soon as it begins here."""
        if self._coming is not None and self._coming.command.index == index:
            self._coming.opens_at_once = True
        elif self.current is not None and self.current.command.index == index:
            self.current.open_window(self._streams())
            self.current.begin_steps(self._fill_soon)

    def end_load(self, *, abort: bool, ends_sessions: bool = False) -> None:
        """Send no more; with `abort`, cut off the open streams and count them as unfinished."""
        self._coming = None
        if abort:
            # Before the stage ends, so that they count as unfinished and not as carried over.
            now_ns = time.time_ns()
            for stream in self._streams():
                stream.cut_off(now_ns)
                self.stages[stream.stage].note_end(stream)
            for channel in self.open:
                channel.close()
            self.open.clear()
            self._resending.clear()
            self._connections.close()
            if self.current is not None:
                self.current.window.held_changed(0)
        self._end_current()
        if abort or ends_sessions:
            self._continue_sessions(None)

    def _end_current(self) -> None:
        unsent = self.arrivals.end()
        if self.current is not None:
            self.current.end(list(self._streams()), unsent)
        self.current = None

    def _streams(self) -> Iterator[Stream]:
        """All open streams, whether on a connection or waiting for one."""
        yield from [channel.stream for channel in self.open if channel.stream is not None]
        yield from self._resending

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
            channel = self._connections.take()
            if channel is not None:
                self._launch(run, channel, time.time_ns())
            elif len(self._connections.opening) < AT_ONCE:
                self._connections.open(self._connected, partial(self._connect_failed, run))
            else:
                break
        else:
            self._fill_soon()
        self._note_held()

    def _wants_more(self, run: StageRun) -> bool:
        if self.sockets.unsent_bytes > MAX_UNSENT_BYTES:
            return False
        opening = len(self._connections.opening)
        if run.sessions is not None:
            waiting = len(run.sessions.due) - opening - self._back_off.places
            return waiting > 0 and not run.exhausted and self._may_send(run, opening)
        taken = len(self.open) + opening + self._back_off.places + run.thinking
        return run.concurrency is not None and taken < run.concurrency and not run.exhausted

    # Open loop.

    def _may_send(self, run: StageRun, opening: int = 0) -> bool:
        return run.max_concurrency is None or len(self.open) + opening < run.max_concurrency

    def _arrived(self) -> None:
        run = self.current
        if run is None:
            return
        # In one go: through the loop and its timer, two requests could not be closer together than 50 us.
        for _ in range(_SLICE):
            if not self.arrivals.take_due():
                break
            self._serve_waiting(run)
        if not self._back_off.failures_in_row:
            self._connect_ahead(run)
        self.arrivals.arm()

    def _serve_waiting(self, run: StageRun) -> None:
        waiting = self.arrivals.waiting
        while waiting and self._may_send(run):
            channel = self._connections.take()
            if channel is None:
                break
            self._launch(run, channel, self.arrivals.take_waiting())
        self._connect_for(run, len(waiting), free=0)

    def _connect_ahead(self, run: StageRun) -> None:
        """Keep connections ready for the next quarter of a second: a request that must wait for one is late."""
        wanted = min(AT_ONCE, 4 + int((run.rate or 0.0) / 4))
        self._connect_for(run, wanted, free=len(self._connections.free))

    def _connect_for(self, run: StageRun, wanted: int, *, free: int) -> None:
        if run.max_concurrency is not None:
            wanted = min(wanted, run.max_concurrency - len(self.open))
        self._connections.open_up_to(wanted - free, self._connected, partial(self._connect_failed, run))

    # Streams.

    def _launch(self, run: StageRun, channel: Channel, intended_ns: int) -> None:
        stream = run.next_stream(intended_ns)
        stream.due_ns = max(intended_ns, self._slot_free_ns)
        run.open += 1
        run.open_sent += stream.measured
        if self.sampler.due and stream.pieces is None:
            self.sampler.follow(channel, stream)
        self._send(stream, channel)
        self._prepare_soon()

    def _send(self, stream: Stream, channel: Channel) -> None:
        now_s = time.monotonic()
        stream.deadline_s = now_s + self._settings.timeout_s
        stream.quiet_since_s = now_s
        self.open.add(channel)
        self._most_open = max(self._most_open, len(self.open))
        if self.current is not None:
            self.current.window.held_changed(len(self.open))
        channel.begin(stream)
        if stream.cancel_after_s is not None:
            self._loop.call_later(stream.cancel_after_s, self._hang_up, channel, stream)

    def _hang_up(self, channel: Channel, stream: Stream) -> None:
        """Close a stream's connection as an impatient client does, unless the stream has ended."""
        if channel.stream is not stream:
            return
        channel.close()
        now_ns = time.time_ns()
        stream.cancel(now_ns)
        self._note_end(channel, stream, now_ns)
        self.stages[stream.stage].end_conversation(stream)
        self._send_more()
        self._note_held()

    def _send_more(self) -> None:
        """Fill a slot that has become free and was not refilled at once."""
        self._fill_soon()
        if self.current is not None:
            self._serve_waiting(self.current)

    def _note_end(self, channel: Channel, stream: Stream, at_ns: int) -> None:
        if self.current is not None and not self._may_send(self.current):
            # Requests held back by `max_concurrency` could not be sent before now.
            self._slot_free_ns = at_ns
        self._closed(channel)
        self.stages[stream.stage].note_end(stream)

    def _stream_ended(self, channel: Channel, stream: Stream, stamp_ns: int) -> None:
        self._note_end(channel, stream, stamp_ns)
        self.stages[stream.stage].follow_up(stream, self._fill_soon)
        failed = not stream.completed
        self._back_off.failures_in_row = self._back_off.failures_in_row + 1 if failed else 0
        refilled = channel.usable and not failed and self._refill(channel, stamp_ns)
        if not channel.usable:
            channel.close()
        elif not refilled:
            self._connections.put(channel)
        if failed:
            self._back_off.begin(len(self.open))
        elif not refilled:
            self._fill_soon()
        self._note_held()

    def _refill(self, channel: Channel, stamp_ns: int) -> bool:
        """Send the next request on the channel that has just become free, without going through the loop."""
        run = self.current
        if run is not None and self.arrivals.waiting and self._may_send(run):
            self._launch(run, channel, self.arrivals.take_waiting())
        elif run is not None and self._wants_more(run):
            self._launch(run, channel, stamp_ns)
        else:
            return False
        return True

    def _closed(self, channel: Channel) -> None:
        self.open.discard(channel)
        if self.current is not None:
            self.current.window.held_changed(len(self.open))

    def _note_held(self) -> None:
        """Note the streams held, to which a moving load attributes its samples, once all free slots are refilled."""
        if self.current is not None:
            self.current.note_held(len(self.open))

    # Connections.

    def _connected(self, channel: Channel) -> None:
        self._connections.put(channel)
        run = self.current
        if run is not None and run.rate is not None:
            self._serve_waiting(run)
        else:
            self._fill_soon()
        self._make_ready()

    def _connect_failed_ahead(self, _: str) -> None:
        self._back_off.failures_in_row += 1
        self._make_ready()

    def _connect_failed(self, run: StageRun, message: str) -> None:
        """Count a request that failed because there was no connection to send it on."""
        self._back_off.failures_in_row += 1
        # Whether there is still a request that the connection was for.
        waiting = self.arrivals.waiting if run.sessions is None else run.sessions.due
        has_request = bool(waiting) or (run.rate is None and run.sessions is None)
        if run is self.current and not run.exhausted and has_request:
            stream = run.next_stream(time.time_ns() if run.rate is None else self.arrivals.take_waiting())
            stream.fail("connect", message)
            run.end_conversation(stream)
        # Even if the request is of an earlier stage: while being opened, its connection took a slot of the present one.
        self._back_off.begin(len(self.open))

    def _unanswered(self, channel: Channel, stream: Stream) -> None:
        """Send a request again on a new connection, because its reused one was closed before the response."""
        self._closed(channel)
        stream.retried = True
        stream.restart()
        stream.samples.retried += 1
        self._resending.add(stream)
        self._connections.open(partial(self._resend, stream), partial(self._resend_failed, stream))

    def _resend(self, stream: Stream, channel: Channel) -> None:
        self._resending.discard(stream)
        self.stages[stream.stage].write_again(stream)
        self._send(stream, channel)

    def _resend_failed(self, stream: Stream, message: str) -> None:
        self._back_off.failures_in_row += 1
        self._resending.discard(stream)
        run = self.stages[stream.stage]
        run.note_end(stream)
        run.end_conversation(stream)
        stream.fail("connect", message)
        self._back_off.begin(len(self.open))

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
        # A few at a time: events that arrive meanwhile have to wait.
        for _ in range(4):
            self.send_due()
            if not run.prepare_one(_PREPARED_OPEN_LOOP if run.concurrency is None else run.concurrency):
                return
        self._prepare_soon()

    def fail_overdue(self) -> None:
        """Fail the streams whose deadline has passed or that have been silent for too long."""
        now_s = time.monotonic()
        for channel in list(self.open):
            stream = channel.stream
            if stream is None:
                continue
            if stream.events != stream.events_at_check:
                stream.events_at_check = stream.events
                stream.quiet_since_s = now_s
            if now_s >= stream.deadline_s:
                channel.give_up("timeout", f"not complete within {self._settings.timeout_s:g} s")
            elif now_s - stream.quiet_since_s >= self._settings.stall_timeout_s:
                channel.give_up("stall", f"no event for {self._settings.stall_timeout_s:g} s")

    def note_standstill(self, ns: int) -> None:
        """Discard times, and do not count against open streams that this process stood still for so long."""
        for stream in self._streams():
            stream.deadline_s += ns / 1e9
            stream.quiet_since_s += ns / 1e9
        self.discard_times()

    def discard_times(self) -> None:
        """Discard those since the last tick and of all open streams: the clock was stepped, or nobody read it."""
        for stream in self._streams():
            stream.note_clock_step()
        for run in self.stages.values():
            run.note_clock_step()
        self.client.read_lag_ns.clear()
        self.client.send_lag_ns.clear()
        self._slot_free_ns = 0
