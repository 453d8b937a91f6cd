"""One stage on one worker: its share of the requests, written ahead of time, and their outcomes.

Requests are numbered across all workers and each worker sends every `ranks`-th, so the set of prompts does not depend
on the number of workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

import msgspec

from loadgen.metrics.stage import StageMetrics
from loadgen.schema.deltas import StageDelta, StreamRow
from loadgen.stream.samples import ClientSamples, StageSamples, StreamLimits
from loadgen.stream.stream import Stream
from loadgen.worker.messages import BeginStage
from loadgen.worker.queues import RequestQueue, Turn
from loadgen.worker.sessions import LiveSessions
from loadgen.worker.window import LoadBins, Window
from loadgen.workload.arrivals import arrival_offsets_s, share_of, slice_for
from loadgen.workload.data import DatasetReader
from loadgen.workload.prompts import Prompts


class StageRun:
    """The running stage, or an earlier one with open streams."""

    def __init__(
        self,
        command: BeginStage,
        prompts: Prompts,
        client: ClientSamples,
        seed: int,
        rows: list[StreamRow] | None = None,
        sessions: LiveSessions | None = None,
    ) -> None:
        """`rows` receives a row per ended stream; `sessions` say what is sent, if the load is sessions."""
        self.command = command
        stage = self.stage = command.stage
        limits = StreamLimits.of(stage.limits_ms)
        self.samples = StageSamples(limits=limits, is_open=False, whole_only=stage.requests is not None, rows=rows)
        self.window = Window(client)
        self.open = 0
        self.open_sent = 0  # open streams that count in `sent`
        self.thinking = 0  # conversations in think time, whose next turn is not yet due
        self.concurrency = command.share(stage.concurrency)
        """This worker's share of the closed loop, for a moving load at its present step."""
        self.rate = None if stage.rate is None else stage.rate / command.ranks  # its share of the open loop
        self.max_concurrency = command.share(stage.max_concurrency)
        # In open loop the arrival schedule already follows the moving rate.
        self._loads = [None if stage.rate is not None else command.share(int(load)) for _, load in stage.steps]
        self.bins = LoadBins(self._loads, self.samples, client) if stage.steps else None
        self._first_wave_left = 0
        self.sessions = sessions
        self._requests = RequestQueue(command, prompts, seed, sessions)
        self._steps: list[asyncio.TimerHandle] = []
        reader = self._requests.writer.reader
        self._warmups = _warmups(command, seed, reader)
        self._warmups_left = share_of(self._warmups, command.rank, command.ranks)
        self._measured_left: int | None = None
        if stage.requests is not None:
            with_warmup = share_of(self._warmups + stage.requests, command.rank, command.ranks)
            self._measured_left = with_warmup - self._warmups_left
        self._arrivals = slice_for(_schedule(command, seed, reader), command.rank, command.ranks)
        self._arriving = 0  # arrivals of the schedule whose requests have not been taken yet
        self._schedule_over = False
        self.opens_at_once = False  # its transient was over, elsewhere, before it began here
        self._last_end_ns = 0
        self._ended = False
        self._pending: list[StageDelta] = []  # measured before the end of the stage, not yet drained

    def missing_streams(self, held: int) -> int:
        """How many requests the closed loop sends at once at its beginning, given `held` open streams."""
        if self.sessions is not None:
            return 0
        missing = max(0, (self.concurrency or 0) - held)
        left = self._measured_left
        return missing if left is None else min(missing, self._warmups_left + left)

    def begin(self, streams: Sequence[Stream]) -> None:
        """Begin the stage; `streams` are those of earlier stages that are still open."""
        self.window.held_changed(len(streams))
        if self.sessions is not None:
            rank, ranks = self.command.rank, self.command.ranks
            self.sessions.begin_stage(self.samples, self.concurrency or 0, rank=rank, ranks=ranks)
        for stream in streams:
            stream.enter_window(self.samples)
            self.samples.carried_in += 1
        if self.command.first_wave_apart:
            self._first_wave_left = self.samples.first_wave_waiting = self.missing_streams(len(streams))

    # Requests.

    @property
    def exhausted(self) -> bool:
        """Whether all of this worker's requests, or all of its schedule, have been sent; never true without a bound."""
        left = self._measured_left
        return left == 0 or (left is not None and self._schedule_over and self._arriving == 0)

    @property
    def first_waiting(self) -> int:
        """Streams of the first wave without a first token; live sessions without an answer under this load."""
        return self.samples.first_wave_waiting if self.sessions is None else self.sessions.unsettled

    @property
    def finished(self) -> bool:
        """Whether all of them have been answered, too."""
        return self.exhausted and self.open == 0

    def prepare_one(self, wanted: int) -> bool:
        """Write one more request ahead; False if `wanted` are ready, or all that fit in memory."""
        if self.sessions is not None:
            return False
        if self._measured_left is not None:
            wanted = min(wanted, self._warmups_left + self._measured_left)
        return self._requests.write_ahead(wanted)

    def write_again(self, stream: Stream) -> None:
        """Write a stream's request again, because its bytes were not kept."""
        stream.wire = self._requests.write(Turn(*stream.request)).wire

    def next_stream(self, intended_ns: int) -> Stream:
        """The next request as a stream; `intended_ns` is when the schedule wanted it (CLOCK_REALTIME)."""
        self._arriving -= 1
        samples, measured, first_turn, ceiling = self.samples, self._is_measured(), None, None
        primes = False
        if self.sessions is None:
            turn, written = self._requests.take()
        else:
            due, ceiling = self.sessions.take()
            turn, intended_ns, primes = Turn(due.session, due.request), due.at_ns, due.primes
            measured = measured and not primes
            written, first_turn = self._requests.write(turn), self.sessions.is_first_turn(*turn)
        model, first_wave = self._requests.model(turn), self._first_wave_left > 0
        self._first_wave_left -= first_wave
        samples.first_wave += first_wave
        if not primes:
            self._count_sent(model, measured=measured)
        return Stream(
            stage=self.command.index,
            samples=samples,
            wire=written.wire,
            intended_ns=intended_ns,
            measured=measured,
            first_wave=first_wave,
            request=turn,
            primes=primes,
            first_turn=first_turn,
            ceiling=ceiling,
            pieces=[] if self.sessions is not None and self.sessions.keeps_answers else None,
            sent_ids=written.ids,
            osl=written.osl if self.command.template.exact_osl else None,
            model=model,
            cancel_after_s=self._requests.cancel_after_s(turn),
        )

    def _count_sent(self, model: str | None, *, measured: bool) -> None:
        samples = self.samples
        if not measured:
            samples.warmup += 1
            self._warmups_left = max(0, self._warmups_left - 1)
            return
        samples.sent += 1
        if self._measured_left is not None:
            self._measured_left -= 1
        if model is not None:
            samples.models[model] = samples.models.get(model, 0) + 1

    # Conversations and sessions.

    def follow_up(self, stream: Stream, thought: Callable[[], None]) -> None:
        """Call `thought` after the think time, if the conversation of a stream that has ended continues.

        Until then the conversation keeps its slot in the closed loop. Sessions wait by themselves.
        """
        work = self.stage.work
        if self.sessions is not None:
            self.sessions.ended(stream)
            return
        if work.turns == 1:
            return
        following = self._requests.following(Turn(*stream.request))
        if following is None or not stream.completed:
            self.end_conversation(stream)
            return
        if stream.session_token:
            self._requests.tokens[following.request] = stream.session_token
        if work.think_s:
            self.thinking += 1
            asyncio.get_running_loop().call_later(work.think_s, self._has_thought, following, thought)
        else:
            self._requests.due.append(following)

    def end_conversation(self, stream: Stream) -> None:
        """Drop what was written ahead for the next turn, because nothing follows this stream."""
        if self.sessions is not None:
            self.sessions.ended(stream)
            return
        self._requests.forget(Turn(*stream.request))

    def _has_thought(self, following: Turn, thought: Callable[[], None]) -> None:
        self.thinking -= 1
        self._requests.due.append(following)
        thought()

    def _is_measured(self) -> bool:
        command = self.command
        if self.window.is_open:
            return True
        if self.stage.requests is None or self._warmups_left or command.waits:
            return False
        now_ns = time.monotonic_ns()
        if now_ns < command.start_ns + command.warmup_ns:
            return False
        # A stage bounded by requests is measured from the first request that counts.
        self._open(now_ns)
        return True

    def _open(self, now_ns: int) -> None:
        self.window.open(now_ns)
        self.samples.open()

    # Open loop.

    def next_arrival(self) -> int | None:
        """The offset of the schedule's next request from the start, in nanoseconds; None at its end."""
        index, offset_s = next(self._arrivals, (0, None))
        requests = self.stage.requests
        if offset_s is None or (requests is not None and index >= self._warmups + requests):
            self._schedule_over = True
            return None
        self._arriving += 1
        return int(offset_s * 1e9)

    # Measurement.

    def note_end(self, stream: Stream) -> None:
        """Note that a stream of this stage has ended."""
        self.open -= 1
        self.open_sent -= stream.measured
        self._last_end_ns = time.monotonic_ns()
        if self.exhausted:
            self.window.begin_tail()

    def measure_by_time(self, streams: Callable[[], Iterable[Stream]]) -> None:
        """Open the window of a stage bounded by time, once its warm-up is over."""
        if self.stage.requests is None and not self.command.waits:
            self.open_window(streams())

    def open_window(self, streams: Iterable[Stream]) -> None:
        """Measure from now on; `streams` are all that are open."""
        if self._ended or self.window.is_open:
            return
        self._open(time.monotonic_ns())
        open_now = list(streams)
        for stream in open_now:
            stream.enter_window(self.samples)
        if self.bins is not None:
            self.bins.begin(len(open_now), None if self.sessions is None else self.sessions.live)

    def begin_steps(self, moved: Callable[[], None]) -> None:
        """Start stepping a moving load once the window is open; `moved` is called at each step."""
        if self.window.is_open and not self._steps:
            loop = asyncio.get_running_loop()
            self._steps = [
                loop.call_later(at_s, self._go_to_step, step, moved) for step, (at_s, _) in enumerate(self.stage.steps)
            ]

    def _go_to_step(self, step: int, moved: Callable[[], None]) -> None:
        self.concurrency = self._loads[step]
        if self.sessions is not None:
            self.sessions.resize(self.concurrency or 0)
        if self.bins is not None:
            self.bins.step = step
        moved()

    def note_held(self, held: int) -> None:
        """Note the number of open streams, for a moving load; call it once all free slots have been refilled."""
        if self.bins is not None and self.window.is_open:
            self.bins.note_held(held, None if self.sessions is None else self.sessions.live)

    def end(self, streams: Iterable[Stream], unsent: Iterable[int] = ()) -> None:
        """End the stage: nothing more of it is sent, and what arrives from now on is outside its window.

        `streams` are all open ones, of any stage; `unsent` are the intended times of arrivals that were not sent.
        """
        now_ns = time.time_ns()
        for intended_ns in unsent:
            self.samples.note_unsent(intended_ns, now_ns)
        for stream in streams:
            stream.leave_window(now_ns)
        for step in self._steps:
            step.cancel()
        if self.sessions is not None:
            self.sessions.end_stage()
        self._pending.append(self._drained(lambda: None))
        self.window.close()
        self.samples.close()
        self.open_sent = 0
        self._ended = True

    def drain(self, send_due: Callable[[], None] = lambda: None) -> StageDelta:
        """What happened since the last drain; `send_due` as in `StageSamples.drain`."""
        pending, self._pending = self._pending, []
        drained = self._drained(send_due)
        return StageMetrics.of(*pending, drained).encode() if pending else drained

    def _drained(self, send_due: Callable[[], None]) -> StageDelta:
        bins = self.bins.drain() if self.bins is not None and self.samples.is_open else {}
        # A stage bounded by requests ends with its last answer, not with the tick after it.
        until_ns = self._last_end_ns if self.finished else time.monotonic_ns()
        sessions = None
        if self.sessions is not None and not self._ended:
            sessions = self.sessions.drain(self.window.opened_ns, until_ns)
        drained = self.samples.drain(send_due)
        return msgspec.structs.replace(drained, bins=bins, sessions=sessions, **self.window.take(until_ns))

    def note_clock_step(self) -> None:
        """Discard the times that have not been drained, because the wall clock was stepped."""
        self.samples.note_clock_step()
        if self.bins is not None:
            self.bins.drop_samples()
        self._pending = [_without_times(delta) for delta in self._pending]

    @property
    def over(self) -> bool:
        """Whether it has ended and none of its streams is open: it will report nothing more."""
        return self._ended and self.open == 0


