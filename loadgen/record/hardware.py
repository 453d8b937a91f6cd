"""The hardware part of a record: samples of GPUs and host, as series and per stage.

Series are bounded (`loadgen.metrics.series`). A stage keeps the samples that it needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from loadgen.metrics.energy import socket_of
from loadgen.metrics.series import TimeSeries
from loadgen.metrics.verdicts import GpuFacts, gpu_facts
from loadgen.schema.bounds import Columns
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import GpuFigure, GpuSeries, GpuStage
from loadgen.schema.journal import GpusSampled, HostSampled
from loadgen.schema.samples import (
    GpuPace,
    GpuSample,
    GpuStatic,
    HostSample,
    Reading,
    ServerDevices,
    carried,
    gained,
    rate,
)

_SERIES_CAPACITY = 3_000
_SERIES_RAW = 600  # ten minutes at one sample a second
_SERVER_GROWTH_BYTES = 512 * 1024**2
_SERVER_SHARE = 0.1
_RECENT_LOOKS = 10
_MAX_SAMPLES = 1000
_FRESH_S = 5.0  # telemetry samples once a second
_FULL_HOST_PERCENT = 90.0
_LISTED_S = 25.0  # how long a list of processes counts as current: they are listed every ten seconds, or not at all
_MEASURED = tuple(field.name for field in msgspec.structs.fields(GpuStage) if field.type == GpuFigure | None)
_ERRORS = (
    *("pcie_replays", "ecc_correctable", "ecc_uncorrectable", "ecc_deferred"),
    *("bad_pages", "rows_remapped", "xids"),
)
_HOST_MEANS = (
    "cpu_percent",
    "cpu_busiest_percent",
    "cpu_steal_percent",
    "server_cpu_percent",
    "server_rss_bytes",
    "memory_used_bytes",
)
_GPU_COLUMNS = (
    *("gfx_percent", "memory_percent", "hbm_used_bytes", "power_w", "temperature_hotspot_c", "temperature_memory_c"),
    *("gfx_clock_mhz", "throttled_percent"),
)
_HOST_RATES = ("disk_read_bytes_per_s", "disk_write_bytes_per_s", "network_in_bytes_per_s", "network_out_bytes_per_s")
_HOST_COLUMNS = (*_HOST_MEANS, "load_1min", *_HOST_RATES)
Sample = TypeVar("Sample")


class HardwareSamples:
    """The samples of GPUs and host during a stage, and shortly before and after."""

    def __init__(self, before: Mapping[int, GpuSample], devices: ServerDevices | None = None) -> None:
        """`before` are the last samples before the stage."""
        self._by_gpu: dict[int, Spaced[GpuSample]] = {}
        self._host: Spaced[HostSample] = Spaced()
        self.devices = devices  # the server's, as last known within the stage
        self.until_s: float | None = None  # the end of the stage (CLOCK_MONOTONIC)
        self.count = 0  # samples of GPUs so far
        self._take(before.values())

    @property
    def by_gpu(self) -> dict[int, list[GpuSample]]:
        return {index: kept.samples for index, kept in self._by_gpu.items()}

    @property
    def host(self) -> list[HostSample]:
        return self._host.samples

    def add(self, samples: Sequence[GpuSample]) -> None:
        self.count += 1
        self._take(samples)

    def _take(self, samples: Iterable[GpuSample]) -> None:
        for sample in samples:
            self._by_gpu.setdefault(sample.index, Spaced()).add(sample)

    def add_host(self, sample: HostSample) -> None:
        self._host.add(sample)

    def forget(self) -> None:
        """Drop the samples, which have been summarised."""
        self._by_gpu.clear()
        self._host = Spaced()

    @property
    def complete(self) -> bool:
        """Whether every GPU was sampled after the end of the stage, so that nothing more is needed."""
        if self.until_s is None:
            return False
        return all(samples[-1].t_s >= self.until_s for samples in self.by_gpu.values())

    def within(self, start_s: float, end_s: float) -> dict[int, list[GpuSample]]:
        return {
            index: [sample for sample in samples if start_s <= sample.t_s <= end_s]
            for index, samples in self.by_gpu.items()
        }


class Spaced(Generic[Sample]):
    """Samples at even distances, at most 1,000: each part of a long stage counts as much as any other.

    All are kept at first, later every second, then every fourth; the newest is always among them.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._step = 1
        self._count = 0

    def add(self, sample: Sample) -> None:
        """Append the next sample; the one before it is dropped if it does not fall on a step."""
        if self._count and (self._count - 1) % self._step:
            self.samples.pop()
        self.samples.append(sample)
        self._count += 1
        if len(self.samples) > _MAX_SAMPLES:
            del self.samples[1:-1:2]
            self._step *= 2


