"""A host of a cluster as the fleet sees it: its workers' pipes through its actor, its clock, and whether it is lost.

Invariants: one exchange at a time, eight times a second and at once after a command; an exchange that gets no answer is
repeated, and nothing is lost or done twice; time in which this process itself stood still does not count as the host's
silence.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from loadgen.cluster import messages
from loadgen.cluster.clock import ClockOffset
from loadgen.cluster.messages import Mailbox, Order, Report
from loadgen.fleet.host import CLOSE_S, Ended, Heard
from loadgen.schema.shared import HostFacts

Exchange = Callable[[bytes], Awaitable[bytes]]
"""Brings a `ToHost` to the actor and its `FromHost` back; may raise anything that a network may do."""

LOST_S = 3.0
LIFELINE_S = 10.0
_PERIOD_S = 0.125
_ATTEMPT_S = 1.0
_RTTS_KEPT = 80  # of the last ten seconds
_MARGIN_NS = 20_000_000  # for the host to hand a command on, and for its workers to take it


class ClusterHost:
    """A host with an actor: `start` once the actor exists; `close` at any time."""

    def __init__(self, facts: HostFacts, exchange: Exchange) -> None:
        self.name = facts.name
        self.facts = facts
        self.cores = facts.cores
        self.lost: str | None = None
        self.lifeline_s = LIFELINE_S
        self.offset_ns = self.uncertainty_ns = self.moved_ns = self.rtt_ns = 0
        self._exchange_with = exchange
        self._mail = Mailbox[Order, Report]()
        self._pipes: dict[int, RemotePipe] = {}
        self._clock = ClockOffset()
        self._rtts_ns: deque[int] = deque([0], maxlen=_RTTS_KEPT)
        self._unanswered_s = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def delivery_ns(self) -> int:
        """The most time that a command takes, which may have to wait for the exchange before it."""
        return 2 * max(self._rtts_ns) + _MARGIN_NS

    def open_pipe(self, number: int) -> RemotePipe:
        pipe = self._pipes[number] = RemotePipe(number, self)
        return pipe

    async def start(self) -> None:
        """Exchange from now on; returns after the first answer. Raises what the exchange raises, or `TimeoutError`."""
        async with asyncio.timeout(LOST_S):
            await self._exchange()
        self._task = asyncio.create_task(self._exchange_forever())

    async def close(self) -> None:
        """Deliver the last orders to the actor, unless the host is lost."""
        if self._task is None:
            return
        while self._mail.waiting and self.lost is None:
            self._wake.set()
            await asyncio.sleep(_PERIOD_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def order(self, order: Order) -> None:
        self._mail.waiting.append(order)
        self._wake.set()

    async def _exchange_forever(self) -> None:
        while True:
            self._wake.clear()
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(_ATTEMPT_S):
                    await self._exchange()
            except Exception as error:  # noqa: BLE001 - whatever a network, or Dask over it, may raise
                self._unanswered_s += min(_ATTEMPT_S, time.monotonic() - began_s)
                if self._unanswered_s >= LOST_S and self.lost is None:
                    why = "" if isinstance(error, TimeoutError) else f": {error}"
                    self.lost = f"was lost: {self.name} has not answered for {LOST_S:g} s{why}"
            try:
                async with asyncio.timeout(_PERIOD_S):
                    await self._wake.wait()
            except TimeoutError:
                self._unanswered_s += _PERIOD_S if self._unanswered_s else 0.0

    async def _exchange(self) -> None:
        request = messages.ToHost(self._mail.first, self._mail.waiting, self._mail.arrived)
        sent_ns = time.monotonic_ns()
        answer = messages.decode_from_host(await self._exchange_with(messages.encode(request)))
        back_ns = time.monotonic_ns()
        self.moved_ns += self._clock.add(sent_ns, answer.received_ns, answer.answered_ns, back_ns)
        self.offset_ns, self.uncertainty_ns = self._clock.offset_ns, self._clock.uncertainty_ns
        self.rtt_ns = back_ns - sent_ns
        self._rtts_ns.append(self.rtt_ns)
        self._unanswered_s = 0.0
        for report in self._mail.take(answer.first, answer.reports, answer.confirmed):
            pipe = self._pipes[report.worker]
            if report.ended is None:
                pipe.heard(report.line)
            else:
                pipe.over(report.ended)
        if self.lost is not None and not self._mail.waiting:
            # Its former workers have been ended: it may take part again.
            self.lost = None


class RemotePipe:
    pid = None

    def __init__(self, number: int, host: ClusterHost) -> None:
        self._number = number
        self._host = host
        self._over = asyncio.Event()
        self._ended: Ended | None = None
        self.heard: Heard = lambda line: None  # there is no output before `start`

    async def start(self, heard: Heard, ended: Ended) -> None:
        self.heard, self._ended = heard, ended
        self._host.order(Order(self._number, "start"))

    def write(self, line: bytes) -> None:
        if self._runs:
            self._host.order(Order(self._number, "write", line))

    def kill(self) -> None:
        if self._runs:
            self._host.order(Order(self._number, "kill"))

    @property
    def _runs(self) -> bool:
        """Whether it was started and has not been reported as ended."""
        return self._ended is not None and not self._over.is_set()

    async def close(self) -> None:
        if not self._runs or self._host.lost is not None:
            return
        self._host.order(Order(self._number, "close"))
        try:
            async with asyncio.timeout(2 * CLOSE_S + LOST_S):
                await self._over.wait()
        except TimeoutError:
            self.kill()

    def over(self, why: str) -> None:
        """The worker has ended, and all its output has arrived."""
        self._over.set()
        if self._ended is not None:
            self._ended(why)
