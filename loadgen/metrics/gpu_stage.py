"""The GPUs and the host during one stage: the looks that fell into it, bounded, and what they say about its window.

The looks right before and right after the stage are kept too, so that counters can be interpolated at the window's
edges. A long stage is thinned: every second look goes once there are too many, which costs resolution, never the ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from loadgen.metrics.samples import GpuFigure, GpuSample, GpuStage, GpuStatic, HostSample

_MOST_LOOKS = 1000
_MEASURED = (
    "gfx_percent",
    "memory_percent",
    "power_w",
    "temperature_hotspot_c",
    "temperature_memory_c",
    "gfx_clock_mhz",
    "memory_clock_mhz",
)
_HOST_MEANS = ("cpu_percent", "cpu_busiest_percent", "server_cpu_percent", "server_rss_bytes", "memory_used_bytes")


class GpuSamples:
    """The looks at all GPUs and the host around one stage."""

    def __init__(self, before: Mapping[int, GpuSample]) -> None:
        """`before` are the last looks before the stage."""
        self.by_gpu: dict[int, list[GpuSample]] = {index: [sample] for index, sample in before.items()}
        self.host: list[HostSample] = []
        self.until_s: float | None = None  # when the stage ended (CLOCK_MONOTONIC)
        self.count = 0  # looks taken so far

    def add(self, samples: Sequence[GpuSample]) -> None:
        self.count += 1
        for sample in samples:
            kept = self.by_gpu.setdefault(sample.index, [])
            kept.append(sample)
            _thin(kept)

    def add_host(self, sample: HostSample) -> None:
        """Take one look at the host."""
        self.host.append(sample)
        _thin(self.host)

    def forget(self) -> None:
        """Let the looks go: what they say is known."""
        self.by_gpu.clear()
        self.host.clear()

    @property
    def complete(self) -> bool:
        """Whether every GPU was looked at after the end of the stage: nothing more is needed."""
        if self.until_s is None:
            return False
        return all(samples[-1].t_s >= self.until_s for samples in self.by_gpu.values())

    def within(self, start_s: float, end_s: float) -> dict[int, list[GpuSample]]:
        """The looks of a window, by GPU."""
        return {
            index: [sample for sample in samples if start_s <= sample.t_s <= end_s]
            for index, samples in self.by_gpu.items()
        }


def _thin(kept: list[Any]) -> None:
    if len(kept) > _MOST_LOOKS:
        del kept[1:-1:2]


def host_means(looks: Sequence[HostSample], start_s: float, end_s: float) -> dict[str, float | None]:
    """The means of the host's figures over a window; None where nothing was known."""
    inside = [look for look in looks if start_s <= look.t_s <= end_s]
    return {name: _mean([getattr(look, name) for look in inside]) for name in _HOST_MEANS}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 3) if known else None


def gpu_stages(gpus: Sequence[GpuStatic], looks: Mapping[int, Sequence[GpuSample]]) -> list[GpuStage]:
    """Every GPU over its looks of a window; one without a look is left out."""
    return [_gpu_stage(gpu, looks[gpu.index]) for gpu in gpus if looks.get(gpu.index)]


def mean_throttle(looks: Sequence[GpuSample]) -> dict[str, float]:
    """The mean share of the time by reason, in percent; only reasons that held it back."""
    known = [sample.throttle_percent for sample in looks if sample.throttle_percent is not None]
    reasons = sorted({reason for shares in known for reason in shares})
    means = {reason: sum(shares.get(reason, 0.0) for shares in known) / len(known) for reason in reasons}
    return {reason: round(mean, 2) for reason, mean in means.items() if mean > 0}


def _gpu_stage(gpu: GpuStatic, looks: Sequence[GpuSample]) -> GpuStage:
    figures: dict[str, Any] = {name: _figure(looks, name) for name in _MEASURED}
    span_s = looks[-1].t_s - looks[0].t_s
    read, written = _gain(looks, "link_read_bytes"), _gain(looks, "link_write_bytes")
    reasons: dict[str, str] = {}
    for sample in looks:
        reasons |= sample.missing
    return GpuStage(
        index=gpu.index,
        name=gpu.name,
        looks=len(looks),
        hbm_used_bytes_max=max(
            (look.hbm_used_bytes for look in looks if look.hbm_used_bytes is not None), default=None
        ),
        hbm_total_bytes=gpu.hbm_total_bytes,
        throttled_percent=mean_throttle(looks),
        pcie_replays=_gain(looks, "pcie_replays"),
        ecc_correctable=_gain(looks, "ecc_correctable"),
        ecc_uncorrectable=_gain(looks, "ecc_uncorrectable"),
        link_read_bytes_per_s=read / span_s if read is not None and span_s > 0 else None,
        link_write_bytes_per_s=written / span_s if written is not None and span_s > 0 else None,
        missing={name: why for name, why in reasons.items() if figures.get(name) is None},
        **figures,
    )


def _figure(looks: Sequence[GpuSample], name: str) -> GpuFigure | None:
    values = np.array([value for look in looks if (value := getattr(look, name)) is not None], dtype=np.float64)
    if len(values) == 0:
        return None
    p50, p95 = np.percentile(values, (50, 95), method="higher")
    numbers = (values.min(), values.mean(), p50, p95, values.max())
    return GpuFigure(*(round(float(number), 3) for number in numbers))


def _gain(looks: Sequence[GpuSample], name: str) -> int | None:
    """What a counter gained from the first look to the last; None if it is unknown or was reset in between."""
    known = [value for look in looks if (value := getattr(look, name)) is not None]
    if len(known) < 2 or any(after < before for before, after in pairwise(known)):
        return None
    return int(known[-1] - known[0])
