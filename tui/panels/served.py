"""The engine's own figures of all requests that it serves, from any client: latencies, ends, errors and sources.

Its percentiles are known only to lie within a histogram bucket, and are shown as the bucket's bounds.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadgen import format as fmt
from loadgen.report.served import LATENCIES, PERCENTILES, latency_title, latency_unit, mean, within
from loadgen.schema.engine import EngineLatencyMs, EngineView
from loadgen.schema.snapshot import WINDOW_S
from tui.panels.frame import METRICS, Frame
from tui.widgets.rows import GAP, Row, Rows, Word, padded, pairs, side_by_side, titled, whole_groups

_MEAN, _WITHIN, _LABEL = 6, 10, 11
_HALF = _MEAN + _WITHIN * len(PERCENTILES)
TABLE = _LABEL + _HALF
_STRETCH, _COUNT = 20, 7
_PAGE = _STRETCH + _COUNT + _HALF
_HEADS: Row = (
    (f"{'mean':>{_MEAN}}", "dim"),
    *((f"{head:>{_WITHIN}}", head if head in ("p50", "p99") else "dim") for head in PERCENTILES),
)


def latency(frame: Frame, width: int, height: int) -> Rows:
    """Draw two tables side by side, like those of our own streams: the last seconds, and since the server started."""
    engine = frame.snapshot.engine or EngineView()
    recent, whole = engine.latency_ms, engine.since_start
    rows: Rows = [
        two_tables_title(
            f"engine, last {WINDOW_S:.0f} s: {_ended(recent)} done", f"since its start: {_ended(whole)} done", _HALF
        ),
        ((" " * 7, "text"), *_HEADS, ("│", "rule"), *_HEADS),
    ]
    for name in METRICS[: max(2, height - 2)]:
        label: Row = ((f"{latency_title(name):<4}", "text"), (f"{latency_unit(name):>3}", "dim"))
        rows.append((*label, _statistics(recent.get(name), name), ("│", "rule"), _statistics(whole.get(name), name)))
    return [*rows, latency_strip(engine, "queue", "prefill")]


def two_tables_title(left: str, right: str, half: int) -> Row:
    """Return the title over two tables of latencies, each `half` cells wide."""
    rule, tail = ("─" * max(0, half - len(words) - 2) for words in (left, right))
    return (
        ("latency", "title"),
        (f" {left[: half - 2]} ", "text"),
        (f"{rule}┬", "rule"),
        (f" {right[: half - 2]} ", "text"),
        (tail, "rule"),
    )


def _ended(latencies: Mapping[str, EngineLatencyMs]) -> str:
    return fmt.count(latencies["e2e"].count if "e2e" in latencies else None)


def page(frame: Frame, width: int, height: int) -> Rows:
    """Draw each latency over the last seconds, in the last two stages and since the server started."""
    engine = frame.snapshot.engine or EngineView()
    stages = [
        (f"stage {one.number} {fmt.plain(one.label)}", one.engine.latency_ms)
        for one in frame.snapshot.stages[:-3:-1]
        if one.engine is not None and not one.running
    ]
    stretches = [(f"last {WINDOW_S:.0f} s", engine.latency_ms), *stages, ("since its start", engine.since_start)]
    groups = []
    for name in LATENCIES:
        rows: Rows = [titled(f"{latency_title(name)} {latency_unit(name)}", (), _PAGE)]
        rows.append(((f"{'':<{_STRETCH}}{'count':>{_COUNT}}", "dim"), *_HEADS))
        for stretch, latencies in stretches:
            known = latencies.get(name)
            count = fmt.count(known.count if known is not None else None)
            label: Row = ((f" {padded(stretch, _STRETCH - 1)}", "text"), (f"{count:>{_COUNT}}", "dim"))
            rows.append((*label, _statistics(known, name)))
        groups.append(rows)
    columns = max(1, width // (_PAGE + GAP))
    per_column = -(-len(groups) // columns)
    parts = [groups[first : first + per_column] for first in range(0, len(groups), per_column)]
    return side_by_side([(whole_groups(part, height, "more"), min(width, _PAGE)) for part in parts], height)


def latency_table(engine: EngineView) -> Rows:
    """Return all latencies of the last seconds, one per row; empty if the engine has none."""
    known = [name for name in LATENCIES if name in engine.latency_ms]
    rows: Rows = [((f" {f'last {WINDOW_S:.0f} s':<{_LABEL - 1}}", "dim"), *_HEADS)] if known else []
    for name in known:
        label = f" {latency_title(name)} {latency_unit(name)}"
        rows.append(((f"{label:<{_LABEL}}", "text"), _statistics(engine.latency_ms[name], name)))
    return rows


def latency_strip(engine: EngineView, *names: str) -> Row:
    """Return p50 and p99 of some latencies on one row, in milliseconds."""
    words: list[Word] = [("p50, p99 ms ", "dim")] if engine.latency_ms else []
    for name in names:
        if name in engine.latency_ms:
            p50, p99 = (within(engine.latency_ms[name], name, each) or fmt.UNKNOWN for each in ("p50", "p99"))
            words += [(f" {latency_title(name)} ", "dim"), (p50, "p50"), (" ", "text"), (p99, "p99")]
    return tuple(words)


def _statistics(latency: EngineLatencyMs | None, name: str) -> Word:
    """Return the mean and the bounds of the percentiles, in the unit of the latency."""
    bounds = [within(latency, name, each) or fmt.UNKNOWN for each in PERCENTILES]
    return (f"{fmt.number(mean(latency, name)):>{_MEAN}}" + "".join(f"{each:>{_WITHIN}}" for each in bounds), "text")


def reported(engine: EngineView) -> list[tuple[str, str, str]]:
    """Return what else is known of the last seconds, without gauges and rates, as label, value and role."""
    spec, by_source = engine.spec, engine.prompt_tokens_by_source
    total, hbm = sum(by_source.values()), engine.hbm_bytes_per_s
    shares = {fmt.plain(name).replace("_", " "): count / total for name, count in by_source.items() if total}
    found = [
        ("finished", _counts(engine.finished), "text"),
        ("errors", _counts(engine.errors), "bad"),
        ("prefix hits", fmt.percent(engine.prefix_hit_rate), "text"),
        ("external prefix hits", fmt.percent(engine.external_prefix_hit_rate), "text"),
        *((f"prompt, {source}", fmt.percent(share), "text") for source, share in shares.items()),
        *((f"KV offload, {name}", fmt.memory(size), "text") for name, size in engine.kv_offload_bytes.items() if size),
        ("drafts accepted", fmt.percent(spec.acceptance if spec is not None else None), "text"),
        ("tokens a step", fmt.number(spec.mean_accepted_length if spec is not None else None), "text"),
        ("accepted by position", " ".join(map(fmt.percent, spec.acceptance_by_position)) if spec else "", "text"),
        ("TFLOP/s a GPU", fmt.number(engine.tflops_per_gpu), "text"),
        ("HBM GB/s a GPU", fmt.number(None if hbm is None else hbm / 1e9), "text"),
    ]
    return [(label, value, role) for label, value, role in found if value not in ("", fmt.UNKNOWN)]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{fmt.plain(name)} {fmt.count(count)}" for name, count in sorted(counts.items()) if count)


def requests(frame: Frame, width: int, height: int) -> Rows:
    """Draw what becomes of other clients' requests, in place of our own client's health."""
    engine = frame.snapshot.engine or EngineView()
    return [titled("requests", ((f"last {WINDOW_S:.0f} s", "dim"),), width), *pairs(reported(engine), width)]


def reported_rows(engine: EngineView, width: int) -> Rows:
    """Return the figures of `reported` side by side, on as many rows as needed."""
    rows: list[list[Word]] = []
    taken = width
    for label, value, role in reported(engine):
        room = len(label) + len(value) + 3
        if taken + room > width:
            rows.append([])
            taken = 0
        rows[-1] += [(f" {label} ", "dim"), (f"{value} ", role)]
        taken += room
    return [tuple(row) for row in rows]
