"""The GPUs: a row for each, what is wrong with it at the right end, and what the tokens cost in energy.

Columns appear as the width allows, the most needed first, and always leave room for the flags. Where the rows do not
fit, partitions of one socket share one, and then the worst come first and the title says how many there are. What is
not measured is `-`, with the reason at the flags' place when nothing is; old samples dim and say their age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from loadgen import format as fmt
from loadgen.metrics.samples import GpuSample, GpuStatic
from loadgen.metrics.snapshot import GpuView, Snapshot
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, bar, cropped, spread, titled

_NUMBER = 4
_BAR = 8
_BUSY = _BAR + 6
_FLAGS = 24  # the least that is left for them
_TITLED_FROM = 5  # rows; below, the heads are the title


class _Line(NamedTuple):
    """One row: a device, or a socket's first with `others` of the same socket folded into it."""

    gpu: GpuView
    others: int = 0


class _Column(NamedTuple):
    head: str
    cells: int
    value: Callable[[GpuStatic, GpuSample], str]


def gpus(frame: Frame, width: int, height: int) -> Rows:
    """As many rows as the height allows; one that says why where there is no GPU."""
    snapshot = frame.snapshot
    if not snapshot.gpus:
        return [titled("gpus", ((fmt.plain(snapshot.telemetry), "dim"),), width)]
    top = 1 if height < _TITLED_FROM else 2
    lines, left_out = _fitting(snapshot.gpus, max(1, height - top))
    hidden = f"worst {len(lines)}, {left_out} more" if left_out else ""
    columns = _columns(width)
    body = [_row(line, columns, width) for line in lines]
    if snapshot.gpus_stale:
        body = [tuple((text, "dim") for text, _ in row) for row in body]
    if top == 1:
        return [_heads(columns, " ".join(filter(None, (_age(snapshot), hidden))), width), *body]
    below = len(body) + 3 <= height
    legend = _legend(snapshot, hidden) if below else (*energy(frame), *_legend(snapshot, hidden))
    rows = [titled("gpus", legend, width), _heads(columns, "", width), *body]
    return [*rows, cropped((*energy(frame), *_straggler(snapshot)), width)] if below else rows


# Which rows.


def _fitting(found: Sequence[GpuView], room: int) -> tuple[list[_Line], int]:
    """The rows to show, and how many have no room."""
    lines = [_Line(gpu) for gpu in found]
    if len(lines) > room:
        lines = _folded(found)
    if len(lines) <= room:
        return lines, 0
    return sorted(lines, key=_badness)[:room], len(lines) - room


def _badness(line: _Line) -> tuple[int, bool]:
    """The lowest is the worst; equals keep their order, so that rows do not jump with every degree."""
    return -len(line.gpu.flags), line.gpu.sample is not None


def _folded(found: Sequence[GpuView]) -> list[_Line]:
    sockets: dict[str, list[GpuView]] = {}
    for gpu in found:
        sockets.setdefault(gpu.static.socket or f"device {gpu.static.index}", []).append(gpu)
    return [_one_of(sorted(devices, key=lambda gpu: gpu.static.partition)) for devices in sockets.values()]


def _one_of(devices: Sequence[GpuView]) -> _Line:
    """The first device with all its socket's memory and flags; power and heat are the socket's anyway."""
    first = devices[0]
    if len(devices) == 1:
        return _Line(first)
    total = _sum([gpu.static.hbm_total_bytes for gpu in devices])
    used = _sum([gpu.sample.hbm_used_bytes if gpu.sample is not None else None for gpu in devices])
    flags = tuple(dict.fromkeys(flag for gpu in devices for flag in gpu.flags))
    static = msgspec.structs.replace(first.static, hbm_total_bytes=total)
    sample = msgspec.structs.replace(first.sample, hbm_used_bytes=used) if first.sample is not None else None
    return _Line(GpuView(static, sample, flags), others=len(devices) - 1)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


# What stands in them.


def _row(line: _Line, columns: Sequence[_Column], width: int) -> Row:
    static, flags = line.gpu.static, line.gpu.flags
    sample = line.gpu.sample or GpuSample(index=static.index, t_s=0.0)
    number = f"{static.index}+{line.others}" if line.others else str(static.index)
    busy = None if sample.gfx_percent is None else sample.gfx_percent / 100
    cells = "".join(_cell(column.value(static, sample), column.cells) for column in columns)
    row: Row = (
        (f"{number:>{_NUMBER}} ", "bad" if flags else "text"),
        *bar(busy, _BAR, "text"),
        (f"{fmt.percent(busy):>5}", "text"),
        (cells, "text"),
        ("  ", "text"),
        _flags(line.gpu),
    )
    return cropped(row, width)


def _flags(gpu: GpuView) -> Word:
    if gpu.flags:
        return (fmt.plain("; ".join(gpu.flags)), "bad")
    if gpu.sample is None:
        return ("no sample yet", "dim")
    reasons = Counter(gpu.sample.missing.values()).most_common(1)
    blind = gpu.sample.gfx_percent is None and gpu.sample.power_w is None
    return (fmt.plain(reasons[0][0]) if blind and reasons else fmt.UNKNOWN, "dim")


