"""Owns the workers of one host: a Dask actor that the operator's vramp calls several times a second.

It only carries lines between vramp and the pipes of its workers: nothing is timed here. Invariants: when vramp has not
called for `SILENCE_S`, all workers are ended, and then this process if vramp started it; workers that hear nothing from
a stopped actor end by themselves (`Configure.lifeline_s`).
"""

from __future__ import annotations

import asyncio
import os
import time

from loadgen.cluster import messages
from loadgen.cluster.messages import Mailbox, Order, Report
from loadgen.errors import WorkerError
from loadgen.fleet.host import LocalPipe

SILENCE_S = 10.0
_BEAT_S = 1.0  # between signs of life to each worker


class HostActor:
    """Call `exchange` to trade orders for reports, and `close` in the end."""

    def __init__(self, *, ends_process: bool) -> None:
        """With `ends_process`, this process exists for the actor alone and ends with it."""
        self._ends_process = ends_process
        self._pipes: dict[int, LocalPipe] = {}
        self._mail = Mailbox[Report, Order]()
        self._to_do = asyncio.Queue[Order]()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._called_s = time.monotonic()

    async def exchange(self, message: bytes) -> bytes:
        """Take a `ToHost`, return a `FromHost`."""
        received_ns = time.monotonic_ns()
        self._called_s = time.monotonic()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._obey()), asyncio.create_task(self._watch())]
        request = messages.decode_to_host(message)
        for order in self._mail.take(request.first, request.orders, request.confirmed):
            self._to_do.put_nowait(order)
        answer = messages.FromHost(
            first=self._mail.first,
            reports=self._mail.waiting,
            confirmed=self._mail.arrived,
            received_ns=received_ns,
            answered_ns=time.monotonic_ns(),
        )
        return messages.encode(answer)

    async def close(self) -> None:
        """End all workers that are left."""
        for task in self._tasks:
            task.cancel()
        await self._end_workers()

    async def _end_workers(self) -> None:
        for pipe in self._pipes.values():
            pipe.kill()
        await asyncio.gather(*(pipe.close() for pipe in self._pipes.values()))

    async def _obey(self) -> None:
        while True:
            order = await self._to_do.get()
            if order.do == "start":
                await self._start(order.worker)
                continue
            pipe = self._pipes[order.worker]
            if order.do == "write":
                pipe.write(order.line)
            elif order.do == "kill":
                pipe.kill()
            else:
                closing = asyncio.create_task(pipe.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _start(self, worker: int) -> None:
        def report(line: bytes = b"", *, ended: str | None = None) -> None:
            self._mail.waiting.append(Report(worker, line, ended))

        pipe = self._pipes[worker] = LocalPipe()
        try:
            await pipe.start(report, lambda why: report(ended=why))
        except WorkerError as error:
            report(ended=str(error))

    async def _watch(self) -> None:
        """Send the workers signs of life while vramp calls, and end them once it has stopped calling."""
        while True:
            await asyncio.sleep(_BEAT_S)
            if time.monotonic() - self._called_s < SILENCE_S:
                for pipe in self._pipes.values():
                    if pipe.pid is not None:
                        pipe.write(b"\n")
                continue
            await self._end_workers()
            if self._ends_process:
                os._exit(1)
