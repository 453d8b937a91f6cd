"""Samples the host: cores, memory, disks, network, and the server's processes.

Sampled in vramp's own process. Invariants: a rate needs two samples, so the first has none; a process that ends or
cannot be read is left out, and so are counters that the kernel does not offer here; the frequencies of only a few
cores are read, and rarely, because some kernels wait for each core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from loadgen.masking import masked_text
from loadgen.schema.samples import HostSample, Reading, gained, rate
from loadgen.system import number_in, text_in

_FREQUENCY_EVERY_S = 10.0
_FREQUENCY_CORES = 8
SETTINGS = ("boost", "smt", "governor", "c_states", "numa_balancing", "kernel_command_line")
"""What of processor and kernel changes the speed of a box."""
_OF_THIS_BOX = ("BOOT_IMAGE=", "initrd=", "root=", "resume=")
_UNREADABLE = (psutil.Error, OSError, NotImplementedError, ValueError)
"""What psutil raises where files of the kernel are missing, forbidden or in an unknown format."""


class _Core(NamedTuple):
    busy_s: float
    all_s: float
    stolen_s: float = 0.0


class HostSampler:
    """Samples the host; keeps what rates need from one sample to the next."""

    def __init__(self, *, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._t_s = 0.0
        self._cores: list[_Core] | None = None
        self._totals: dict[str, int] = {}
        self._server: dict[int, psutil.Process] = {}
        self._server_cpu_s: dict[int, float] = {}
        self._frequency: dict[str, Any] = {}
        self._frequency_due_s = 0.0

    def sample(self, *, server: Iterable[int] = (), files_of: Iterable[int] = ()) -> HostSample:
        """Sample now; `server` are the pids of the server's tree, `files_of` those whose open files are counted."""
        before_s, self._t_s = self._t_s, time.monotonic()
        cores = self._core_times()
        shares = [share for pair in cores if (share := core_share(*pair)) is not None]
        memory = psutil.virtual_memory()
        server_cpu_s, rss_bytes = self._server_usage(server)
        if self._t_s >= self._frequency_due_s:
            self._frequency_due_s = self._t_s + _FREQUENCY_EVERY_S
            self._frequency = read_frequency(self._sysfs)
        before, self._totals = self._totals, _totals(self._sysfs)
        rates: dict[str, Any] = {
            f"{name}_bytes_per_s": rate(Reading(before_s, before[name]), Reading(self._t_s, now))
            for name, now in self._totals.items()
            if name in before
        }
        return HostSample(
            t_s=self._t_s,
            cores=len(self._cores or ()),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            load_1min=os.getloadavg()[0],
            cpu_percent=sum(shares) / len(shares) if shares else None,
            cpu_busiest_percent=max(shares, default=None),
            cpu_steal_percent=stolen_share(cores),
            server_cpu_percent=None if server_cpu_s is None else 100 * server_cpu_s / (self._t_s - before_s),
            server_rss_bytes=rss_bytes,
            open_files=_open_files(files_of),
            **self._frequency,
            **rates,
        )

    def _core_times(self) -> list[tuple[_Core, _Core]]:
        """Each core's times at the previous sample and now; none if they cannot be compared."""
        # psutil's order on Linux: user, nice, system, idle, iowait, irq, softirq, steal; guests are included in user.
        try:
            times_s = [times[:8] for times in psutil.cpu_times(percpu=True)]
        except _UNREADABLE:
            times_s = []
        before = self._cores
        self._cores = [
            _Core(
                busy_s=sum(times) - times[3] - times[4],
                all_s=sum(times),
                stolen_s=times[7] if len(times) > 7 else 0.0,
            )
            for times in times_s
        ]
        # A core that went online or offline shifts the others.
        if before is None or len(before) != len(self._cores):
            return []
        return list(zip(before, self._cores, strict=True))

    def _server_usage(self, pids: Iterable[int]) -> tuple[float | None, int | None]:
        """CPU seconds since the last sample, of processes present in both, and resident bytes."""
        cpu_s: dict[int, float] = {}
        processes: dict[int, psutil.Process] = {}
        rss_bytes = 0
        for pid in pids:
            try:
                process = processes[pid] = self._server.get(pid) or psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    rss_bytes += process.memory_info().rss
            except psutil.Error:
                processes.pop(pid, None)
                continue
            cpu_s[pid] = times.user + times.system
        before, self._server, self._server_cpu_s = self._server_cpu_s, processes, cpu_s
        gains = [gained(before[pid], now_s) for pid, now_s in cpu_s.items() if pid in before]
        known = [gain for gain in gains if gain is not None]  # None: the pid belongs to another process now
        return (sum(known) if known else None), (rss_bytes if cpu_s else None)


