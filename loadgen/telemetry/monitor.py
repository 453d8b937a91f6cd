"""All GPUs of the box as one list, whichever vendors and children are behind it.

Each vendor has a source that tries its options in order, each in a supervised child, until one works. When none is
left, all are tried again a few times at growing intervals: a driver may load late, or a device be busy; an exporter is
tried as long as the monitor lives. A device keeps its number as long as that, through restarts and changes of backend,
and numbers are unique across vendors. Those of exporters go by the order in which these are given.
Invariants: nothing here blocks or raises because of a GPU, a driver or a child; an option that does not open is
followed by the next at once, one that opened is restarted until it has failed three times, and each failure is kept
with its reason; samples that are not taken are bounded; `close` returns within the time limits that `process` gives
each child.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import TelemetryError
from loadgen.format import harmless
from loadgen.schema.samples import GpuSample, GpuStatic, carried
from loadgen.telemetry.backends import BackendOption
from loadgen.telemetry.process import OPEN_S, Child, start_child
from loadgen.telemetry.protocol import Opened, Sampled

MISSED_TICKS = 3


class Timing(msgspec.Struct, frozen=True):
    """Time limits for a child, and how often it may fail."""

    open_s: float = OPEN_S
    silence_s: float = 10.0
    grace_s: float = 1.0  # to exit by itself when asked to
    pause_s: float = 1.0  # before a restart; doubled for the next
    max_failures: int = 3
    forgiven_after_s: float = 300.0  # after working this long, its earlier failures no longer count
    again_s: tuple[float, ...] = (15.0, 30.0, 60.0, 120.0, 240.0)
    """Before each further round through all options, once none is left."""


_TIMING = Timing()


class SourceStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one vendor's source, for the screen and the record."""

    vendor: str  # or the address of an exporter
    option: str | None = msgspec.field(name="attempt")  # being tried or working; None if nothing is left to try
    why: str
    works: bool
    restarts: int
    failures: dict[str, str]  # the reason of each option that failed
    meta: dict[str, Any]
    again_s: float | None = None  # if no option is left: the time until all are tried again
    stale: bool = False  # not in the record: it is volatile

    @property
    def words(self) -> str:
        """What measures the GPUs, or why nothing does."""
        if self.works:
            return f"{self.vendor}: {self.option}"
        if self.option is not None:
            return f"{self.vendor}: trying {self.option}"
        last = next(reversed(self.failures.items()), None)
        again = f"; all is tried again within {self.again_s:.0f} s" if self.again_s is not None else ""
        return f"{self.vendor}: nothing works" + (f"; {last[0]}: {last[1]}" if last is not None else "") + again


@dataclass(slots=True, kw_only=True)
class _Source:
    """Watches one vendor or exporter; `run` it until cancelled; its attributes may be read at any time."""

    options: Sequence[BackendOption]
    log_path: Path
    interval_s: float
    deliver: Callable[[Sampled], None]  # gets every sample
    changed: Callable[[], None]  # called after each sample and each failure
    timing: Timing
    option: BackendOption | None = None  # working or being tried; None if none is left
    opened: Opened | None = None  # the first line of the option that works, or of the last that did
    devices: dict[int, tuple[object, ...]] = field(default_factory=dict)  # identities by position
    failures: dict[str, str] = field(default_factory=dict)  # the latest reason of each option that failed
    restarts: int = 0
    last_s: float | None = None  # arrival of the latest sample (CLOCK_MONOTONIC)
    child: Child | None = None
    processes: bool = False  # whether to list them
    again_s: float | None = None  # time until all options are tried again; None while one is, or after the last round

    def __post_init__(self) -> None:
        self.option = next(iter(self.options), None)

    @property
    def is_exporter(self) -> bool:
        """Whether these are the GPUs of another machine."""
        return any(option.backend == "exporter" for option in self.options)

    @property
    def stale(self) -> bool:
        """Whether the latest sample is too old to be shown as current."""
        if self.opened is None or self.last_s is None:
            return False
        return time.monotonic() - self.last_s > (MISSED_TICKS + 0.5) * self.interval_s

    def status(self, vendor: str) -> SourceStatus:
        return SourceStatus(
            vendor=vendor,
            option=None if self.option is None else self.option.name,
            why="" if self.option is None else self.option.why,
            works=self.option is not None and self.last_s is not None,
            stale=self.stale,
            restarts=self.restarts,
            failures=dict(self.failures),
            meta={} if self.opened is None else self.opened.meta,
            again_s=self.again_s,
        )

    def show_processes(self, wanted: bool) -> None:
        self.processes = wanted
        if self.child is not None:
            self.child.show_processes(wanted)

    async def run(self) -> None:
        """Try the options in order, for a few rounds (those of an exporter for ever); returns after the last round."""
        pauses_s = self.timing.again_s
        for again_s in repeat(pauses_s[0]) if self.is_exporter else (*pauses_s, None):
            for option in self.options:
                self.option = option
                await self._try(option)
            self.option, self.again_s = None, again_s
            self.changed()
            if again_s is not None:
                await asyncio.sleep(again_s)
                self.again_s = None

    def failed(self, name: str, reason: str) -> None:
        self.failures[name] = reason
        self.changed()

    async def _try(self, option: BackendOption) -> None:
        failures = 0
        while failures < self.timing.max_failures:
            began_s = time.monotonic()
            if not await self._one_child(option):
                return
            failures = 1 if time.monotonic() - began_s > self.timing.forgiven_after_s else failures + 1
            self.restarts += 1
            await asyncio.sleep(self.timing.pause_s * 2 ** (failures - 1))

    async def _one_child(self, option: BackendOption) -> bool:
        """Read from a child as long as it works; returns whether it opened."""
        opened = False
        grace_s = self.timing.grace_s
        try:
            child = self.child = await start_child(option.command(self.interval_s), option.env, self.log_path)
        except TelemetryError as error:
            self.failed(option.name, str(error))
            return False
        try:
            self.opened = await child.opened(within_s=self.timing.open_s)
            self.devices = _identities(self.opened.gpus)
            opened = True
            child.show_processes(self.processes)
            while True:
                sampled = await child.sampled(within_s=max(self.timing.silence_s, MISSED_TICKS * self.interval_s))
                self.last_s = time.monotonic()
                self.deliver(sampled)
                self.changed()
        except TelemetryError as error:
            grace_s = 0.0
            self.failed(option.name, str(error))
        finally:
            self.child = None
            await child.end(grace_s=grace_s)
        return opened


