"""The load of one session: a turn per tick, and workers as soon as load is requested.

Invariants: while no load is requested, nothing is sent but metrics queries; if it is requested later, the running stage
continues without load until there are workers, or for good if there can be none. A run whose plan sends load keeps its
servers locked until its end; one that only watches lets others drive them whenever it sends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loadgen.errors import LoadError, VrampError
from loadgen.format import NO_LOAD
from loadgen.plan.stage import Stage
from loadgen.run.controller import LoadController
from loadgen.run.session import Session
from loadgen.run.stage_watch import CircuitBreaker
from loadgen.run.writer import RunWriter


class SessionLoad:
    """`begin` once the servers answer, then `turn` until the plan is done; `close` at any time after `begin`."""

    def __init__(self, session: Session, controller: LoadController, writer: RunWriter, plan: Sequence[Stage]) -> None:
        self._session = session
        self._controller = controller
        self._writer = writer
        self._plan = plan
        self._only_watches = all(stage.no_load for stage in plan)
        self._breaker = CircuitBreaker()
        self._preparing: asyncio.Task[None] | None = None  # workers for the first load, while there is none

    async def begin(self) -> None:
        """Identify the servers and begin the plan; raises `ServerError`, `ProfileError` or `WorkerError`."""
        session = self._session
        if self._controller.asked_for_load:
            await self._prepare(self._plan)
        else:
            await session.look()
        await session.watch()
        await session.tick()
        self._controller.attach(session.fleet, session.boundary)

    async def turn(self) -> None:
        """Process the next tick.

        Raises `WorkerError` or `LoadError` if the load cannot continue.
        """
        session, controller, record = self._session, self._controller, self._writer.record
        tick = await session.tick()
        session.check(tick)
        self._prepare_what_is_asked()
        controller.observe(tick, record.current)
        if tick.finished is not None and tick.finished == controller.index:
            await session.read_engines()
            # Meanwhile the operator may have paused or changed the load, or its time was up.
            if tick.finished == controller.index and not controller.paused:
                controller.advance(tick.finished_why)
        self._react_to_lost_hosts()
        broken = self._breaker.check(record, self._writer.clock_s())
        if broken is not None:
            self._give_up(broken)
        if self._only_watches and controller.is_idle and self._preparing is None:
            session.servers.free()
            controller.workers_freed()

    def _react_to_lost_hosts(self) -> None:
        lost, on_loss = self._session.hosts.take_lost(), self._session.profile.cluster.on_loss
        if not lost:
            return
        if on_loss == "end":
            self._give_up(f'{" and ".join(lost)} did not answer any more, and cluster.on_loss is "end"')
        elif on_loss == "rebalance":
            self._controller.begin_again(f"{' and '.join(lost)} was lost: the others take over its share")

    async def close(self) -> None:
        """Stop preparing workers."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait({self._preparing})
            self._preparing = None

    async def _prepare(self, stages: Sequence[Stage]) -> None:
        await self._session.prepare(stages)
        self._controller.workers_ready(self._session.templates)

    def _prepare_what_is_asked(self) -> None:
        if self._preparing is not None and self._preparing.done():
            self._preparing.result()
            self._preparing = None
        stage = self._controller.awaits_workers
        if stage is not None and self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare_or_refuse(stage))

    async def _prepare_or_refuse(self, stage: Stage) -> None:
        try:
            await self._prepare([stage])
        except VrampError as error:
            self._controller.refuse_load(str(error))

    def _give_up(self, why: str) -> None:
        """Fail a run whose plan sends load; one that only watches continues without load."""
        if not self._only_watches:
            raise LoadError(why)
        self._writer.event("error", why)
        self._controller.change(NO_LOAD, concurrency=0, rate=None)
