"""One vendor's GPUs: its attempts in order, each with a child that is watched and replaced, until one stays.

Invariants: nothing here raises or is waited for by anyone; an attempt that does not open is not tried again; one that
opened is restarted until it has failed three times; each failure is kept with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.telemetry.options import BackendOption
from loadgen.telemetry.process import Child, start_child
from loadgen.telemetry.sample import Opened, Order, Refused, Sampled

MISSED_TICKS = 3


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a child may take, and how often it may fail."""

    open_s: float = 5.0
    silence_s: float = 10.0
    grace_s: float = 1.0  # to end by itself when it is told to
    pause_s: float = 1.0  # before a restart; twice as long before the next
    strikes: int = 3
    forgiven_after_s: float = 300.0  # one that worked for so long starts with a clean record


class Source:
    """Watches one vendor; `run` until cancelled, and read the attributes at any time."""

    def __init__(
        self,
        attempts: Sequence[BackendOption],
        *,
        log_path: Path,
        interval_s: float,
        deliver: Callable[[Sampled], None],
        changed: Callable[[], None],
        patience: Patience,
    ) -> None:
        """`deliver` gets every sample; `changed` is called after it and after every failure."""
        self.attempts = attempts
        self.opened: Opened | None = None  # what the attempt that works said, or the last that did
        self.attempt = attempts[0] if attempts else None
        """The attempt that works or is tried; None once there is none left."""
        self.failures: dict[str, str] = {}  # the last reason of each attempt that failed
        self.restarts = 0
        self.last_s: float | None = None  # when the latest sample came, on CLOCK_MONOTONIC
        self.pid: int | None = None
        self._log_path = log_path
        self._interval_s = interval_s
        self._deliver = deliver
        self._changed = changed
        self._patience = patience
        self._child: Child | None = None
        self._order = Order(processes=False)

    @property
    def stale(self) -> bool:
        """Whether what was shown last is too old to be shown as the present."""
        if self.opened is None or self.last_s is None:
            return False
        return time.monotonic() - self.last_s > (MISSED_TICKS + 0.5) * self._interval_s

    def tell(self, order: Order) -> None:
        """Want something else from now on."""
        self._order = order
        if self._child is not None:
            self._child.tell(order)

    async def run(self) -> None:
        """Try one attempt after the other; returns when none is left."""
        for attempt in self.attempts:
            self.attempt = attempt
            await self._try(attempt)
        self.attempt = None
        self._changed()

    def give_up(self, reason: str) -> None:
        """Nothing is tried any more, for a reason that is no attempt's."""
        self.failures["vramp"] = reason
        self.attempt = None
        self._changed()

    async def _try(self, attempt: BackendOption) -> None:
        strikes = 0
        while strikes < self._patience.strikes:
            began_s = time.monotonic()
            if not await self._one_child(attempt):
                return
            strikes = 1 if time.monotonic() - began_s > self._patience.forgiven_after_s else strikes + 1
            self.restarts += 1
            await asyncio.sleep(self._patience.pause_s * 2 ** (strikes - 1))

    async def _one_child(self, attempt: BackendOption) -> bool:
        """Listen to a child as long as it is good for anything; whether it opened."""
        opened = False
        grace_s = self._patience.grace_s
        try:
            child = self._child = await self._start(attempt)
        except TelemetryError as error:
            self._failed(attempt, error)
            return False
        try:
            self._accept(await child.line(within_s=self._patience.open_s))
            opened = True
            child.tell(self._order)
            await self._listen(child)
        except TelemetryError as error:
            grace_s = 0.0
            self._failed(attempt, error)
        finally:
            self._child = self.pid = None
            await child.end(grace_s=grace_s)
        return opened

    def _failed(self, attempt: BackendOption, error: TelemetryError) -> None:
        self.failures[attempt.name] = str(error)
        self._changed()

    async def _start(self, attempt: BackendOption) -> Child:
        options = ("--backend", attempt.backend, "--interval-s", str(self._interval_s), *attempt.arguments)
        child = await start_child([*attempt.program, *options], attempt.env, self._log_path)
        self.pid = child.pid
        return child

    def _accept(self, line: object) -> None:
        match line:
            case Opened(gpus=gpus):
                named = tuple(msgspec.structs.replace(gpu, name=harmless(gpu.name)) for gpu in gpus)
                self.opened = msgspec.structs.replace(line, gpus=named)
            case Refused(reason=reason):
                raise TelemetryError(harmless(reason))
            case _:
                raise TelemetryError("it sent a sample before it said what it samples")

    async def _listen(self, child: Child) -> None:
        silence_s = max(self._patience.silence_s, MISSED_TICKS * self._interval_s)
        while True:
            match await child.line(within_s=silence_s):
                case Sampled() as sampled:
                    self.last_s = time.monotonic()
                    self._deliver(sampled)
                    self._changed()
                case Refused(reason=reason):
                    raise TelemetryError(harmless(reason))
                case Opened():
                    raise TelemetryError("it opened twice")