class Monitor:
    """Watches the GPUs: `start` it, read it at any time, then `close` it."""

    def __init__(
        self,
        options: Mapping[str, Sequence[BackendOption]],
        *,
        folder: Path,
        interval_s: float = 1.0,
        timing: Timing = _TIMING,
    ) -> None:
        """`options` are those of `backend_options`; the children's logs go to `folder`."""
        self._change = asyncio.Event()
        self._sources = {
            vendor: _Source(
                options=each,
                log_path=folder / f"telemetry-{vendor}.log",
                interval_s=interval_s,
                deliver=partial(self._delivered, vendor),
                changed=self._change.set,
                timing=timing,
            )
            for vendor, each in options.items()
        }
        self.latest: dict[int, GpuSample] = {}
        """The latest known values of each device, by number; a field missing from a sample keeps its value."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._untaken: deque[Sampled] = deque(maxlen=3600)
        self._processes = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for source in self._sources.values():
            task = asyncio.create_task(source.run())
            task.add_done_callback(partial(self._ended, source))
            self._tasks.append(task)

    async def close(self) -> None:
        """End the children; safe to call at any time and more than once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, source: _Source, task: asyncio.Task[None]) -> None:
        """Report a source's unexpected end: a bug in vramp costs the run only its telemetry, but it is shown."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            source.option = None
            source.failed("vramp", f"a bug in vramp: {error!r}")
            task.get_loop().call_exception_handler({"message": "telemetry ended", "exception": error, "task": task})

    def new_samples(self) -> list[Sampled]:
        """The samples since the last call, each with the devices of one vendor."""
        taken = list(self._untaken)
        self._untaken.clear()
        return taken

    async def change(self) -> None:
        """Wait for the next sample or failure of any vendor."""
        self._change.clear()
        await self._change.wait()

    def show_processes(self, wanted: bool) -> None:
        """List each GPU's processes from now on, or stop doing so."""
        self._processes = wanted
        for source in self._sources.values():
            source.show_processes(wanted)
        if not wanted:
            self.latest = {n: msgspec.structs.replace(gpu, processes=None) for n, gpu in self.latest.items()}

    @property
    def gpus(self) -> tuple[GpuStatic, ...]:
        found = [
            msgspec.structs.replace(gpu, index=self._number(vendor, gpu.index))
            for vendor, opened in self._numbered().items()
            for gpu in opened.gpus
        ]
        return tuple(sorted(found, key=lambda gpu: gpu.index))

    @property
    def stale(self) -> bool:
        return any(source.stale for source in self._sources.values())

    @property
    def settled(self) -> bool:
        """Whether every vendor either works or has nothing left to try."""
        return all(source.last_s is not None or source.option is None for source in self._sources.values())

    @property
    def status(self) -> tuple[SourceStatus, ...]:
        return tuple(source.status(vendor) for vendor, source in self._sources.items())

    def _numbered(self) -> dict[str, Opened]:
        """Give numbers to all devices that can have one; an exporter's wait until those before it opened or failed."""
        found: dict[str, Opened] = {}
        for vendor, source in self._sources.items():
            if source.opened is not None:
                found[vendor] = source.opened
                for gpu in source.opened.gpus:
                    self._number(vendor, gpu.index)
            elif source.is_exporter and not source.failures:
                break
        return found

    def _number(self, vendor: str, index: int) -> int:
        device = self._sources[vendor].devices.get(index, (index,))
        return self._numbers.setdefault((vendor, *device), len(self._numbers))

    def _delivered(self, vendor: str, sampled: Sampled) -> None:
        if vendor not in self._numbered():
            return
        gpus: list[GpuSample] = []
        for gpu in sampled.gpus:
            # Processes choose their own names.
            named = (msgspec.structs.replace(one, name=harmless(one.name)) for one in gpu.processes or ())
            processes = None if gpu.processes is None else tuple(named)
            gpus.append(msgspec.structs.replace(gpu, index=self._number(vendor, gpu.index), processes=processes))
        self._untaken.append(msgspec.structs.replace(sampled, gpus=tuple(gpus)))
        for gpu in gpus:
            self.latest[gpu.index] = carried(self.latest.get(gpu.index), gpu, processes=self._processes)


def _identities(gpus: Iterable[GpuStatic]) -> dict[int, tuple[object, ...]]:
    """Each device's identity, the same in every backend, by its position, which shifts if an earlier one is lost."""
    found: dict[int, tuple[object, ...]] = {}
    for gpu in gpus:
        identity = (gpu.bdf or gpu.uuid or gpu.index, gpu.partition)
        # Devices that are otherwise indistinguishable are identified by position.
        found[gpu.index] = (*identity, gpu.index) if identity in found.values() else identity
    return found