class HardwareRecord:
    """GPUs and host of a run, up to the last line of its journal."""

    def __init__(self) -> None:
        self.began_s = 0.0  # CLOCK_MONOTONIC when the run began
        self.gpus: tuple[GpuStatic, ...] = ()
        self.meta: dict[str, Any] | None = None
        self.latest: dict[int, GpuSample] = {}
        self.first: dict[int, GpuSample] = {}
        self.before_start: dict[int, GpuSample] = {}  # the last before vramp started a server, where there are any
        self.host: HostSample | None = None
        self._host_series = _series(_HOST_COLUMNS)
        self._gpu_series: dict[int, TimeSeries] = {}
        self._recent: dict[int, list[GpuSample]] = {}
        self._listed_s: dict[int, float] = {}  # when its processes were last listed
        self._energy_j: dict[int, tuple[float, float]] = {}  # the counter's last value, and its gain so far
        self._xids: dict[int, tuple[int, int]] = {}  # those of earlier telemetry children, and of this one
        self.health: dict[tuple[str, str], Verdict] = {}  # of stages whose samples are forgotten, by id and GPU
        self._open: list[HardwareSamples] = []
        self._devices: ServerDevices | None = None

    def begin_stage(self) -> HardwareSamples:
        """The samples of a stage that begins now; new ones are added until the stage drops the object."""
        samples = HardwareSamples(self.latest, self._devices)
        self._open.append(samples)
        return samples

    def choose(self, devices: ServerDevices | None) -> None:
        """Record that the server's GPUs have become known, or unknown (None)."""
        self._devices = devices
        for samples in self._open:
            samples.devices = devices or samples.devices

    def keep_before_start(self) -> None:
        """Keep what the GPUs held before the first start of a server of our own; an attached one holds its model."""
        self.before_start = dict(self.latest)

    def sampled(self, line: GpusSampled) -> None:
        for sample in map(self._with_earlier_xids, line.gpus):
            self.first.setdefault(sample.index, sample)
            if sample.energy_j is not None:
                before_j, total_j = self._energy_j.get(sample.index, (sample.energy_j, 0.0))
                self._energy_j[sample.index] = sample.energy_j, total_j + (gained(before_j, sample.energy_j) or 0.0)
            if sample.processes is not None:
                self._listed_s[sample.index] = sample.t_s
            listed = sample.t_s - self._listed_s.get(sample.index, -_LISTED_S) < _LISTED_S
            self.latest[sample.index] = carried(self.latest.get(sample.index), sample, processes=listed)
            recent = self._recent.setdefault(sample.index, [])
            recent.append(sample)
            del recent[:-_RECENT_LOOKS]
            series = self._gpu_series.setdefault(sample.index, _series(_GPU_COLUMNS))
            values = {name: getattr(sample, name, None) for name in _GPU_COLUMNS}
            if sample.throttle_percent is not None:
                values["throttled_percent"] = max(sample.throttle_percent.values(), default=0.0)
            series.add(round(sample.t_s - self.began_s, 3), values)
        # Including the fields that are read rarely, because a long stage does not keep every sample.
        known = [self.latest[sample.index] for sample in line.gpus]
        for samples in self._open:
            samples.add(known)
        self._free()

    def host_sampled(self, line: HostSampled) -> None:
        self.host = line.host
        for samples in self._open:
            samples.add_host(line.host)
        self._free()
        values = {name: getattr(line.host, name) for name in _HOST_COLUMNS}
        self._host_series.add(round(line.host.t_s - self.began_s, 3), values)

    def _free(self) -> None:
        self._open = [samples for samples in self._open if not samples.complete]

    def _with_earlier_xids(self, sample: GpuSample) -> GpuSample:
        """The sample with the Xid errors of earlier telemetry children, as each child counts only from its start."""
        if sample.xids is None:
            return sample
        earlier, last = self._xids.get(sample.index, (0, 0))
        earlier += last if sample.xids < last else 0
        self._xids[sample.index] = earlier, sample.xids
        return msgspec.structs.replace(sample, xids=earlier + sample.xids)

    def pace(self, index: int) -> GpuPace:
        """The present growth of a GPU's counters."""
        looks = self._recent.get(index, [])[-2:]
        return GpuPace(
            link_read_bytes_per_s=_pace(looks, "link_read_bytes"),
            link_write_bytes_per_s=_pace(looks, "link_write_bytes"),
            energy_j=self._energy_j[index][1] if index in self._energy_j else None,
        )

    def series(self) -> list[GpuSeries]:
        return [GpuSeries(index, series.columns()) for index, series in sorted(self._gpu_series.items())]

    def host_series(self) -> Columns:
        return self._host_series.columns() if len(self._host_series) else {}

    def facts(self) -> list[GpuFacts]:
        """The input of the GPU health rules, from the latest samples."""
        return self._facts(self.latest, self._recent, self.now())

    def facts_within(self, samples: HardwareSamples, start_s: float, end_s: float) -> list[GpuFacts]:
        """The input of the GPU health rules over a window of a stage, by its means: one moment may be an exception."""
        looks = {index: found for index, found in samples.within(start_s, end_s).items() if found}
        typical = {}
        for index, found in looks.items():
            known = {name: _known(found, name) for name in ("gfx_percent", "gfx_clock_mhz", "temperature_hotspot_c")}
            means = {name: fmean(values) for name, values in known.items() if values}
            typical[index] = msgspec.structs.replace(found[-1], **means)
        return self._facts(typical, looks, self.of_stage(samples))

    def _facts(
        self, now: Mapping[int, GpuSample], looks: Mapping[int, Sequence[GpuSample]], devices: ServerDevices
    ) -> list[GpuFacts]:
        throttled = {index: mean_throttle(samples) for index, samples in looks.items()}
        return gpu_facts(self.gpus, now, self.before_start, throttled, self.of_others(devices))

    def of_others(self, devices: ServerDevices) -> set[int]:
        """The numbers of the GPUs that the server does not use; none where its GPUs are only a guess."""
        ours = self.gpus if devices.by in ("hbm", "all") else self.sockets_of(devices)
        return {gpu.index for gpu in self.gpus if gpu not in ours}

    def of_stage(self, samples: HardwareSamples) -> ServerDevices:
        """The GPUs on which the server computed in a stage."""
        return samples.devices or self._devices or self._by_memory(samples.by_gpu)

    def now(self) -> ServerDevices:
        """The GPUs on which the server computes."""
        return self._devices or self._by_memory({index: [sample] for index, sample in self.latest.items()})

    def _by_memory(self, samples: Mapping[int, Sequence[GpuSample]]) -> ServerDevices:
        """A guess, as a last resort: the GPUs whose memory use is high or grew since the run began, else all."""
        used = []
        for gpu in self.gpus:
            most = max(_known(samples.get(gpu.index, ()), "hbm_used_bytes"), default=0)
            first = self.first[gpu.index].hbm_used_bytes if gpu.index in self.first else None
            has_grown = first is not None and most - first >= _SERVER_GROWTH_BYTES
            if has_grown or (gpu.hbm_total_bytes and most >= _SERVER_SHARE * gpu.hbm_total_bytes):
                used.append(gpu.index)
        return (
            ServerDevices(tuple(used), "hbm") if used else ServerDevices(tuple(gpu.index for gpu in self.gpus), "all")
        )

    def busy_percent(self, t_s: float) -> float | None:
        """How busy the server's GPUs are at a moment of the run, their mean; None if no sample is fresh."""
        samples = (self.latest.get(gpu.index) for gpu in self.sockets_of(self.now()))
        fresh = [one for one in samples if one is not None and self.began_s + t_s - one.t_s <= _FRESH_S]
        known = _known(fresh, "gfx_percent")
        return fmean(known) if known else None

    def server_names(self) -> list[str] | None:
        """The name of each GPU on which the server computes; None where these are only a guess."""
        devices = self.now()
        if devices.by in ("hbm", "all"):
            return None
        return [*{socket_of(gpu): gpu.name for gpu in self.sockets_of(devices)}.values()]

    def sockets_of(self, devices: ServerDevices) -> list[GpuStatic]:
        """All devices on the sockets of `devices`, because a socket's figures are on its first device."""
        sockets = {socket_of(gpu) for gpu in self.gpus if gpu.index in devices.indices}
        return [gpu for gpu in self.gpus if socket_of(gpu) in sockets]


