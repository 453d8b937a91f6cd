"""The step loop: drives the engine by its clock, and passes its tokens to the answers.

The clock is a timerfd watched by the loop, late by tens of microseconds; libuv and asyncio would round to milliseconds.
`os.timerfd_create` exists from Python 3.13, so before that two calls into libc replace it; without either (not Linux),
the loop's own timer is used.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

from loadgen.simulator.engine import Engine, Sequence
from loadgen.simulator.faults import Fault
from loadgen.simulator.ground_truth import GroundTruth
from loadgen.simulator.metrics import Metrics
from loadgen.simulator.physics import Physics

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_ABSTIME = 0o4000, 0o2000000, 1


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class Timer:
    """Calls `ring` once for each `set`, at an absolute CLOCK_MONOTONIC time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        except (OSError, AttributeError):
            self._fd = -1
        if self._fd >= 0:
            loop.add_reader(self._fd, self._rung)

    def set(self, at_ns: int) -> None:
        """Ring at `at_ns`, at once if that has passed."""
        if self._fd < 0:
            self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / 1e9, self._ring)
            return
        # A zero value would disarm the timer.
        spec = _Itimerspec(value=_Timespec(*divmod(max(1, at_ns), 1_000_000_000)))
        self._libc.timerfd_settime(self._fd, _TFD_ABSTIME, ctypes.byref(spec), None)

    def _rung(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._ring()


class Service:
    """One running engine; sleeps without requests."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, physics: Physics, *, model: str, seed: int, faults: list[Fault]
    ) -> None:
        self.model = model
        self.seed = seed
        self.faults = faults
        self.engine = Engine(physics, seed=seed)
        self.metrics = Metrics(model)
        self.truth = GroundTruth()
        self.canaries = GroundTruth()  # of vramp's canaries, which are not in `truth`
        self._timer = Timer(loop, self._tick)
        self._stepping = False

    def submit(self, sequence: Sequence, received_ns: int) -> None:
        """Queue a sequence whose request was received at `received_ns`, CLOCK_REALTIME."""
        waited_ns = max(0, time.time_ns() - received_ns)
        self.engine.add(sequence, time.monotonic_ns() - waited_ns)
        if not self._stepping:
            self._begin()

    def _begin(self) -> None:
        end_ns = self.engine.begin(time.monotonic_ns())
        self._stepping = end_ns is not None
        if end_ns is not None:
            self._timer.set(end_ns)

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        self.truth.history.step(time.time_ns(), self.truth.open)
        emission = self.engine.finish(now_ns)
        self.metrics.step(emission, now_ns)
        for sequence in emission.joined:
            if sequence.generated == 1:
                sequence.stream.opening()
        for sequence in emission.going:
            sequence.stream.token()
        for sequence in emission.ending:
            self.metrics.finish(sequence)
            sequence.stream.end()
        self._begin()


async def log_throughput(service: Service, log: Callable[[str], None]) -> None:
    """Log vLLM's line of averages periodically, while the server runs."""
    every_s = 10.0
    engine = service.engine
    while True:
        prompt, generated = engine.prompt_tokens, engine.generation_tokens
        await asyncio.sleep(every_s)
        hit_rate = engine.prefix_hits / engine.prefix_queries if engine.prefix_queries else 0.0
        log(
            f"Engine 000: Avg prompt throughput: {(engine.prompt_tokens - prompt) / every_s:.1f} tokens/s, "
            f"Avg generation throughput: {(engine.generation_tokens - generated) / every_s:.1f} tokens/s, "
            f"Running: {len(engine.running)} reqs, Waiting: {len(engine.waiting)} reqs, "
            f"GPU KV cache usage: {engine.pool.usage:.1%}, Prefix cache hit rate: {hit_rate:.1%}"
        )
