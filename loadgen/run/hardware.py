"""GPUs and host during a run: sampled into the journal about once a second, whatever the load does.

The load never waits for it, and no run fails because of it: what cannot be measured is reported once, with its reason.
A separate task collects the samples from the monitor's children and the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from loadgen.run.servers import Servers
from loadgen.run.settings import RunSettings
from loadgen.schema.journal import DevicesChosen, GpusSampled, HostSampled, TelemetryChanged
from loadgen.schema.samples import GpuSample, GpuStatic, ServerDevices
from loadgen.server.gpus.processes import attached_pids, described
from loadgen.telemetry.backends import BackendOption, backend_options
from loadgen.telemetry.host import HostSampler
from loadgen.telemetry.monitor import Monitor, SourceStatus

if TYPE_CHECKING:
    from loadgen.run.writer import RunWriter

_PERIOD_S = 1.0
_LAST_SAMPLE_S = 1.5 * _PERIOD_S
_SEARCH_EVERY_S = 10.0  # between searches for the processes of attached servers
_LISTED_S = 4.0 * _PERIOD_S  # to begin a list of processes, and to read it
_SHOWN_S = 15.0  # processes are listed for this long after the last request


class HardwareWatch:
    """Watches GPUs and host of a run: `start`, `start_simulated` for simulated GPUs, and `close` at the end."""

    def __init__(
        self,
        settings: RunSettings,
        writer: RunWriter,
        *,
        servers: Callable[[], Servers],
        worker_pids: Callable[[], Iterable[int]],
    ) -> None:
        self._mode = settings.profile.telemetry.mode
        self._exporters = settings.profile.telemetry.exporters
        self._replay = settings.replay
        self._writer = writer
        self._servers, self._worker_pids = servers, worker_pids
        self._devices: ServerDevices | None = None  # the devices of `_devices_of`
        self._devices_of: Servers | None = None
        self._attached: set[int] = set()  # processes of attached servers, as last seen
        self._search_at_s = 0.0
        self._shown_until_s = 0.0
        self._listing = False
        self._host = HostSampler()
        self._monitor: Monitor | None = None
        self._logged: tuple[tuple[GpuStatic, ...], dict[str, Any]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    @property
    def stale(self) -> bool:
        """Whether samples of GPUs have stopped coming."""
        return self._monitor is not None and self._monitor.stale

    @property
    def settled(self) -> bool:
        """Whether all that can measure GPUs does, or has been given up."""
        return self._monitor is None or self._monitor.settled

    @property
    def words(self) -> str:
        """What measures the GPUs, or why nothing does."""
        if self._mode == "off":
            return "off"
        if self._monitor is None:
            return "not started"
        return telemetry_words(_entry(self._monitor))

    def start(self) -> None:
        """Begin to watch; simulated GPUs come with their simulator."""
        if self._replay is not None:
            self._watch(self._replay)
        elif self._mode != "sim":
            self._watch(backend_options(self._mode, exporters=self._exporters))
        self._task = asyncio.create_task(self._keep_sampling())

    def start_simulated(self, url: str) -> None:
        """Begin to watch the simulated GPUs, now that their simulator answers."""
        if self._mode == "sim" and self._monitor is None:
            self._watch(backend_options("sim", url=url, exporters=self._exporters))

    async def end_simulated(self) -> None:
        """Stop watching the simulated GPUs, because their simulator ends; another may follow."""
        if self._mode == "sim" and self._monitor is not None:
            monitor, self._monitor = self._monitor, None
            await monitor.close()

    def show_processes(self) -> None:
        """List the processes on the GPUs for a while, because the screen shows them."""
        self._shown_until_s = time.monotonic() + _SHOWN_S

    async def with_processes(self) -> list[GpuSample]:
        """The latest sample of each GPU, with its processes where they are listed in time."""
        self.show_processes()
        monitor = self._monitor
        if monitor is None:
            return []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTED_S):
                while any(sample.processes is None for sample in monitor.latest.values()):
                    await monitor.change()
        return list(self._described(tuple(monitor.latest.values()), self._servers().pids))

    async def settle(self) -> None:
        """Wait for a sample of each GPU after the load, which the last stage's energy needs."""
        ended_s, monitor = time.monotonic(), self._monitor
        if monitor is None or monitor.stale:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SAMPLE_S):
                while any(sample.t_s < ended_s for sample in monitor.latest.values()):
                    await monitor.change()

    async def close(self) -> None:
        """Take a last sample and end the children."""
        self._ending.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            if self._monitor is not None:
                await self._monitor.close()

    def _watch(self, options: Mapping[str, list[BackendOption]]) -> None:
        self._listing, self._devices = False, None
        self._monitor = Monitor(options, folder=self._writer.folder, interval_s=_PERIOD_S)
        self._monitor.start()

    async def _keep_sampling(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while not self._ending.is_set():
            now_s, settings = time.monotonic(), self._servers().settings
            if self._listing and settings.engine == "attach" and now_s >= self._search_at_s:
                self._search_at_s = now_s + _SEARCH_EVERY_S
                with contextlib.suppress(psutil.Error):  # a process has ended: the next search shows it
                    self._attached = await asyncio.to_thread(attached_pids, settings.attached)
            await self._sample()
            # Not immediately after a late sample: a rate over a very short interval is meaningless.
            due_s = max(due_s + _PERIOD_S, loop.time() + _PERIOD_S / 2)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._ending.wait()
        await self._sample()

    async def _sample(self) -> None:
        pids = self._servers().pids
        if self._monitor is not None:
            self._log_changes(self._monitor)
            self._choose(self._monitor, {*pids, *self._attached})
            for sampled in self._monitor.new_samples():
                self._writer.log(GpusSampled(t_s=self._writer.clock_s(), gpus=self._described(sampled.gpus, pids)))
        # In a thread: with many cores and interrupts, reading the kernel's counters takes milliseconds.
        host = await asyncio.to_thread(self._host.sample, server=pids, files_of=tuple(self._worker_pids()))
        self._writer.log(HostSampled(t_s=self._writer.clock_s(), host=host))

    def _described(self, gpus: tuple[GpuSample, ...], pids: Collection[int]) -> tuple[GpuSample, ...]:
        if self._replay is not None or self._mode == "sim":  # these GPUs have no processes on this box
            return gpus
        return tuple(described(gpu, {*pids, *self._attached}) for gpu in gpus)

    def _choose(self, monitor: Monitor, pids: Collection[int]) -> None:
        """Record the GPUs of the servers once they are known; until then, list processes."""
        devices = self._chosen(monitor, pids) if monitor.gpus else self._devices
        if devices != self._devices:
            self._devices = devices
            self._writer.log(DevicesChosen(t_s=self._writer.clock_s(), devices=devices))
        unknown = bool(monitor.gpus) and devices is None and self._replay is None
        listing = unknown or time.monotonic() < self._shown_until_s
        if listing != self._listing:
            self._listing = listing
            monitor.show_processes(listing)

    def _chosen(self, monitor: Monitor, pids: Collection[int]) -> ServerDevices | None:
        gpus = monitor.gpus
        if all(gpu.vendor == "sim" for gpu in gpus):
            return ServerDevices(tuple(gpu.index for gpu in gpus), "simulated")
        if self._replay is not None:  # GPUs and processes are those of another box
            return None
        servers, before = self._servers(), self._devices_of
        self._devices_of = servers
        given = servers.given(gpus)
        if given is not None:
            return ServerDevices(given, "given")
        held = {index: {process.pid for process in now.processes or ()} for index, now in monitor.latest.items()}
        holding = tuple(index for index, holders in sorted(held.items()) if not holders.isdisjoint(pids))
        if holding:
            return ServerDevices(holding, "processes")
        return self._devices if servers is before else None

    def _log_changes(self, monitor: Monitor) -> None:
        status = _entry(monitor)
        now = (monitor.gpus, status)
        if not monitor.settled or now == self._logged:
            return
        failed = [f"{name}: {why}" for each in monitor.status for name, why in each.failures.items()]
        before = self._logged
        self._logged = now
        self._writer.log(TelemetryChanged(t_s=self._writer.clock_s(), gpus=monitor.gpus, meta=status))
        if failed and (before is None or before[1] != status):
            self._writer.event("telemetry", "; ".join(failed))


def _entry(monitor: Monitor) -> dict[str, Any]:
    settled = (msgspec.structs.replace(source, stale=False) for source in monitor.status)
    return {source.vendor: msgspec.to_builtins(source) for source in settled}


def telemetry_words(meta: dict[str, Any] | None) -> str:
    """What measures the GPUs, or why nothing does, from its entry in the journal."""
    if not meta:
        return "no GPU found: see vramp doctor for what was tried"
    try:
        return "; ".join(source.words for source in msgspec.convert(meta, dict[str, SourceStatus]).values())
    except msgspec.ValidationError:
        return "unknown: the journal is damaged"
