"""The hardware's part of a record: GPUs and host as they were looked at, as series and by stage.

Series are bounded (`loadgen.metrics.series`). What a stage needs of the looks it keeps itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from loadgen.metrics.gpu_stage import GpuSamples, mean_throttle
from loadgen.metrics.health import GpuFacts, gpu_facts
from loadgen.metrics.journal import GpusSampled, HostSampled, TelemetryChanged
from loadgen.metrics.samples import Columns, GpuSample, GpuSeries, GpuStatic, HostSample
from loadgen.metrics.series import TimeSeries

_SERIES_CAPACITY = 3_000
_SERIES_RAW = 600  # ten minutes at one look a second
_SERVER_GROWTH_BYTES = 512 * 1024**2
_SERVER_SHARE = 0.1
_RECENT_LOOKS = 10
_GPU_COLUMNS = (
    "gfx_percent",
    "memory_percent",
    "hbm_used_bytes",
    "power_w",
    "temperature_hotspot_c",
    "temperature_memory_c",
    "gfx_clock_mhz",
    "throttled_percent",
)
_HOST_COLUMNS = (
    "cpu_percent",
    "cpu_busiest_percent",
    "server_cpu_percent",
    "server_rss_bytes",
    "memory_used_bytes",
    "load_1min",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "network_in_bytes_per_s",
    "network_out_bytes_per_s",
)


class HardwareRecord:
    """GPUs and host of a run, as far as its journal goes."""

    def __init__(self) -> None:
        self.began_s = 0.0  # CLOCK_MONOTONIC when the run began
        self.gpus: tuple[GpuStatic, ...] = ()
        self.meta: dict[str, Any] | None = None
        self.latest: dict[int, GpuSample] = {}
        self.first: dict[int, GpuSample] = {}
        self.host: HostSample | None = None
        self._host_series = _series(_HOST_COLUMNS)
        self._gpu_series: dict[int, TimeSeries] = {}
        self._recent: dict[int, list[GpuSample]] = {}
        self._open: list[GpuSamples] = []

    def found(self, line: TelemetryChanged) -> None:
        """Other GPUs, or another way to measure them."""
        self.gpus, self.meta = line.gpus, line.meta

    def begin_stage(self) -> GpuSamples:
        """The looks of a stage that begins now; they are added until the stage lets go of them."""
        looks = GpuSamples(self.latest)
        self._open.append(looks)
        return looks

    def end_stage(self, looks: GpuSamples, end_s: float) -> None:
        """The stage is over; each GPU's next look still counts, for the edge of its window."""
        looks.until_s = end_s

    def sampled(self, line: GpusSampled) -> None:
        for looks in self._open:
            looks.add(line.gpus)
        self._let_go()
        for sample in line.gpus:
            self.first.setdefault(sample.index, sample)
            self.latest[sample.index] = _carried(self.latest.get(sample.index), sample)
            recent = self._recent.setdefault(sample.index, [])
            recent.append(sample)
            del recent[:-_RECENT_LOOKS]
            series = self._gpu_series.setdefault(sample.index, _series(_GPU_COLUMNS))
            series.add(round(sample.t_s - self.began_s, 3), _gpu_values(sample))

    def host_sampled(self, line: HostSampled) -> None:
        self.host = line.host
        for looks in self._open:
            looks.add_host(line.host)
        self._let_go()
        values = {name: getattr(line.host, name) for name in _HOST_COLUMNS}
        self._host_series.add(round(line.host.t_s - self.began_s, 3), values)

    def _let_go(self) -> None:
        self._open = [looks for looks in self._open if not looks.complete]

    def series(self) -> list[GpuSeries]:
        return [GpuSeries(index, series.columns()) for index, series in sorted(self._gpu_series.items())]

    def host_series(self) -> Columns:
        """The series of the host; empty before the first look."""
        return self._host_series.columns() if len(self._host_series) else {}

    def facts(self) -> list[GpuFacts]:
        """What the rules of health look at, over the last looks."""
        throttled = {index: mean_throttle(looks) for index, looks in self._recent.items()}
        return gpu_facts(self.gpus, self.latest, self.first, throttled)

    def of_server(self, looks: Mapping[int, Sequence[GpuSample]]) -> list[GpuStatic]:
        """The GPUs that the server computes on: those whose memory grew since the run began, or is well in use.

        Another tenant's GPUs must not count towards a server's energy. All of them if nothing tells them apart.
        """
        used = [gpu for gpu in self.gpus if self._holds_a_model(gpu, looks.get(gpu.index, ()))]
        sockets = {gpu.socket or gpu.index for gpu in used}
        return [gpu for gpu in self.gpus if (gpu.socket or gpu.index) in sockets] or list(self.gpus)

    def _holds_a_model(self, gpu: GpuStatic, looks: Sequence[GpuSample]) -> bool:
        most = max((look.hbm_used_bytes for look in looks if look.hbm_used_bytes is not None), default=None)
        if most is None:
            return False
        first = self.first[gpu.index].hbm_used_bytes if gpu.index in self.first else None
        grown = first is not None and most - first >= _SERVER_GROWTH_BYTES
        return grown or (gpu.hbm_total_bytes is not None and most >= _SERVER_SHARE * gpu.hbm_total_bytes)


def _series(columns: Sequence[str]) -> TimeSeries:
    return TimeSeries(columns, capacity=_SERIES_CAPACITY, kept_raw=_SERIES_RAW)


def _gpu_values(sample: GpuSample) -> dict[str, float | None]:
    throttle = sample.throttle_percent
    values = {name: getattr(sample, name, None) for name in _GPU_COLUMNS}
    return values | {"throttled_percent": None if throttle is None else max(throttle.values(), default=0.0)}


def _carried(before: GpuSample | None, now: GpuSample) -> GpuSample:
    """What the slow tier tells only now and then stays known in between."""
    if before is None:
        return now
    kept = {
        name: value
        for name in GpuSample.__struct_fields__
        if getattr(now, name) is None and name not in now.missing and (value := getattr(before, name)) is not None
    }
    return msgspec.structs.replace(now, **kept) if kept else now
