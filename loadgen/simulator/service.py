"""The step loop: the engine, the clock that drives it, and the answers that its tokens go to."""

import asyncio
import time
from collections.abc import Callable
from typing import cast

from loadgen.simulator.answers import Answer
from loadgen.simulator.clock import Timer
from loadgen.simulator.engine import Engine, Sequence
from loadgen.simulator.faults import Fault
from loadgen.simulator.metrics import Metrics
from loadgen.simulator.physics import Physics
from loadgen.simulator.truth import Truth


class Service:
    """One engine at work; without requests it sleeps."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, physics: Physics, *, model: str, seed: int, faults: list[Fault]
    ) -> None:
        self.model = model
        self.seed = seed
        self.faults = faults
        self.faults_since = 0  # the number of the last request before the faults were set
        self.engine = Engine(physics, seed=seed)
        self.metrics = Metrics(model)
        self.truth = Truth()
        self.requests = 0  # completions and chats so far; faults choose by how many came since they were set
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
        self.truth.step()
        emission = self.engine.finish(now_ns)
        self.metrics.step(emission, now_ns)
        for sequence in emission.joined:
            if sequence.generated == 1:
                cast(Answer, sequence.stream).opening()
        for sequence in emission.going:
            sequence.stream.token()
        for sequence in emission.ending:
            self.metrics.finish(sequence)
            sequence.stream.end()
        self._begin()


Log = Callable[[str], None]


async def log_throughput(service: Service, log: Log, *, every_s: float = 10.0) -> None:
    """vLLM's line of averages, for as long as the server runs."""
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
