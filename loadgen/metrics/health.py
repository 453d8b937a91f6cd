"""Verdicts on GPUs and stages: one line each, with the numbers behind it.

Rules are rows of two tables: an id, whether it needs the operator, and a condition that says what it saw or None. What
is unknown breaks no rule. Thresholds are named, so that a reader can doubt them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from loadgen.metrics.result import Verdict
from loadgen.metrics.samples import GpuSample, GpuStatic
from loadgen.metrics.verdict import kv_limit, queueing

MOST_THROTTLED_PERCENT = 5.0  # share of the time that a GPU may be held back for one reason before it is worth a word
SLOWER_THAN_SIBLINGS = 0.9  # of the siblings' median clock: with tensor parallelism all wait for the slowest
HOTTER_THAN_SIBLINGS_C = 10.0
USED_BEFORE_START_BYTES = 2 * 1024**3  # what driver and firmware keep for themselves stays below
BUSY_PERCENT = 90.0
MEMORY_BOUND_PERCENT = 70.0  # memory controllers are saturated well below 100 % of their time
HOST_FULL_PERCENT = 90.0
CORE_FULL_PERCENT = 97.0


class GpuFacts(msgspec.Struct, frozen=True):
    """One GPU, as the rules look at it."""

    static: GpuStatic
    now: GpuSample
    first: GpuSample | None = None  # before the server started; None if nobody looked
    throttled_percent: Mapping[str, float] = {}  # mean share of the time by reason, over the stage
    siblings_clock_mhz: float | None = None  # median of the other busy GPUs
    siblings_temperature_c: float | None = None


class StageFacts(msgspec.Struct, frozen=True):
    """One stage, as the rules look at it; means over its time."""

    client_limit: str | None = None
    capped: str | None = None  # what `max_concurrency` kept back
    waiting: float | None = None
    kv_usage: float | None = None  # highest
    preemptions: float | None = None
    gfx_percent: float | None = None  # mean of the busy GPUs
    memory_percent: float | None = None
    host_percent: float | None = None
    busiest_core_percent: float | None = None


def gpu_verdicts(facts: Sequence[GpuFacts]) -> list[Verdict]:
    """What is wrong with each GPU."""
    return [
        Verdict(rule.id, f"gpu {gpu.static.index}", seen, bad=rule.bad)
        for gpu in facts
        for rule in _GPU_RULES
        if (seen := rule.condition(gpu)) is not None
    ]


def stage_verdicts(subject: str, facts: StageFacts) -> list[Verdict]:
    """What limited a stage, the first reason first."""
    found = ((rule, rule.condition(facts)) for rule in _STAGE_RULES)
    return [Verdict(rule.id, subject, seen, bad=rule.bad) for rule, seen in found if seen is not None]


def gpu_facts(
    gpus: Sequence[GpuStatic],
    now: Mapping[int, GpuSample],
    first: Mapping[int, GpuSample],
    throttled: Mapping[int, Mapping[str, float]],
) -> list[GpuFacts]:
    """The facts of all GPUs that were looked at, each with its siblings: those of its name that are as busy."""
    return [
        GpuFacts(
            static=gpu,
            now=now[gpu.index],
            first=first.get(gpu.index),
            throttled_percent=throttled.get(gpu.index, {}),
            siblings_clock_mhz=_median(sample.gfx_clock_mhz for sample in _siblings(gpu, gpus, now)),
            siblings_temperature_c=_median(sample.temperature_hotspot_c for sample in _siblings(gpu, gpus, now)),
        )
        for gpu in gpus
        if gpu.index in now
    ]


def flags(verdicts: Sequence[Verdict], index: int) -> tuple[str, ...]:
    """What is wrong with one GPU, for its row on the screen."""
    return tuple(verdict.text for verdict in verdicts if verdict.subject == f"gpu {index}" and verdict.bad)


def _siblings(gpu: GpuStatic, gpus: Sequence[GpuStatic], now: Mapping[int, GpuSample]) -> Iterator[GpuSample]:
    for other in gpus:
        if other.index != gpu.index and other.name == gpu.name and other.index in now:
            sample = now[other.index]
            if (sample.gfx_percent or 0.0) >= MEMORY_BOUND_PERCENT:
                yield sample


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if len(known) >= 2 else None


# GPUs.


def _below_pcie(gpu: GpuFacts) -> str | None:
    width, most = gpu.now.pcie_width, gpu.static.pcie_width_max
    if width is not None and most is not None and 0 < width < most:
        return f"PCIe x{width} of x{most}"
    speed, fastest = gpu.now.pcie_speed_gts, gpu.static.pcie_speed_max_gts
    # An idle link may run slower to save power; under load it must not.
    busy = (gpu.now.gfx_percent or 0.0) >= BUSY_PERCENT
    if busy and speed is not None and fastest is not None and 0 < speed < 0.9 * fastest:
        return f"PCIe {speed:g} of {fastest:g} GT/s"
    return None


def _link_down(gpu: GpuFacts) -> str | None:
    up, total = gpu.now.links_up, gpu.static.links_total
    return f"{total - up} of {total} links down" if up is not None and total and up < total else None


def _uncorrectable(gpu: GpuFacts) -> str | None:
    count = gpu.now.ecc_uncorrectable
    return f"{count} uncorrectable memory errors" if count else None


def _throttled(gpu: GpuFacts) -> str | None:
    worst = max(gpu.throttled_percent.items(), key=lambda item: item[1], default=None)
    if worst is None or worst[1] < MOST_THROTTLED_PERCENT:
        return None
    return f"THROTTLED {worst[0]} {worst[1]:.0f}%"


def _slower(gpu: GpuFacts) -> str | None:
    clock, others = gpu.now.gfx_clock_mhz, gpu.siblings_clock_mhz
    if clock is None or not others or (gpu.now.gfx_percent or 0.0) < MEMORY_BOUND_PERCENT:
        return None
    return (
        f"straggler: clock {clock / others - 1:+.0%} of its siblings" if clock < SLOWER_THAN_SIBLINGS * others else None
    )


def _hotter(gpu: GpuFacts) -> str | None:
    heat, others = gpu.now.temperature_hotspot_c, gpu.siblings_temperature_c
    if heat is None or others is None or heat - others <= HOTTER_THAN_SIBLINGS_C:
        return None
    return f"{heat - others:.0f} C hotter than its siblings"


def _other_cap(gpu: GpuFacts) -> str | None:
    cap, default = gpu.now.power_cap_w, gpu.static.power_cap_default_w
    if cap is None or not default or abs(cap / default - 1) <= 0.01:
        return None
    return f"power cap {cap:.0f} W, by default {default:.0f} W"


def _used_before(gpu: GpuFacts) -> str | None:
    used = gpu.first.hbm_used_bytes if gpu.first is not None else None
    return f"{used / 1024**3:.1f} GiB in use before the start" if used and used > USED_BEFORE_START_BYTES else None


def _partitioned(gpu: GpuFacts) -> str | None:
    mode = gpu.static.compute_partition
    if gpu.static.vendor != "amd" or mode in (None, "", "SPX") or gpu.static.partition != 0:
        return None
    return f"compute partition {mode}, not SPX"


# Stages.


def _host_limited(stage: StageFacts) -> str | None:
    if stage.host_percent is not None and stage.host_percent >= HOST_FULL_PERCENT:
        return f"host-limited: its cores were {stage.host_percent:.0f}% busy"
    idle_gpu = stage.gfx_percent is not None and stage.gfx_percent < MEMORY_BOUND_PERCENT
    if idle_gpu and stage.busiest_core_percent is not None and stage.busiest_core_percent >= CORE_FULL_PERCENT:
        return f"host-limited: a core was {stage.busiest_core_percent:.0f}% busy, the GPUs {stage.gfx_percent:.0f}%"
    return None


def _bandwidth_bound(stage: StageFacts) -> str | None:
    if stage.memory_percent is None or stage.memory_percent < MEMORY_BOUND_PERCENT:
        return None
    return f"bandwidth-bound: memory controllers {stage.memory_percent:.0f}% busy"


def _compute_bound(stage: StageFacts) -> str | None:
    if stage.gfx_percent is None or stage.memory_percent is None:
        return None
    if stage.gfx_percent < BUSY_PERCENT or stage.memory_percent >= MEMORY_BOUND_PERCENT:
        return None
    return f"compute-bound: GPUs {stage.gfx_percent:.0f}% busy, memory controllers {stage.memory_percent:.0f}%"


class _GpuRule(NamedTuple):
    id: str
    bad: bool
    condition: Callable[[GpuFacts], str | None]


class _StageRule(NamedTuple):
    id: str
    bad: bool
    condition: Callable[[StageFacts], str | None]


_GPU_RULES = (
    _GpuRule("ecc-uncorrectable", True, _uncorrectable),
    _GpuRule("throttled", True, _throttled),
    _GpuRule("straggler", True, _slower),
    _GpuRule("hotter-than-siblings", True, _hotter),
    _GpuRule("pcie-below-maximum", True, _below_pcie),
    _GpuRule("link-down", True, _link_down),
    _GpuRule("hbm-used-before-start", True, _used_before),
    _GpuRule("partitioned", False, _partitioned),
    _GpuRule("power-cap-changed", False, _other_cap),
)
_STAGE_RULES = (
    _StageRule("client-limited", True, lambda stage: stage.client_limit),
    _StageRule("capped", False, lambda stage: stage.capped),
    _StageRule("kv-limited", False, lambda stage: kv_limit(stage.waiting, stage.kv_usage, stage.preemptions)),
    _StageRule("queueing", False, lambda stage: queueing(stage.waiting)),
    _StageRule("host-limited", True, _host_limited),
    _StageRule("bandwidth-bound", False, _bandwidth_bound),
    _StageRule("compute-bound", False, _compute_bound),
)
