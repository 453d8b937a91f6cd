"""Everything known about one item: a verdict with its meaning and the figures behind it, a stage, or a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from loadgen import format as fmt
from loadgen.record.slo import needed_words
from loadgen.report.notes import latencies_so_far, live_notes
from loadgen.schema.finding import Verdict
from loadgen.schema.result import StageResult
from loadgen.schema.snapshot import GpuView, Snapshot
from tui.panels.explained import EXPLAINED
from tui.panels.frame import METRICS, Frame
from tui.panels.gpus import holders, sample_of
from tui.panels.health import verdict_name
from tui.panels.latency import HEADS, statistics_of, unit_of
from tui.panels.stages import stage_columns
from tui.widgets.rows import GAP, Row, Rows, padded, side_by_side, titled, widths_of, wrapped

_LABEL, _CELL, _INDENT = 26, 8, 10
_MIN_CELLS = 46  # cells of a column of values


def items(snapshot: Snapshot) -> list[str]:
    """Return the names of all items with details: verdicts, stages from the newest, GPUs."""
    return [
        *(verdict_name(verdict) for verdict in snapshot.verdicts),
        *(f"stage {stage.number}" for stage in reversed(snapshot.stages)),
        *(f"gpu {gpu.static.index}" for gpu in snapshot.gpus),
    ]


def moved(frame: Frame, step: int) -> str:
    """Return the item `step` away from the chosen one, or the first if the chosen one is gone."""
    found, name = items(frame.snapshot), chosen(frame)
    return found[(found.index(name) + step) % len(found)] if name in found else next(iter(found), "")


def chosen(frame: Frame) -> str:
    """Return the chosen item, else the first; empty if there is none yet."""
    return frame.chosen or next(iter(items(frame.snapshot)), "")


def details(frame: Frame, width: int, height: int) -> Rows:
    name, found = chosen(frame), items(frame.snapshot)
    if name not in found:
        gone = "no longer the case" if name else "nothing to show yet"
        return [titled(fmt.plain(name) or "details", ((gone, "dim"),), width)]
    legend: Row = ((f"{found.index(name) + 1} of {len(found)}, ", "dim"), frame.key("other"), (" the next", "dim"))
    rows: Rows = [titled(fmt.plain(name), legend, width)]
    subject = name
    for verdict in frame.snapshot.verdicts:
        if name in (verdict_name(verdict), verdict.subject):
            rows += _explained(verdict, width)
            subject = verdict.subject
    for stage in frame.snapshot.stages:
        if subject == f"stage {stage.number}":
            rows += _of_stage(stage, frame.snapshot.load.waits_for if stage.running else "", width)
    for gpu in frame.snapshot.gpus:
        if subject == f"gpu {gpu.static.index}":
            rows += _of_gpu(gpu, width)
    return _cut(rows, frame, height)


def _cut(rows: Rows, frame: Frame, height: int) -> Rows:
    """As many rows as fit; the last says how many do not, and what shows them."""
    if len(rows) <= height:
        return rows
    kept = max(1, height - 1)
    left = f" … {fmt.counted(len(rows) - kept, 'more row')}: "
    taller: Row = (frame.key("full"), (", a taller terminal, or ", "dim"))
    return [*rows[:kept], ((left, "dim"), *taller, frame.key("copy"), (" copies all", "dim"))]


def _explained(verdict: Verdict, width: int) -> Rows:
    """Return what was seen, what it means and what to do, in the words of the manual."""
    role = "bad" if verdict.bad else "text"
    meaning, remedy = EXPLAINED.get(verdict.id, ("", ""))
    reported = [(verdict.id, verdict.text, role), ("meaning", meaning, "dim"), ("what to do", remedy, "key")]
    rows: Rows = []
    for label, text, role in reported:
        if text:
            rows += [((f" {label}", "dim"),), *wrapped(text, width, role, _INDENT)]
    return [*rows, ()]


def _of_stage(stage: StageResult, waits_for: str, width: int) -> Rows:
    state = stage.stop_reason or "running"
    counts = stage.requests
    known = [
        ("state", f"{state}, {fmt.duration(stage.duration_s)}"),
        ("target", stage.load_words),
        ("tokens of a request", f"{stage.isl} in, {stage.osl} out"),
        *(
            (f"requests {name}", fmt.count(getattr(counts, name)))
            for name in ("sent", "completed", "failed", "unfinished")
        ),
        ("streams open", fmt.count(counts.open)),
        *((f"{column.label} {column.unit}".rstrip(), column.compact(stage)) for column in stage_columns([stage])),
    ]
    heads: Row = (("".rjust(_CELL), "dim"), *[(f"{head:>{_CELL}}", "dim") for head in ("count", *HEADS)])
    rows: Rows = [*_columns(known, width), (), heads]
    for name in METRICS:
        summary = latencies_so_far(stage).get(name)
        cells = [fmt.count(summary.count if summary else 0), *statistics_of(summary, name)]
        rows.append(
            ((f" {name.upper():<4}{unit_of(name):>3}", "dim"), ("".join(f"{cell:>{_CELL}}" for cell in cells), "text"))
        )
    truth = stage.truth.words if stage.truth is not None else ""
    reported = [waits_for, needed_words(stage), truth, *(str(note) for note in live_notes(stage))]
    return [*rows, (), *(row for text in reported if text for row in wrapped(text, width, "dim"))]


def _of_gpu(gpu: GpuView, width: int) -> Rows:
    """Return every figure of a GPU, named as in the result."""
    sample = sample_of(gpu)
    fields = msgspec.structs.asdict(sample) | msgspec.structs.asdict(gpu.static)
    fields |= {
        f"{name}, run" if name == "energy_j" else name: value
        for name, value in msgspec.structs.asdict(gpu.pace).items()
    }
    known = [
        (name, _value(value))
        for name, value in fields.items()
        if name != "t_s" and isinstance(value, str | int | float) and value != ""
    ]
    missing = sorted(set(sample.missing.values()))
    rows = [*_columns(known, width), ()]
    for why in missing:
        names = ", ".join(name for name, reason in sample.missing.items() if reason == why)
        rows += wrapped(f"not measured: {names}: {why}", width, "dim")
    return [*rows, *holders([gpu], width)]


def _value(value: str | float) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case int() if abs(value) < 100_000:
            return str(value)
        case _:
            return fmt.number(value)


def _columns(known: Iterable[tuple[str, str]], width: int) -> Rows:
    """Lay out labels and values in as many columns as fit."""
    rows: Rows = [((f" {padded(label, _LABEL)}", "dim"), (fmt.plain(value), "text")) for label, value in known]
    count = max(1, (width + GAP) // (_MIN_CELLS + GAP))
    each = -(-len(rows) // count)
    widths = widths_of(width, count)
    return side_by_side([(rows[n * each : (n + 1) * each], widths[n]) for n in range(count)], each)
