"""The GPUs as a table with their flags at the right end, or as a grid of cells with their history.

In the table, columns appear as the width allows, the most needed first, and always leave room for the flags. If the
rows do not fit, partitions of a socket share one; if they still do not, the worst come first and the title counts the
rest. Unmeasured values are `-`, with the reason in place of the flags if a GPU measures nothing; stale samples are
dimmed, with their age.

In the grid, every strip has a fixed range and the time axis of the charts, so that cells can be compared by eye. If the
cells do not fit, the table is shown instead. Below it are the processes that hold GPU memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from loadgen import format as fmt
from loadgen.schema.samples import GpuProcess, GpuSample
from loadgen.schema.snapshot import GpuView, Snapshot
from tui.charts.chart import axis_row, lined_columns, mark_columns, traced
from tui.charts.definitions import GPU_STRIPS, Series, of_most
from tui.charts.scale import Scale
from tui.charts.timeline import Folded
from tui.panels.frame import Frame
from tui.widgets import rows as r
from tui.widgets.rows import GAP, Row, Rows, Word, titled

_NUMBER = 4
_BAR = 8
_BUSY = _BAR + 6
_FLAGS = 24  # cells that are always left for them
_TITLED_FROM = 5  # rows; with fewer, the heads replace the title
_MIN_WIDTH, _MAX_COLUMNS = 36, 4  # of a cell; of the grid
_MIN_ROWS, _ROOMY = 2, 5  # of a cell: a title and a strip; a title and all strips
_GUTTER, _MIN_CELLS = 18, 2  # cells left of a strip; cells of the strip itself
_MIN_HOLDERS = 3  # rows for processes with their title; more, up to a quarter of the view

_Line = tuple[GpuView, int]  # one row: a device, or a socket's first and how many others of it are folded into it


class _Figure(NamedTuple):
    head: str
    cells: int
    value: Callable[[GpuView, GpuSample], str]
    everywhere: bool = True  # otherwise shown only if a GPU reports it


def gpus(frame: Frame, width: int, height: int) -> Rows:
    snapshot = frame.snapshot
    if not snapshot.gpus:
        return [titled("gpus", ((fmt.plain(snapshot.telemetry), "dim"),), width)]
    top = 1 if height < _TITLED_FROM else 2
    lines, left_out = _fitting(snapshot.gpus, max(1, height - top))
    hidden = f"worst {len(lines)}, {left_out} more" if left_out else ""
    columns = _columns(width, snapshot.gpus)
    body = [_row(gpu, others, columns) for gpu, others in lines]
    if snapshot.gpus_stale:
        body = [r.in_role(row, "dim") for row in body]
    if top == 1:
        return [_heads(columns, " ".join(filter(None, (_age(snapshot), hidden))), width), *body]
    below = len(body) + 3 <= height
    words: tuple[Word, ...] = ((snapshot.telemetry, "dim"), (hidden, "warn"), (_age(snapshot), "warn"))
    legend = tuple((f"  {fmt.plain(text)}", role) for text, role in words if text)
    title = titled("gpus", legend if below else (*_energy(frame), *legend), width)
    last = [(*_energy(frame), *_straggler(snapshot))] if below else []
    return [title, _heads(columns, "", width), *body, *last]


def _fitting(found: Sequence[GpuView], room: int) -> tuple[list[_Line], int]:
    """Return the rows to show and how many do not fit; equally bad ones keep their order, so that rows do not jump."""
    lines: list[_Line] = [(gpu, 0) for gpu in found]
    if len(lines) > room:
        sockets: dict[str, list[GpuView]] = {}
        for gpu in found:
            sockets.setdefault(gpu.static.socket or f"device {gpu.static.index}", []).append(gpu)
        lines = [_folded(sorted(devices, key=lambda gpu: gpu.static.partition)) for devices in sockets.values()]
    if len(lines) <= room:
        return lines, 0
    worst = sorted(lines, key=lambda line: (-len(line[0].flags), line[0].sample is not None))
    return worst[:room], len(lines) - room


def _folded(devices: Sequence[GpuView]) -> _Line:
    """Return the first device with the memory and flags of its whole socket; power and heat are per socket anyway."""
    first = devices[0]
    if len(devices) == 1:
        return first, 0
    total = _sum([gpu.static.hbm_total_bytes for gpu in devices])
    used = _sum([gpu.sample.hbm_used_bytes if gpu.sample is not None else None for gpu in devices])
    flags = tuple(dict.fromkeys(flag for gpu in devices for flag in gpu.flags))
    static = msgspec.structs.replace(first.static, hbm_total_bytes=total)
    sample = msgspec.structs.replace(first.sample, hbm_used_bytes=used) if first.sample is not None else None
    return GpuView(static, sample, flags, first.pace, first.of_server), len(devices) - 1


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def sample_of(gpu: GpuView) -> GpuSample:
    """Return the newest sample, or one without values if there is none yet."""
    return gpu.sample or GpuSample(index=gpu.static.index, t_s=0.0)


def _row(gpu: GpuView, others: int, columns: Sequence[_Figure]) -> Row:
    index, now = gpu.static.index, sample_of(gpu)
    # In a row of its own, a partition shows its own utilization: the socket's covers all partitions.
    percent = now.gfx_percent if others or now.xcp_percent is None else now.xcp_percent
    busy = None if percent is None else percent / 100
    cells = [f"{column.value(gpu, now)[: column.cells - 1]:>{column.cells}}" for column in columns]
    return (
        r.target(f"gpu {index}"),
        (f"{f'{index}+{others}' if others else index:>{_NUMBER}} ", "bad" if gpu.flags else "text"),
        *r.bar(busy, _BAR, "text"),
        (f"{fmt.percent(busy):>5}{''.join(cells)}  ", "text"),
        _flags(gpu),
    )


def _flags(gpu: GpuView) -> Word:
    if gpu.flags:
        return (fmt.plain("; ".join(gpu.flags)), "bad")
    if gpu.sample is None:
        return ("no sample yet", "dim")
    reasons = Counter(gpu.sample.missing.values()).most_common(1)
    blind = gpu.sample.gfx_percent is None and gpu.sample.power_w is None
    return (fmt.plain(reasons[0][0]) if blind and reasons else fmt.UNKNOWN, "dim")


def _heads(columns: Sequence[_Figure], flags: str, width: int) -> Row:
    heads = "".join(f"{column.head:>{column.cells}}" for column in columns)
    row: Row = ((f"{'gpu':>{_NUMBER}} {'busy':<{_BUSY - 1}}{heads}  flags", "dim"),)
    return r.spread(row, ((flags, "warn"),) if flags else (), width)


def _columns(width: int, found: Sequence[GpuView]) -> list[_Figure]:
    """Return the columns that fit, the most needed first; one that does not fit is skipped."""
    room, shown = width - _NUMBER - _BUSY - _FLAGS, []
    for column in _COLUMNS:
        reported = column.everywhere or any(column.value(gpu, sample_of(gpu)) != fmt.UNKNOWN for gpu in found)
        if reported and column.cells <= room:
            shown.append(column)
            room -= column.cells
    return shown


def _both(first: str, second: str) -> str:
    return fmt.UNKNOWN if first == second == fmt.UNKNOWN else f"{first}/{second}"


_COLUMNS = (
    _Figure("host", 12, lambda gpu, _: fmt.plain(gpu.static.host) or fmt.UNKNOWN, everywhere=False),
    _Figure("HBM GiB", 9, lambda gpu, now: of_most(fmt.gib(now.hbm_used_bytes), fmt.gib(gpu.static.hbm_total_bytes))),
    _Figure("power W", 9, lambda _, now: of_most(now.power_w, now.power_cap_w)),
    _Figure(
        "hot/mem C", 10, lambda _, now: _both(fmt.count(now.temperature_hotspot_c), fmt.count(now.temperature_memory_c))
    ),
    _Figure("MHz", 6, lambda _, now: fmt.count(now.gfx_clock_mhz)),
    _Figure("max", 5, lambda gpu, _: fmt.count(gpu.static.gfx_clock_max_mhz)),
    _Figure("mem%", 5, lambda _, now: fmt.count(now.memory_percent)),
    _Figure(
        "PCIe",
        8,
        lambda _, now: fmt.UNKNOWN if now.pcie_width is None else f"x{now.pcie_width} {fmt.count(now.pcie_speed_gts)}",
    ),
    _Figure("links", 6, lambda gpu, now: of_most(now.links_up, gpu.static.links_total)),
    _Figure("ECC c/u", 8, lambda _, now: _both(fmt.count(now.ecc_correctable), fmt.count(now.ecc_uncorrectable))),
    _Figure(
        "retired",  # memory pages or rows
        8,
        lambda _, now: fmt.count(now.rows_remapped if now.bad_pages is None else now.bad_pages),
        everywhere=False,
    ),
    _Figure("Xid", 5, lambda _, now: fmt.count(now.xids), everywhere=False),
    _Figure(
        "SM/DRAM%", 9, lambda _, now: _both(fmt.count(now.sm_percent), fmt.count(now.dram_percent)), everywhere=False
    ),
    _Figure(
        "links r/w B/s",
        14,
        lambda gpu, _: _both(fmt.number(gpu.pace.link_read_bytes_per_s), fmt.number(gpu.pace.link_write_bytes_per_s)),
    ),
    _Figure("PCIe B/s", 9, lambda _, now: fmt.number(now.pcie_bytes_per_s), everywhere=False),
    _Figure("J, run", 7, lambda gpu, _: fmt.number(gpu.pace.energy_j)),
    _Figure("mem MHz", 8, lambda _, now: fmt.count(now.memory_clock_mhz)),
    _Figure("name", 22, lambda gpu, _: fmt.plain(gpu.static.name)),
)
"""The most needed first."""


def _age(snapshot: Snapshot) -> str:
    """Return the age of the newest sample, by the time of the host's samples, which do not depend on the GPUs."""
    if not snapshot.gpus_stale:
        return ""
    newest_s = max((gpu.sample.t_s for gpu in snapshot.gpus if gpu.sample is not None), default=None)
    if newest_s is None or snapshot.host is None:
        return "STALE"
    return f"STALE: {fmt.duration(snapshot.host.t_s - newest_s)} old"


