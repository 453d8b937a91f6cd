"""GPUs and host during a run: what was seen goes into the journal, about once a second, whatever the load does.

The load never waits for any of it, and no run fails because of it: what cannot be measured is told once, with its
reason. Samples are taken from the monitor's children and the kernel in a task of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from loadgen.metrics.journal import GpusSampled, Happened, HostSampled, Line, TelemetryChanged
from loadgen.metrics.samples import GpuStatic
from loadgen.profile.schema import Profile
from loadgen.telemetry.backends import BackendOption, backend_options
from loadgen.telemetry.host import HostSampler
from loadgen.telemetry.monitor import Monitor, SourceStatus
from loadgen.vendors import VendorName

_PERIOD_S = 1.0
_LAST_SAMPLE_S = 1.5 * _PERIOD_S
Pids = Callable[[], Iterable[int]]


class HardwareWatch:
    """Watches GPUs and host of a run: `start`, for simulated GPUs `start_simulated`, and `close` in the end."""

    def __init__(
        self,
        profile: Profile,
        *,
        folder: Path,
        log: Callable[[Line], None],
        clock_s: Callable[[], float],
        server_pids: Pids,
        worker_pids: Pids,
        replay: dict[VendorName, list[BackendOption]] | None = None,
    ) -> None:
        """`replay` takes the place of what the profile asks for; the children's logs go to `folder`."""
        self._mode = profile.telemetry
        self._replay = replay
        self._folder = folder
        self._log = log
        self._clock_s = clock_s
        self._server_pids, self._worker_pids = server_pids, worker_pids
        self._host = HostSampler()
        self._monitor: Monitor | None = None
        self._logged: tuple[tuple[GpuStatic, ...], dict[str, Any]] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def stale(self) -> bool:
        """Whether samples of GPUs have stopped coming."""
        return self._monitor is not None and self._monitor.stale

    @property
    def words(self) -> str:
        """What measures the GPUs, or why nothing does."""
        if self._mode == "off":
            return "off"
        if self._monitor is None:
            return "not started"
        return telemetry_words({source.vendor: _status_of(source) for source in self._monitor.status})

    def start(self) -> None:
        """Begin to watch; simulated GPUs come with their simulator."""
        if self._replay is not None:
            self._watch(self._replay)
        elif self._mode != "sim":
            self._watch(backend_options(self._mode))
        self._task = asyncio.create_task(self._sample_forever())

    def start_simulated(self, url: str) -> None:
        """The simulator is there: its GPUs can be."""
        if self._mode == "sim" and self._monitor is None:
            self._watch(backend_options("sim", url=url))

    async def end_simulated(self) -> None:
        """The simulator goes, and its GPUs with it; another may come."""
        if self._mode == "sim" and self._monitor is not None:
            monitor, self._monitor = self._monitor, None
            await monitor.close()

    async def settle(self) -> None:
        """Wait for a sample of each GPU taken after the load, without which the last stage's energy has no end."""
        ended_s, monitor = time.monotonic(), self._monitor
        if monitor is None or monitor.stale:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SAMPLE_S):
                while any(sample.t_s < ended_s for sample in monitor.latest.values()):
                    await monitor.change()

    async def close(self) -> None:
        """Take a last sample and end the children."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._sample()
        if self._monitor is not None:
            await self._monitor.close()

    def _watch(self, options: dict[VendorName, list[BackendOption]]) -> None:
        self._monitor = Monitor(options, folder=self._folder, interval_s=_PERIOD_S)
        self._monitor.start()

    async def _sample_forever(self) -> None:
        due_s = time.monotonic()
        while True:
            self._sample()
            due_s = max(due_s + _PERIOD_S, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    def _sample(self) -> None:
        if self._monitor is not None:
            self._log_changes(self._monitor)
            for sampled in self._monitor.take():
                self._log(GpusSampled(t_s=self._clock_s(), gpus=sampled.gpus))
        host = self._host.sample(server=self._server_pids(), files_of=self._worker_pids())
        self._log(HostSampled(t_s=self._clock_s(), host=host))

    def _log_changes(self, monitor: Monitor) -> None:
        status: dict[str, Any] = {source.vendor: _status_of(source) for source in monitor.status}
        now = (monitor.gpus, status)
        if not monitor.settled or now == self._logged:
            return
        failed = [f"{name}: {why}" for each in monitor.status for name, why in each.failures.items()]
        before = self._logged
        self._logged = now
        self._log(TelemetryChanged(t_s=self._clock_s(), gpus=monitor.gpus, meta=status))
        if failed and (before is None or before[1] != status):
            self._log(Happened(t_s=self._clock_s(), kind="telemetry", text="; ".join(failed)))


def _status_of(source: SourceStatus) -> dict[str, Any]:
    """All but what changes from one moment to the next."""
    words: dict[str, Any] = msgspec.to_builtins(source)
    words.pop("stale", None)
    return words


def telemetry_words(meta: dict[str, Any] | None) -> str:
    """What measures the GPUs, or why nothing does, from what the journal keeps of it."""
    if not meta:
        return "no GPU found: vramp doctor tells what was looked for"
    return "; ".join(_words(vendor, **source) for vendor, source in meta.items())


def _words(
    vendor: str,
    /,
    *,
    attempt: str | None,
    works: bool,
    failures: dict[str, str],
    again_s: float | None = None,
    **_: object,
) -> str:
    if works:
        return f"{vendor}: {attempt}"
    if attempt is not None:
        return f"{vendor}: trying {attempt}"
    last = next(reversed(failures.items()), None)
    again = f"; all is tried again within {again_s:.0f} s" if again_s is not None else ""
    return f"{vendor}: nothing works" + (f"; {last[0]}: {last[1]}" if last is not None else "") + again
