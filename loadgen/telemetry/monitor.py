"""All GPUs of the box as one list, whichever vendors and children are behind it.

A device keeps its number as long as the monitor lives: through restarts and through a change of backend, and two
vendors never share one. Invariants: nothing here blocks or raises because of a GPU, a driver or a child; what nobody
takes is bounded; `close` returns within the bounds that `process` gives each child.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from loadgen.format import harmless
from loadgen.metrics.samples import GpuProcess, GpuSample, GpuStatic, carried
from loadgen.telemetry.options import BackendOption
from loadgen.telemetry.sample import Order, Sampled
from loadgen.telemetry.source import Patience, Source
from loadgen.vendors import VendorName

_KEPT_LOOKS = 3600


class SourceStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How it stands with one vendor's GPUs, for the screen and the record."""

    vendor: VendorName
    attempt: str | None  # what is tried or works; None once nothing is left to try
    why: str
    works: bool
    stale: bool
    restarts: int
    failures: dict[str, str]  # the exact reason of each attempt that failed
    meta: dict[str, Any]


class Monitor:
    """Watches the GPUs; `start`, then read it at any time, then `close`."""

    def __init__(
        self,
        attempts: Mapping[VendorName, Sequence[BackendOption]],
        *,
        folder: Path,
        interval_s: float = 1.0,
        patience: Patience = Patience(),  # noqa: B008 - frozen
    ) -> None:
        """`attempts` are those of `backend_options`; the children's logs go to `folder`."""
        self._sources = {
            vendor: Source(
                each,
                log_path=folder / f"telemetry-{vendor}.log",
                interval_s=interval_s,
                deliver=partial(self._delivered, vendor),
                changed=self._wake,
                patience=patience,
            )
            for vendor, each in attempts.items()
        }
        self.latest: dict[int, GpuSample] = {}
        """By number, the last that is known of each device: what a look left out is as it was."""
        self._numbers: dict[tuple[VendorName, int], int] = {}
        self._untaken: deque[Sampled] = deque(maxlen=_KEPT_LOOKS)
        self._processes = False
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the children and return at once."""
        for source in self._sources.values():
            task = asyncio.create_task(source.run())
            task.add_done_callback(partial(self._ended, source))
            self._tasks.append(task)

    async def close(self) -> None:
        """End the children; safe to call at any time and more than once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, source: Source, task: asyncio.Task[None]) -> None:
        """A mistake of ours costs the run its telemetry and nothing else, but it is not hidden."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            source.give_up(f"a mistake in vramp: {error!r}")
            task.get_loop().call_exception_handler({"message": "telemetry ended", "exception": error, "task": task})

    def take(self) -> list[Sampled]:
        """The looks since the last call, each at the devices of one vendor."""
        taken = list(self._untaken)
        self._untaken.clear()
        return taken

    async def change(self) -> None:
        """Wait until the next look at any vendor's devices, or the next failure."""
        self._change.clear()
        await self._change.wait()

    def _wake(self) -> None:
        self._change.set()

    def show_processes(self, wanted: bool) -> None:
        """Have the processes of each GPU listed from now on, or no more."""
        self._processes = wanted
        for source in self._sources.values():
            source.tell(Order(processes=wanted))
        if not wanted:
            self.latest = {n: msgspec.structs.replace(gpu, processes=None) for n, gpu in self.latest.items()}

    @property
    def gpus(self) -> tuple[GpuStatic, ...]:
        """All devices that were opened, by number."""
        found = [
            msgspec.structs.replace(gpu, index=self._number(vendor, gpu.index))
            for vendor, source in self._sources.items()
            if source.opened is not None
            for gpu in source.opened.gpus
        ]
        return tuple(sorted(found, key=lambda gpu: gpu.index))

    @property
    def stale(self) -> bool:
        """Whether a vendor's samples have stopped coming."""
        return any(source.stale for source in self._sources.values())

    @property
    def pids(self) -> list[int]:
        return [source.pid for source in self._sources.values() if source.pid is not None]

    @property
    def settled(self) -> bool:
        """Whether every vendor either works or has nothing left to try."""
        return all(source.last_s is not None or source.attempt is None for source in self._sources.values())

    @property
    def status(self) -> tuple[SourceStatus, ...]:
        """How it stands with each vendor."""
        return tuple(_status(vendor, source) for vendor, source in self._sources.items())

    def _number(self, vendor: VendorName, index: int) -> int:
        return self._numbers.setdefault((vendor, index), len(self._numbers))

    def _delivered(self, vendor: VendorName, sampled: Sampled) -> None:
        gpus = tuple(self._renumbered(vendor, gpu) for gpu in sampled.gpus)
        self._untaken.append(msgspec.structs.replace(sampled, gpus=gpus))
        for gpu in gpus:
            self.latest[gpu.index] = carried(self.latest.get(gpu.index), gpu, processes=self._processes)

    def _renumbered(self, vendor: VendorName, gpu: GpuSample) -> GpuSample:
        number = self._number(vendor, gpu.index)
        if gpu.processes:
            gpu = msgspec.structs.replace(gpu, processes=tuple(_harmless(each) for each in gpu.processes))
        return gpu if number == gpu.index else msgspec.structs.replace(gpu, index=number)


def _harmless(process: GpuProcess) -> GpuProcess:
    """A process chooses its own name."""
    return msgspec.structs.replace(process, name=harmless(process.name))


def _status(vendor: VendorName, source: Source) -> SourceStatus:
    return SourceStatus(
        vendor=vendor,
        attempt=None if source.attempt is None else source.attempt.name,
        why="" if source.attempt is None else source.attempt.why,
        works=source.attempt is not None and source.last_s is not None,
        stale=source.stale,
        restarts=source.restarts,
        failures=dict(source.failures),
        meta={} if source.opened is None else source.opened.meta,
    )