def _energy(frame: Frame) -> Row:
    energy = frame.stage.energy if frame.stage is not None else None
    joules, per_watt = (energy.joules_per_output_token, energy.tokens_per_s_per_w) if energy else (None, None)
    ours = [gpu for gpu in frame.snapshot.gpus if gpu.of_server and gpu.static.partition == 0]
    known = [watts for gpu in ours if (watts := sample_of(gpu).power_w) is not None]
    figures = [("all", f"{fmt.number(sum(known) if known else None):>5} W", "text")]
    if frame.snapshot.has_server:
        figures.insert(0, ("tok/s/W", f"{fmt.number(per_watt):>5}", "text"))
        figures.insert(0, ("J/token", f"{fmt.number(joules):>5}", "strong"))
    return r.facts("   ", *figures)


def _straggler(snapshot: Snapshot) -> Row:
    for verdict in snapshot.verdicts:
        if verdict.id == "straggler":
            text = verdict.text.removeprefix("straggler: ").removesuffix(" of its siblings")
            return (("   straggler ", "dim"), (fmt.plain(f"{verdict.subject}: {text}"), "bad"))
    return ()


# The grid.


def grid(frame: Frame, width: int, height: int) -> Rows:
    """Draw all GPUs as cells, or the table if they do not fit."""
    found, span = frame.snapshot.gpus, frame.timeline.span()
    listed = holders(found, width)
    room = max(0, min(len(listed), max(_MIN_HOLDERS, height // 4)))
    shape = _shape_of(len(found), width, height - 2 - room)
    if shape is None:
        table = gpus(frame, width, height)
        return [*table, *listed[: height - len(table)]]
    columns, each_height = shape
    each = min(r.widths_of(width, columns))
    folded = frame.timeline.gpus.folded(span, (each - _GUTTER) * 2)
    marks = mark_columns(frame.timeline.marks.all, span, each - _GUTTER)
    legend: Row = (*_energy(frame), (f"  {fmt.plain(frame.snapshot.telemetry)}", "dim"))
    rows: Rows = [titled("gpus", legend, width)]
    for first in range(0, len(found), columns):
        row = [_cell(gpu, folded, lined_columns(marks), each, each_height) for gpu in found[first : first + columns]]
        rows += r.side_by_side([(cell, each) for cell in row], each_height)
    axis: Row = ((" " * (_GUTTER - 1), "text"), ("└", "rule"), *axis_row(marks, span, each - _GUTTER))
    rows += r.side_by_side([([axis], each)] * min(columns, len(found)), 1)
    return [*rows, *listed[: height - len(rows)]]


def holders(found: Sequence[GpuView], width: int) -> Rows:
    """Return a title, then other processes that hold GPU memory, the largest first, and the server's in one row."""
    seen: dict[int, list[tuple[int, GpuProcess]]] = {}
    for gpu in found:
        for process in sample_of(gpu).processes or ():
            # The workers of a server are many and alike.
            seen.setdefault(0 if process.of_server else process.pid, []).append((gpu.static.index, process))
    if not seen:
        return []
    rows = [(_sum([process.hbm_bytes for _, process in on]), on) for on in seen.values()]
    rows.sort(key=lambda row: (bool(row[1][0][1].of_server), -(row[0] or 0)))
    others = sum(on[0][1].of_server is False for _, on in rows)
    title = titled("processes on the GPUs", ((f"others: {others}", "warn"),) if others else (), width)
    return [title, *(_holder(on, held) for held, on in rows)]


def _holder(on: Sequence[tuple[int, GpuProcess]], hbm_bytes: int | None) -> Row:
    process, pids = on[0][1], {process.pid for _, process in on}
    owner: Word = {True: ("server's", "dim"), False: ("other's", "warn"), None: ("", "dim")}[process.of_server]
    pid = process.pid if len(pids) == 1 else f"{len(pids)} pids"
    return (
        (f"{fmt.count(fmt.gib(hbm_bytes)):>6} GiB  gpu {fmt.ranges({index for index, _ in on}):<6}", "text"),
        (f" {owner[0]:<9}", owner[1]),
        (f"{pid:>8} {fmt.plain(process.user or fmt.UNKNOWN):<9} ", "text"),
        (fmt.plain(process.command or process.name), "dim"),
    )


def _shape_of(count: int, width: int, height: int) -> tuple[int, int] | None:
    """Return the columns of the grid and the rows of a cell: the fewest columns that leave room for all strips."""
    if not count or width < _GUTTER + _MIN_CELLS:
        return None
    most = max(1, min(_MAX_COLUMNS, (width + GAP) // (_MIN_WIDTH + GAP)))
    shapes = [(columns, height // -(-count // columns)) for columns in range(1, most + 1)]
    fewest = next((shape for shape in shapes[1:] or shapes if shape[1] >= _ROOMY), shapes[-1])
    best = shapes[0] if count == 1 else fewest
    return best if best[1] >= _MIN_ROWS else None


def _cell(gpu: GpuView, folded: Folded, lined: Sequence[int], width: int, height: int) -> Rows:
    """Draw a title with the flags and as many strips as fit; a taller cell has taller strips."""
    strips = GPU_STRIPS[: height - 1]
    tall = max(1, (height - 1) // len(strips))
    legend: Row = ((fmt.plain("; ".join(gpu.flags)), "bad"),) if gpu.flags else ()
    name = gpu.static.name.removeprefix("AMD ").removeprefix("NVIDIA ").removeprefix("Instinct ")
    what = fmt.plain(f"{gpu.static.host} {name}".strip())
    rows: Rows = [titled(f"{gpu.static.index} {what}", r.cropped(legend, width - 8), width)]
    for strip in strips:
        series = Series(strip.column(gpu.static.index), strip.label, strip.role, "line" if tall > 1 else "area")
        if series.column in folded.bands:
            lines = traced((series,), folded, Scale(0.0, strip.most, ()), lined, width - _GUTTER, tall).lines()
            text = strip.text(gpu.static, sample_of(gpu))
            heads = [f" {strip.label:<5}{text:>{_GUTTER - 8}} "[: _GUTTER - 1], *[" " * (_GUTTER - 1)] * (tall - 1)]
            rows += [((head, "text"), ("│", "rule"), *line) for head, line in zip(heads, lines, strict=True)]
    return [(r.target(f"gpu {gpu.static.index}"), *row) for row in rows]