def _pace(looks: Sequence[GpuSample], name: str) -> float | None:
    readings = [Reading(look.t_s, value) for look in looks if (value := getattr(look, name)) is not None]
    return rate(*readings) if len(readings) == 2 else None


def _series(columns: Sequence[str]) -> TimeSeries:
    return TimeSeries(columns, capacity=_SERIES_CAPACITY, kept_raw=_SERIES_RAW)


def host_means(samples: Sequence[HostSample], start_s: float, end_s: float) -> dict[str, float | None]:
    """The means of the host's figures over a window; None where unknown."""
    known = {
        name: _known([sample for sample in samples if start_s <= sample.t_s <= end_s], name) for name in _HOST_MEANS
    }
    return {name: round(sum(values) / len(values), 3) if values else None for name, values in known.items()}


def full_host_share(samples: Sequence[HostSample], start_s: float, end_s: float) -> float | None:
    """The share of a window in which the host had no core to spare; None if unknown.

    Its mean does not tell: a host that is full under load is idle while the engine stands still. The first sample in
    the window covers time before it, and does not count.
    """
    within = [sample for sample in samples if start_s <= sample.t_s <= end_s][1:]
    known = [(sample.cores, sample.cpu_percent) for sample in within if sample.cpu_percent is not None]
    return sum(percent >= _full_percent(cores) for cores, percent in known) / len(known) if known else None


