"""The step loop: drives the engine by its clock, and passes its tokens to the answers."""

import asyncio
import time
from collections.abc import Callable

from loadgen.simulator.engine import Engine, Sequence
from loadgen.simulator.faults import Fault
from loadgen.simulator.ground_truth import GroundTruth, ServedSessions
from loadgen.simulator.metrics import Metrics
from loadgen.simulator.physics import Physics
from loadgen.worker.timing import PreciseTimer

_COMPLAINT_S = 1.0  # a minute in vLLM


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
        self.sessions = ServedSessions()
        self._timer = PreciseTimer(loop, self._tick)
        self.log: Callable[[str], None] = lambda text: None
        self._loop = loop
        self._stepping = self._halted = False

    def submit(self, sequence: Sequence, received_ns: int) -> None:
        """Queue a sequence whose request was received at `received_ns`, CLOCK_REALTIME."""
        waited_ns = max(0, time.time_ns() - received_ns)
        self.engine.add(sequence, time.monotonic_ns() - waited_ns)
        if not self._stepping:
            self._begin()

    def hang(self, fault: Fault) -> None:
        """Hang from now on, for the fault's seconds or for good."""
        if self.engine.hang:
            return
        self.engine.hang = fault.kind
        self._complain()
        if fault.seconds:
            self._loop.call_later(fault.seconds, self._go_on)

    def _complain(self) -> None:
        if self.engine.hang == "collective":
            self.log("No available shared memory broadcast block found in 60 seconds.")
            self._loop.call_later(_COMPLAINT_S, self._complain)

    def _go_on(self) -> None:
        self.engine.go_on()
        if self._halted:
            self._halted = False
            self._tick()

    def _begin(self) -> None:
        end_ns = self.engine.begin(time.monotonic_ns())
        self._stepping = end_ns is not None
        if end_ns is not None:
            self._timer.set(end_ns)

    def _tick(self) -> None:
        if self.engine.hang and self.engine.hang != "scheduler":
            self._halted = True
            return
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