def _heads(columns: Sequence[_Column], flags: str, width: int) -> Row:
    heads = "".join(f"{column.head:>{column.cells}}" for column in columns)
    row: Row = ((f"{'gpu':>{_NUMBER}} {'busy':<{_BUSY - 1}}{heads}  flags", "dim"),)
    return cropped(spread(row, ((flags, "warn"),) if flags else (), width), width)


def _columns(width: int) -> list[_Column]:
    """The most needed first; one that has no room leaves it to the next."""
    room, shown = width - _NUMBER - _BUSY - _FLAGS, []
    for column in _COLUMNS:
        if column.cells <= room:
            shown.append(column)
            room -= column.cells
    return shown


def _cell(text: str, cells: int) -> str:
    return f"{text[: cells - 1]:>{cells}}"


def _of(value: str, most: str) -> str:
    return value if most == fmt.UNKNOWN else f"{value}/{most}"


def _both(first: str, second: str) -> str:
    return fmt.UNKNOWN if first == second == fmt.UNKNOWN else f"{first}/{second}"


def _hbm(static: GpuStatic, sample: GpuSample) -> str:
    return _of(fmt.count(fmt.gib(sample.hbm_used_bytes)), fmt.count(fmt.gib(static.hbm_total_bytes)))


def _pcie(static: GpuStatic, sample: GpuSample) -> str:
    if sample.pcie_width is None:
        return fmt.UNKNOWN
    return f"x{sample.pcie_width} {fmt.count(sample.pcie_speed_gts)}"


_COLUMNS = (
    _Column(
        "HBM GiB",
        9,
        _hbm,
    ),
    _Column("power W", 9, lambda static, now: _of(fmt.count(now.power_w), fmt.count(now.power_cap_w))),
    _Column(
        "hot/mem C",
        10,
        lambda static, now: _both(fmt.count(now.temperature_hotspot_c), fmt.count(now.temperature_memory_c)),
    ),
    _Column("MHz", 6, lambda static, now: fmt.count(now.gfx_clock_mhz)),
    _Column("max", 5, lambda static, now: fmt.count(static.gfx_clock_max_mhz)),
    _Column("mem%", 5, lambda static, now: fmt.count(now.memory_percent)),
    _Column("PCIe", 8, _pcie),
    _Column("links", 6, lambda static, now: _of(fmt.count(now.links_up), fmt.count(static.links_total))),
    _Column("ECC c/u", 8, lambda static, now: _both(fmt.count(now.ecc_correctable), fmt.count(now.ecc_uncorrectable))),
    _Column(
        "links r/w B", 12, lambda static, now: _both(fmt.number(now.link_read_bytes), fmt.number(now.link_write_bytes))
    ),
    _Column("energy J", 9, lambda static, now: fmt.number(now.energy_j)),
    _Column("mem MHz", 8, lambda static, now: fmt.count(now.memory_clock_mhz)),
    _Column("name", 22, lambda static, now: fmt.plain(static.name)),
)
"""The most needed first. Energy and traffic are the devices' own counters."""

# What stands around them.


def _legend(snapshot: Snapshot, hidden: str) -> Row:
    """What measures, whether that is all, and how old it is."""
    words: tuple[Word, ...] = ((snapshot.telemetry, "dim"), (hidden, "warn"), (_age(snapshot), "warn"))
    return tuple((f"  {fmt.plain(text)}", role) for text, role in words if text)


def _age(snapshot: Snapshot) -> str:
    """How old the newest sample is; the host's samples, which do not depend on the GPUs', tell the time."""
    if not snapshot.gpus_stale:
        return ""
    newest_s = max((gpu.sample.t_s for gpu in snapshot.gpus if gpu.sample is not None), default=None)
    if newest_s is None or snapshot.host is None:
        return "STALE"
    return f"STALE: {fmt.duration(snapshot.host.t_s - newest_s)} old"


def energy(frame: Frame) -> Row:
    """What a token costs, what a watt gives, and what all sockets draw."""
    stage = frame.stage
    joules, per_watt = (stage.joules_per_output_token, stage.tokens_per_s_per_w) if stage else (None, None)
    watts = [gpu.sample.power_w for gpu in frame.snapshot.gpus if gpu.sample is not None and gpu.static.partition == 0]
    known = [value for value in watts if value is not None]
    return (
        (" J/token ", "dim"),
        (f"{fmt.number(joules):>5}", "strong"),
        ("   tok/s/W ", "dim"),
        (f"{fmt.number(per_watt):>5}", "text"),
        ("   all ", "dim"),
        (f"{fmt.number(sum(known) if known else None):>5} W", "text"),
    )


def _straggler(snapshot: Snapshot) -> Row:
    for verdict in snapshot.verdicts:
        if verdict.id == "straggler":
            text = verdict.text.removeprefix("straggler: ").removesuffix(" of its siblings")
            return (("   straggler ", "dim"), (fmt.plain(f"{verdict.subject}: {text}"), "bad"))
    return ()