def _full_percent(cores: int) -> float:
    """From which use of all cores a host has none to spare: on two, half an idle core is no core for a third thread."""
    return min(_FULL_HOST_PERCENT, 100 * (1 - 0.5 / max(1, cores)))


def gpu_stages(
    gpus: Sequence[GpuStatic],
    samples: Mapping[int, Sequence[GpuSample]],
    around: Mapping[int, Sequence[GpuSample]],
    of_server: Collection[int],
) -> list[GpuStage]:
    """The figures of every sampled GPU over a window, with error counts from the samples `around` it.

    `of_server` are the numbers of the server's GPUs.
    """
    found = []
    for gpu in gpus:
        looks = samples.get(gpu.index)
        if not looks:
            continue
        figures: dict[str, Any] = {name: _figure(looks, name) for name in _MEASURED}
        gains: dict[str, Any] = {name: _gain(around[gpu.index], name) for name in _ERRORS}
        span_s = looks[-1].t_s - looks[0].t_s
        read, written = _gain(looks, "link_read_bytes"), _gain(looks, "link_write_bytes")
        reasons = {name: why for look in looks for name, why in look.missing.items()}
        found.append(
            GpuStage(
                index=gpu.index,
                name=gpu.name,
                looks=len(looks),
                of_server=gpu.index in of_server,
                hbm_used_bytes_max=max(_known(looks, "hbm_used_bytes"), default=None),
                hbm_total_bytes=gpu.hbm_total_bytes,
                throttled_percent=mean_throttle(looks),
                **gains,
                xid_last=_known(around[gpu.index], "xid_last")[-1] if gains["xids"] else None,
                link_read_bytes_per_s=read / span_s if read is not None and span_s > 0 else None,
                link_write_bytes_per_s=written / span_s if written is not None and span_s > 0 else None,
                missing={name: why for name, why in reasons.items() if figures.get(name) is None},
                **figures,
            )
        )
    return found


def mean_throttle(samples: Sequence[GpuSample]) -> dict[str, float]:
    """The mean share of time throttled by reason, in percent, without zeros."""
    known = [sample.throttle_percent for sample in samples if sample.throttle_percent is not None]
    reasons = sorted({reason for shares in known for reason in shares})
    means = {reason: sum(shares.get(reason, 0.0) for shares in known) / len(known) for reason in reasons}
    return {reason: round(mean, 2) for reason, mean in means.items() if mean > 0}


def _known(samples: Sequence[GpuSample] | Sequence[HostSample], name: str) -> list[Any]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def _figure(samples: Sequence[GpuSample], name: str) -> GpuFigure | None:
    values = np.array(_known(samples, name), dtype=np.float64)
    if len(values) == 0:
        return None
    p50, p95 = np.percentile(values, (50, 95), method="higher")
    numbers = (values.min(), values.mean(), p50, p95, values.max())
    return GpuFigure(*(round(float(number), 3) for number in numbers))


def _gain(samples: Sequence[GpuSample], name: str) -> int | None:
    """A counter's gain from the first sample to the last; None if unknown or reset in between."""
    known = _known(samples, name)
    if len(known) < 2 or any(after < before for before, after in pairwise(known)):
        return None
    return int(known[-1] - known[0])
