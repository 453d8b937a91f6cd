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
        gone: Row = (("no longer the case" if name else "nothing to show yet", "dim"),)
        gone += ((", ", "dim"), frame.key("other"), (" the first", "dim")) if found else ()
        return [titled(fmt.plain(name) or "details", gone, width)]
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
    if len(rows) <= height:
        return rows
    kept = max(1, height - 1)
    left = f" … {fmt.counted(len(rows) - kept, 'more row')}: "
    taller: Row = (frame.key("full"), (", a taller terminal, or ", "dim"))
    return [*rows[:kept], ((left, "dim"), *taller, frame.key("copy"), (" copies all", "dim"))]


def _explained(verdict: Verdict, width: int) -> Rows:
    """Return what was seen, what it means and what to do."""
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
    rows: Rows = [((f" {padded(label, _LABEL)}", "dim"), (fmt.plain(value), "text")) for label, value in known]
    count = max(1, (width + GAP) // (_MIN_CELLS + GAP))
    each = -(-len(rows) // count)
    widths = widths_of(width, count)
    return side_by_side([(rows[n * each : (n + 1) * each], widths[n]) for n in range(count)], each)


_EXPLAINED: tuple[tuple[str, str, str], ...] = (
    (
        "client-limited",
        "vramp itself was the limit: it read or sent late, or used up its cores",
        "do not trust this stage; free cores, load.workers, load.realtime",
    ),
    (
        "stream-buffered",
        "several tokens arrive at a time although vramp reads in time: something between the engine and vramp gathers "
        "them, so TTFT, TPOT and ITL are those of the path, not the engine's",
        "turn off buffering in the proxy (nginx: proxy_buffering off; HAProxy: option http-no-delay), or attach to the "
        "engine itself",
    ),
    (
        "truth",
        "client and engine disagree about the same requests, of this stage or of several together (truth.over)",
        "look for a proxy, or another client, between the two",
    ),
    ("accounting", "not every request that was sent is accounted for", "report it as a bug, with the journal"),
    (
        "clock-moved",
        "the clock of a host was moved while the stage ran: its streams' times are unsure by as much",
        "repeat the stage; look at what sets the clock there",
    ),
    (
        "prefix-cache",
        "prompts hit the prefix cache that should not have: prefill looks too fast",
        "another load.seed, a longer file of prompts",
    ),
    (
        "spec-decode-random",
        "speculative decoding on random prompts: acceptance says nothing about real text",
        "use a dataset (load.data)",
    ),
    (
        "short-answers",
        "answers are shorter than asked for: throughput and E2E are not those of the load that was meant",
        "a server that honours ignore_eos, or load.ignore_eos = false",
    ),
    (
        "itl-unknown tpot-unknown input-unknown",
        "the server's usage does not say what this figure needs: it is null",
        "a server that sends usage with each chunk (stream_options.continuous_usage_stats)",
    ),
    (
        "hidden-tokens",
        "tokens that were generated and never streamed: they count in OSL and throughput, not in TPOT",
        "",
    ),
    ("content-filter", "a content filter of the server ended answers; they count as completed", "other prompts"),
    (
        "stalled",
        "nothing arrives, and nothing in the engine moves, for longer than 30 s and five times the longest silence so "
        "far; it says what runs, what waits and how busy the GPUs are",
        "see the evidence, which an event names; then restart the server",
    ),
    (
        "no-output",
        "nothing arrives, and nothing in the engine moves, but a long prefill or a compilation would look the same: no "
        "prompt of this length has been answered yet, or the requests are others'; after 300 s it is a stall",
        "wait, or look at the log and at the evidence, which an event names",
    ),
    (
        "other-start",
        "the server started otherwise than the last time with the same flags on this box: another KV cache, other "
        "backends, or twice the time (a longer start alone, or another vLLM, is not bad)",
        "look in its log for what differs; if a GPU was in use during the start, start it again",
    ),
    (
        "host-limited",
        "the host's cores are busy under load, and the GPUs are not at their limit",
        "more cores, or fewer other processes",
    ),
    ("output-drift output-broken output-degenerate", "the output is wrong", "treat the box or the build as broken"),
    ("throttled", "the GPU is held back by heat, prochot or a brake", "cooling, power supply"),
    ("straggler", "its clock is below 90 % of its siblings'", "with tensor parallelism, every GPU waits for it"),
    (
        "slow-clock",
        "a busy GPU runs below 40 % of its highest clock (of the data sheet's, where it does not report its own: then "
        "not bad), and its power cap is not the reason",
        "reset the GPU, or the box; if it stays so on all GPUs, flash the firmware of the board again",
    ),
    (
        "low-clock",
        "a busy GPU runs below half of its highest clock, and neither heat nor its power cap is the reason",
        "look for a locked clock or a performance level: rocm-smi --showperflevel, nvidia-smi -q -d CLOCK",
    ),
    ("hotter-than-siblings", "more than 10 C hotter than its siblings", "cooling"),
    (
        "pcie-below-maximum link-down",
        "PCIe narrower or slower than it can be; an XGMI or NVLink link is down, or never came up while the "
        "siblings' did",
        "reseat, check the board",
    ),
    (
        "xid ecc-uncorrectable ecc-deferred row-remap",
        "Xid errors, memory errors, a bad row that waits for a reset or cannot be replaced; for a stage: new ones",
        "drain, reset or replace the GPU",
    ),
    (
        "ecc-correctable",
        "memory errors that ECC corrected during the stage, with their rate over 100 s or more: they cost no data",
        "compare the rate with that of the other GPUs, and see memory-retired",
    ),
    (
        "hbm-below-rated",
        "the whole GPU reports at least 5 % less memory than its data sheet",
        "look for a lost memory stack in the kernel's log; replace the GPU",
    ),
    (
        "hbm-used-before-start",
        "more than 2 GiB were in use before vramp started the server",
        "see who holds it: view 4",
    ),
    (
        "contexts-exceed-cache",
        "the contexts of the live sessions take more tokens than the KV cache has, and their prompts hit it less than "
        "a cache without limit",
        "fewer live sessions, a larger KV cache, or a second tier for it (offloading)",
    ),
    ("kv-limited", "KV cache full, or preemptions", "shorter sequences, fewer streams, more memory for the cache"),
    ("queueing", "requests wait in the engine", "it is saturated at this load"),
    ("capped", "load.max_concurrency held back arrivals", "intended, or raise the cap"),
    ("other-traffic", "somebody else used the server in this stage", "repeat it without"),
    (
        "bandwidth-bound compute-bound",
        "the GPUs' memory is at 70 % of its peak rate or more; else MFU is 40 % or more",
        "as expected near saturation",
    ),
    (
        "rising",
        "TTFT, TPOT, or the memory of the server or a GPU rose from the first to the last part of the stage, at the "
        "same load, and not by chance",
        "repeat it for longer: a leak goes on",
    ),
    ("tail", "the requests ran out while fewer streams than asked for were open", "more load.requests, or a duration"),
    (
        "power-capped power-cap-changed",
        "at its power limit; a cap other than the default",
        "normal at full load; check the cap",
    ),
    (
        "partitioned memory-retired",
        "the GPU is partitioned; bad pages or rows are out of use (bad if new in the stage)",
        "",
    ),
    ("output", "what was checked of the output so far", ""),
)
"""The verdicts' ids, what they mean, and what to do (in the words of `docs/telemetry.md`); empty: nothing to do."""

EXPLAINED = {id: (meaning, remedy) for ids, meaning, remedy in _EXPLAINED for id in ids.split()}
"""Meaning and remedy by the verdict's id."""