def stolen_share(cores: Sequence[tuple[_Core, _Core]]) -> float | None:
    """The share of the cores' time in percent that the hypervisor gave to others; None if no time has passed."""
    span_s = sum(after.all_s - before.all_s for before, after in cores)
    stolen_s = sum(after.stolen_s - before.stolen_s for before, after in cores)
    return None if span_s <= 0 else min(100.0, max(0.0, 100 * stolen_s / span_s))


def core_share(before: _Core, after: _Core) -> float | None:
    """A core's busy time in percent; None if no time has passed."""
    span_s, busy_s = after.all_s - before.all_s, after.busy_s - before.busy_s
    return None if span_s <= 0 else min(100.0, max(0.0, 100 * busy_s / span_s))


def read_frequency(sysfs: Path) -> dict[str, Any]:
    """MHz and governor of a few cores, spread over all; None where the kernel does not report them."""
    folders = sorted(sysfs.glob("devices/system/cpu/cpu[0-9]*/cpufreq"))
    chosen = folders[:: max(1, -(-len(folders) // _FREQUENCY_CORES))]
    # Empty if the driver does not report it, or the core went off line.
    khz = [number_in(folder / "scaling_cur_freq") for folder in chosen]
    mhz = [each / 1000 for each in khz if each is not None]
    governors = sorted({text_in(folder / "scaling_governor") for folder in chosen} - {""})
    mean_mhz = sum(mhz) / len(mhz) if mhz else None
    return {"cpu_mhz": mean_mhz, "cpu_mhz_min": min(mhz, default=None), "governor": ", ".join(governors) or None}


def host_settings(root: Path = Path("/")) -> dict[str, str]:
    """What of `SETTINGS` the kernel reports."""
    sysfs, processor = root / "sys", root / "sys/devices/system/cpu"
    idle_states = sorted((processor / "cpu0/cpuidle").glob("state[0-9]"))
    enabled = [text_in(state / "name") for state in idle_states if text_in(state / "disable") != "1"]
    # Without what names this box's disks and kernel, and without what follows `--`, for init.
    words = text_in(root / "proc/cmdline").partition(" -- ")[0].split()
    found = {
        "boost": {None: "", True: "on", False: "off"}[is_boosted(sysfs)],
        "smt": {"1": "on", "0": "off"}.get(text_in(processor / "smt/active")),
        "governor": read_frequency(sysfs)["governor"],
        "c_states": ", ".join(filter(None, enabled)),
        "numa_balancing": text_in(root / "proc/sys/kernel/numa_balancing"),
        "kernel_command_line": masked_text(" ".join(word for word in words if not word.startswith(_OF_THIS_BOX))),
    }
    return {name: value for name, value in found.items() if value}


def is_boosted(sysfs: Path) -> bool | None:
    """Whether cores may exceed their nominal frequency; None if the kernel does not say."""
    processor = sysfs / "devices/system/cpu"
    boost, not_boost = text_in(processor / "cpufreq/boost"), text_in(processor / "intel_pstate/no_turbo")
    return {("1", ""): True, ("0", ""): False, ("", "0"): True, ("", "1"): False}.get((boost, not_boost))


def _totals(sysfs: Path) -> dict[str, int]:
    disks = _counters(lambda: psutil.disk_io_counters(perdisk=True, nowrap=False))
    cards = _counters(lambda: psutil.net_io_counters(pernic=True, nowrap=False))
    totals: dict[str, int] = {}
    if disks is not None:
        own_disks = [disks[name] for name in with_hardware(disks, sysfs / "block")]
        totals["disk_read"] = sum(disk.read_bytes for disk in own_disks)
        totals["disk_write"] = sum(disk.write_bytes for disk in own_disks)
    if cards is not None:
        own_cards = [cards[name] for name in with_hardware(cards.keys() - {"lo"}, sysfs / "class/net")]
        totals["network_in"] = sum(card.bytes_recv for card in own_cards)
        totals["network_out"] = sum(card.bytes_sent for card in own_cards)
    return totals


def _counters(read: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return read()
    except _UNREADABLE:
        return None


def with_hardware(names: Iterable[str], folder: Path) -> list[str]:
    """The names that are hardware devices; if there are none, as in a container, those in the folder, or else all.

    The bytes of a bond, a bridge, a RAID or an LVM volume would count twice, as those of the devices below it.
    """
    listed = list(names)
    devices = [name for name in listed if (folder / name / "device").exists()]
    return devices or [name for name in listed if (folder / name).exists()] or listed


def _open_files(pids: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for pid in pids:
        try:
            folder = f"/proc/{pid}/fd"
            # Its size is their number since Linux 6.2; to list 10,000 takes 17 ms.
            counts[pid] = os.stat(folder).st_size or len(os.listdir(folder))  # noqa: PTH116, PTH208
        except OSError:  # it has ended, or belongs to someone else
            continue
    return counts
