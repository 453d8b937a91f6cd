"""Verdicts on GPUs and stages: one line each, with the figures behind it.

Rules are rows of two tables: an id, whether it needs attention, and a condition that returns what it saw, or None.
Unknown facts break no rule. Thresholds are named constants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from loadgen.format import counted, memory, ranges
from loadgen.parts import part_called
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import GpuStage
from loadgen.schema.samples import GpuSample, GpuStatic
from loadgen.vendors import VENDORS, is_partition

MAX_THROTTLED_PERCENT = 5.0  # share of the time that a GPU may be throttled for one reason before it is mentioned
POWER_LIMITS = frozenset({"power", "current"})  # reasons that throttle every GPU under full load, by design
AT_CAP = 0.95  # of the power cap: a GPU that is held back by it draws no less
SLOWER_THAN_SIBLINGS = 0.9  # of the siblings' median clock: with tensor parallelism all wait for the slowest
HOTTER_THAN_SIBLINGS_C = 10.0
LOW_CLOCK = 0.5
"""A share of the highest clock. A busy GPU that is slower and gives no reason is held back by a locked clock or a
setting."""
SLOW_CLOCK = 0.4
"""A share of the highest clock. Matrix products at the power cap run at 53 % of it, or more; a GPU that hangs in its
lowest clock at 3 %."""
MIN_HBM_SHARE = 0.95  # of the data sheet's: drivers and ECC take less than the rest, and a lost stack is 12 %
USED_BEFORE_START_BYTES = 2 * 1024**3  # driver and firmware use less than this
BUSY_PERCENT = 90.0
IDLE_BELOW_PERCENT = 70.0  # activity below which a GPU often waits
BANDWIDTH_BOUND_PERCENT = 70.0
"""A share of the memory's peak rate: what decode reaches where it waits for nothing else. A copy on an H100 reaches
89."""
COMPUTE_BOUND_PERCENT = 40.0
"""MFU: what prefill reaches where it waits for nothing else. Large matrix products on an H100 reach 67."""
MIN_RATE_S = 100.0  # errors are counted every ten seconds: over less, a rate of them is mostly chance
HOST_FULL_PERCENT = 90.0
MAX_STEAL_PERCENT = 5
CORE_FULL_PERCENT = 97.0
KV_FULL = 0.95


class GpuFacts(msgspec.Struct, frozen=True):
    """One GPU, as input of the rules."""

    static: GpuStatic
    now: GpuSample
    before_start: GpuSample | None = None  # before vramp started the server; None if not sampled, or if it did not
    throttled_percent: Mapping[str, float] = {}  # mean share of the time by reason, over the stage
    siblings_clock_mhz: float | None = None  # median of the other busy GPUs
    siblings_temperature_c: float | None = None
    siblings_links: tuple[int, ...] = ()  # links of the other GPUs with its name, busy or not
    of_server: bool = True  # problems of other GPUs are only information


class StageFacts(msgspec.Struct, frozen=True):
    """One stage, as input of the rules; means over its time."""

    client_limit: str | None = None
    buffered: str | None = None  # how something before the client holds the streams back
    capped: str | None = None  # what `max_concurrency` kept back
    others: str | None = None  # others' traffic at the same time
    waiting: float | None = None
    kv_usage: float | None = None  # highest
    preemptions: float | None = None
    is_loaded: bool = True  # whether somebody sends requests
    gfx_percent: float | None = None  # activity: mean of the GPUs that are active at all
    memory_rate_percent: float | None = None  # of the memory's peak rate, likewise; see `memory_rate`
    mfu_percent: float | None = None
    host_percent: float | None = None
    busiest_core_percent: float | None = None
    rising: str | None = None  # what rose at the same load, and by how much
    steal_percent: float | None = None  # of the cores' time: what the hypervisor gave to others


def memory_rate(static: GpuStatic, dram_percent: float | None, memory_percent: float | None) -> float | None:
    """The share of its memory's peak rate that a GPU used; None if unknown.

    `memory_percent` is that of AMD's memory controllers, and the share of the time for NVIDIA: a few bytes fill it.
    """
    if dram_percent is not None or static.vendor == "nvidia":
        return dram_percent
    return memory_percent


def gpu_verdicts(facts: Sequence[GpuFacts]) -> list[Verdict]:
    return [
        Verdict(id, f"gpu {gpu.static.index}", seen, bad=bad and gpu.of_server)
        for gpu in facts
        for id, bad, condition in _GPU_RULES
        if (seen := condition(gpu)) is not None
    ]


def stage_verdicts(subject: str, facts: StageFacts) -> list[Verdict]:
    """What limited a stage, most important first."""
    found = ((id, bad, condition(facts)) for id, bad, condition in _STAGE_RULES)
    return [Verdict(id, subject, seen, bad=bad) for id, bad, seen in found if seen is not None]


def error_verdicts(
    subject: str, gpus: Sequence[GpuStage], span_s: float, of_others: Collection[int] = ()
) -> list[Verdict]:
    """New errors of each GPU in a stage of this length: its figures may be those of a failing GPU.

    `of_others` are the numbers of GPUs that the server does not use.
    """
    found = []
    for gpu in gpus:
        more = {"xids": _xid(gpu.xid_last)}
        if span_s >= MIN_RATE_S:
            # What ECC corrects costs nothing; how often it has to is what can be compared.
            more["ecc_correctable"] = f", about {3600 * (gpu.ecc_correctable or 0) / span_s:,.0f} an hour"
        for id, bad, name, noun in _NEW_ERRORS:
            if count := getattr(gpu, name):
                text = f"gpu {gpu.index}: {counted(count, noun)}{more.get(name, '')}"
                found.append(Verdict(id, subject, text, bad=bad and gpu.index not in of_others))
    return found


def _xid(last: int | None) -> str:
    return f", the last one Xid {last}" if last is not None else ""


def gpu_facts(
    gpus: Sequence[GpuStatic],
    now: Mapping[int, GpuSample],
    before_start: Mapping[int, GpuSample],
    throttled: Mapping[int, Mapping[str, float]],
    of_others: Collection[int] = (),
) -> list[GpuFacts]:
    """The facts of all sampled GPUs, each with its siblings: GPUs of the same name that are as busy.

    `of_others` are the numbers of GPUs that the server does not use.
    """
    return [
        GpuFacts(
            static=gpu,
            now=now[gpu.index],
            before_start=before_start.get(gpu.index),
            throttled_percent=throttled.get(gpu.index, {}),
            siblings_clock_mhz=_median(sample.gfx_clock_mhz for sample in _siblings(gpu, gpus, now)),
            siblings_temperature_c=_median(sample.temperature_hotspot_c for sample in _siblings(gpu, gpus, now)),
            siblings_links=tuple(other.links_total or 0 for other in _alike(gpu, gpus)),
            of_server=gpu.index not in of_others,
        )
        for gpu in gpus
        if gpu.index in now
    ]


def flags(verdicts: Sequence[Verdict], index: int) -> tuple[str, ...]:
    """The problems of one GPU, for its row on the screen."""
    return tuple(verdict.text for verdict in verdicts if verdict.subject == f"gpu {index}" and verdict.bad)


def _siblings(gpu: GpuStatic, gpus: Sequence[GpuStatic], now: Mapping[int, GpuSample]) -> Iterator[GpuSample]:
    for other in _alike(gpu, gpus):
        if other.index in now and (now[other.index].gfx_percent or 0.0) >= IDLE_BELOW_PERCENT:
            yield now[other.index]


def _alike(gpu: GpuStatic, gpus: Sequence[GpuStatic]) -> Iterator[GpuStatic]:
    """The other sockets of its name."""
    return (other for other in gpus if other.index != gpu.index and other.name == gpu.name and other.partition == 0)


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if len(known) >= 2 else None


def _below_pcie(gpu: GpuFacts) -> str | None:
    width, most = gpu.now.pcie_width, gpu.static.pcie_width_max
    if width is not None and most is not None and 0 < width < most:
        return f"PCIe x{width} of x{most}"
    speed, fastest = gpu.now.pcie_speed_gts, gpu.static.pcie_speed_max_gts
    # An idle link may run slower to save power; under load it must not.
    if _is_busy(gpu) and speed is not None and fastest is not None and 0 < speed < 0.9 * fastest:
        return f"PCIe {speed:g} of {fastest:g} GT/s"
    return None


def _link_down(gpu: GpuFacts) -> str | None:
    up, total = gpu.now.links_up, gpu.static.links_total
    if up is not None and total and up < total:
        return f"{total - up} of {total} links down"
    if len(gpu.siblings_links) < 2 or gpu.static.partition:
        return None
    # The library does not report a link that never came up: only the siblings show it. Some GPUs have none by design.
    expected = median(gpu.siblings_links) if total else min(gpu.siblings_links)
    return f"{total or 0} links up, its siblings have {expected:.0f}" if (total or 0) < expected else None


def _errors(count: int | None, kind: str) -> str | None:
    return f"{count} {kind} memory errors" if count else None


def _xids(gpu: GpuFacts) -> str | None:
    count = gpu.now.xids
    return f"{counted(count, 'Xid error')} in this run{_xid(gpu.now.xid_last)}" if count else None


def _remap(gpu: GpuFacts) -> str | None:
    if gpu.now.remap_failed:
        return "a bad row of memory could not be replaced: replace the GPU"
    return "a bad row of memory waits for a reset of the GPU" if gpu.now.remap_pending else None


def _retired(gpu: GpuFacts) -> str | None:
    pages, rows = gpu.now.bad_pages, gpu.now.rows_remapped
    if pages:
        return f"{counted(pages, 'bad page')} of memory out of use"
    return f"{counted(rows, 'row')} of memory remapped" if rows else None


def _throttled(gpu: GpuFacts) -> str | None:
    reason, percent = _held_back(gpu, lambda reason: reason not in POWER_LIMITS)
    return f"THROTTLED {reason} {percent:.0f}%" if reason else None


def _power_capped(gpu: GpuFacts) -> str | None:
    reason, percent = _held_back(gpu, POWER_LIMITS.__contains__)
    if not reason:
        return None
    power, cap = gpu.now.power_w, gpu.now.power_cap_w
    most = 100 * power / (AT_CAP * cap) if reason == "power" and power is not None and cap else 100.0
    if percent <= most:
        return f"at its {reason} limit {percent:.0f}% of the time"
    # NVML's counter runs on between bursts of work: an H200 that drew 273 W of 700 on average counted 99 % of the time.
    return f"at its power limit at most {most:.0f}% of the time" if most >= MAX_THROTTLED_PERCENT else None


def _held_back(gpu: GpuFacts, counts: Callable[[str], bool]) -> tuple[str, float]:
    """The most frequent of these reasons for throttling; empty if none is worth mentioning."""
    shares = [(percent, reason) for reason, percent in gpu.throttled_percent.items() if counts(reason)]
    percent, reason = max(shares, default=(0.0, ""))
    return (reason, percent) if percent >= MAX_THROTTLED_PERCENT else ("", 0.0)


def _slower(gpu: GpuFacts) -> str | None:
    clock, others = gpu.now.gfx_clock_mhz, gpu.siblings_clock_mhz
    if clock is None or not others or (gpu.now.gfx_percent or 0.0) < IDLE_BELOW_PERCENT:
        return None
    change = clock / others - 1
    return f"straggler: clock {change:+.0%} of its siblings" if clock < SLOWER_THAN_SIBLINGS * others else None


def _low_clock(gpu: GpuFacts) -> str | None:
    clock, most = gpu.now.gfx_clock_mhz, gpu.static.gfx_clock_max_mhz
    if clock is None or not most or not SLOW_CLOCK * most <= clock < LOW_CLOCK * most or not _is_busy(gpu):
        return None
    if _is_at_cap(gpu) or _held_back(gpu, lambda reason: True)[0]:
        return None
    return f"clock {clock:.0f} of {most:.0f} MHz under load, and no reason given"


def _slow_clock(gpu: GpuFacts) -> str | None:
    most = gpu.static.gfx_clock_max_mhz
    return _slow(gpu, most, f"{most:.0f} MHz") if most else None


def _slow_for_its_part(gpu: GpuFacts) -> str | None:
    part = None if gpu.static.gfx_clock_max_mhz else part_called(gpu.static.name)
    most = None if part is None else part.clock_mhz
    return _slow(gpu, most, f"the {most:.0f} MHz of its data sheet") if most else None


def _slow(gpu: GpuFacts, most: float, words: str) -> str | None:
    """A power cap is a good reason for a low clock; low power is no sign of anything."""
    clock = gpu.now.gfx_clock_mhz
    if clock is None or clock >= SLOW_CLOCK * most or not _is_busy(gpu):
        return None
    if _is_at_cap(gpu) or _power_capped(gpu) is not None:
        return None
    return f"clock {clock:.0f} of {words}, {gpu.now.gfx_percent:.0f}% busy"


def _is_at_cap(gpu: GpuFacts) -> bool:
    power, cap = gpu.now.power_w, gpu.now.power_cap_w
    return power is not None and cap is not None and power >= AT_CAP * cap


def _is_busy(gpu: GpuFacts) -> bool:
    return (gpu.now.gfx_percent or 0.0) >= BUSY_PERCENT


def _below_rated(gpu: GpuFacts) -> str | None:
    part, total_bytes = part_called(gpu.static.name), gpu.static.hbm_total_bytes
    # A virtual machine's, or a partition's, may be a share.
    is_whole = not is_partition(gpu.static.compute_partition) and gpu.static.virtualization != "GUEST"
    if part is None or total_bytes is None or not is_whole or total_bytes >= MIN_HBM_SHARE * (part.hbm_mib << 20):
        return None
    return f"memory {memory(total_bytes)} of the {memory(part.hbm_mib << 20)} of its data sheet"


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
    used = gpu.before_start.hbm_used_bytes if gpu.before_start is not None else None
    return f"{memory(used)} in use before the start" if used and used > USED_BEFORE_START_BYTES else None


def _partitioned(gpu: GpuFacts) -> str | None:
    whole = next((vendor.whole_gpu for vendor in VENDORS if vendor.name == gpu.static.vendor), "")
    mode = gpu.static.compute_partition
    if not whole or not is_partition(mode) or gpu.static.partition != 0:
        return None
    return f"compute partition {mode}, not {whole}"


def _bandwidth_bound(stage: StageFacts) -> str | None:
    percent = stage.memory_rate_percent
    is_bound = percent is not None and percent >= BANDWIDTH_BOUND_PERCENT
    return f"bandwidth-bound: memory at {percent:.0f}% of its peak rate" if is_bound else None


def _compute_bound(stage: StageFacts) -> str | None:
    percent = stage.mfu_percent
    is_bound = percent is not None and percent >= COMPUTE_BOUND_PERCENT and _bandwidth_bound(stage) is None
    return f"compute-bound: MFU {percent:.0f}%" if is_bound else None


def _host_limited(stage: StageFacts) -> str | None:
    if not stage.is_loaded or _compute_bound(stage) or _bandwidth_bound(stage):
        return None
    if stage.steal_percent is not None and stage.steal_percent >= MAX_STEAL_PERCENT:
        return f"host-limited: the hypervisor gave {stage.steal_percent:.0f}% of its cores' time to others (steal)"
    if stage.host_percent is not None and stage.host_percent >= HOST_FULL_PERCENT:
        return f"host-limited: its cores were {stage.host_percent:.0f}% busy"
    idle_gpu = stage.gfx_percent is not None and stage.gfx_percent < IDLE_BELOW_PERCENT
    if idle_gpu and stage.busiest_core_percent is not None and stage.busiest_core_percent >= CORE_FULL_PERCENT:
        return f"host-limited: a core was {stage.busiest_core_percent:.0f}% busy, the GPUs {stage.gfx_percent:.0f}%"
    return None


_GPU_RULES: tuple[tuple[str, bool, Callable[[GpuFacts], str | None]], ...] = (
    ("xid", True, _xids),
    ("ecc-uncorrectable", True, lambda gpu: _errors(gpu.now.ecc_uncorrectable, "uncorrectable")),
    ("ecc-deferred", True, lambda gpu: _errors(gpu.now.ecc_deferred, "deferred")),
    ("row-remap", True, _remap),
    ("throttled", True, _throttled),
    ("power-capped", False, _power_capped),
    ("straggler", True, _slower),
    ("slow-clock", True, _slow_clock),
    ("slow-clock", False, _slow_for_its_part),  # clocks of data sheets are unsure
    ("low-clock", True, _low_clock),
    ("hotter-than-siblings", True, _hotter),
    ("pcie-below-maximum", True, _below_pcie),
    ("link-down", True, _link_down),
    ("hbm-below-rated", True, _below_rated),
    ("hbm-used-before-start", True, _used_before),
    ("partitioned", False, _partitioned),
    ("power-cap-changed", False, _other_cap),
    ("memory-retired", False, _retired),
)
_NEW_ERRORS = (
    ("xid", True, "xids", "Xid error"),
    ("ecc-uncorrectable", True, "ecc_uncorrectable", "new uncorrectable memory error"),
    ("ecc-deferred", True, "ecc_deferred", "new deferred memory error"),
    ("ecc-correctable", False, "ecc_correctable", "new correctable memory error"),
    ("memory-retired", True, "bad_pages", "new bad page"),
    ("memory-retired", True, "rows_remapped", "newly remapped row"),
)
_STAGE_RULES: tuple[tuple[str, bool, Callable[[StageFacts], str | None]], ...] = (
    ("client-limited", True, lambda stage: stage.client_limit),
    ("stream-buffered", True, lambda stage: stage.buffered),
    ("capped", False, lambda stage: stage.capped),
    ("other-traffic", False, lambda stage: stage.others),
    ("kv-limited", False, lambda stage: kv_limit(stage.waiting, stage.kv_usage, stage.preemptions)),
    ("queueing", False, lambda stage: queueing(stage.waiting)),
    ("host-limited", True, _host_limited),
    ("bandwidth-bound", False, _bandwidth_bound),
    ("compute-bound", False, _compute_bound),
    ("rising", False, lambda stage: stage.rising),
)


def kv_limit(waiting: float | None, kv_usage: float | None, preemptions: float | None = None) -> str | None:
    if preemptions:
        return f"KV-limited: {preemptions:.0f} preemptions"
    if waiting is None or waiting < 1 or kv_usage is None or kv_usage < KV_FULL:
        return None
    return f"KV-limited: {_about(waiting)} waiting, KV cache {kv_usage:.0%} full"


def queueing(waiting: float | None) -> str | None:
    if waiting is None or waiting < 1:
        return None
    return f"engine-limited: queueing, {_about(waiting)} waiting"


def _about(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


def merged(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Each text once, with all its subjects: `gpu 0-7`; apart for those that need attention and those that do not."""
    alike: defaultdict[tuple[str, bool], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        alike[verdict.text, verdict.bad].append(verdict)
    found = []
    for same in alike.values():
        names = [one.subject.removeprefix("gpu ") for one in same]
        are_gpus = all(name.isdecimal() for name in names)
        subject = f"gpu {ranges(map(int, names))}" if are_gpus else ", ".join(one.subject for one in same)
        found.append(msgspec.structs.replace(same[0], subject=subject))
    return found