def _without_times(delta: StageDelta) -> StageDelta:
    e2e = delta.latency.get("e2e")
    return msgspec.structs.replace(
        delta,
        latency={},
        bins={step: msgspec.structs.replace(part, ttft=None, itl=None) for step, part in delta.bins.items()},
        clock_steps=delta.clock_steps + (e2e.count if e2e is not None else 0),
        **dict.fromkeys(("good", "beyond", "tpot_parts"), 0),
    )


def _warmups(command: BeginStage, seed: int, reader: DatasetReader | None) -> int:
    """How many requests, over all workers, precede those that count, in a stage bounded by requests.

    In open loop, requests scheduled within the warm-up time are known beforehand and are warm-up however late they are
    sent: so the bound is reached, with the same requests for any number of workers.
    """
    stage = command.stage
    if stage.rate is None or stage.requests is None or not stage.warmup_s:
        return stage.warmup_requests
    early = takewhile(lambda offset_s: offset_s * 1e9 < command.warmup_ns, _schedule(command, seed, reader))
    return max(stage.warmup_requests, sum(1 for _ in early))


def _schedule(command: BeginStage, seed: int, reader: DatasetReader | None) -> Iterator[float]:
    """Intended times of the requests of all workers, in seconds after the start; none in closed loop."""
    stage = command.stage
    if stage.rate is None:
        return iter(())
    if stage.work.replay and reader is not None:
        return reader.times_s()
    return arrival_offsets_s(stage.rate, stage.arrival, seed + command.key, stage.rate_points)
