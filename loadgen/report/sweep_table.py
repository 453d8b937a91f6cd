"""The variants of a sweep side by side: a row per variant and stage, and its difference from the first variant.

Text and JSON are made from the same rows. A variant without figures has a row, too, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from loadgen.format import Statistic, fixed
from loadgen.report.notes import latencies
from loadgen.report.tabular import Column, cut, json_text, text_lines
from loadgen.schema.deltas import Summary
from loadgen.schema.journal import RunState
from loadgen.schema.result import Result, StageResult

_COMPARED = ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms")
_REASON = 110


class Outcome(msgspec.Struct, frozen=True):
    """How one variant ended."""

    variant: str
    state: RunState
    reason: str
    result: Result | None


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one variant; all but the first three are empty for a variant without stages."""

    variant: str
    state: RunState
    reason: str
    stage: str | None = None
    isl: int | None = None
    osl: int | None = None
    completed: int = 0
    failed: int = 0
    unsent: int = 0
    carried_over: int = 0
    limited: bool = False  # the client was the limit
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    ttft_mean_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_mean_ms: float | None = None
    tpot_p99_ms: float | None = None
    lower_bounds: tuple[str, ...] = ()  # which of these figures are only lower bounds
    difference_percent: dict[str, float | None] = {}
    """By figure, from the same stage of the first variant that has it; empty for that variant itself."""
    is_base: bool = False  # whether it is the 100 % of its stage


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of a sweep."""

    schema: Literal["vramp.sweep-report/1"] = "vramp.sweep-report/1"
    profile: str
    seed: int
    rows: list[SweepRow]


def sweep_rows(outcomes: Sequence[Outcome]) -> list[SweepRow]:
    """The rows of all variants, in their order."""
    rows = [row for outcome in outcomes for row in _rows_of(outcome)]
    firsts: dict[str, SweepRow] = {}
    for row in rows:
        if row.stage is not None:
            firsts.setdefault(row.stage, row)
    return [_compared(row, firsts.get(row.stage or "")) for row in rows]


def sweep_table(rows: Sequence[SweepRow]) -> str:
    """A table per stage, and below them the variants that lack some or all figures."""
    stages = list(dict.fromkeys(row.stage for row in rows if row.stage is not None))
    width = max([len("variant"), *(len(row.variant) for row in rows)])
    lines = []
    for stage in stages:
        lines.append(f"{f' {stage} ':=^{width + 94}}")
        lines += text_lines(_columns(width), [row for row in rows if row.stage == stage], fixed)
    return "\n".join([*lines, *_endings(rows, width)])


def sweep_json(profile: str, seed: int, rows: Sequence[SweepRow]) -> str:
    return json_text(SweepReport(profile=profile, seed=seed, rows=list(rows))) + "\n"


def _rows_of(outcome: Outcome) -> Iterator[SweepRow]:
    row = SweepRow(variant=outcome.variant, state=outcome.state, reason=outcome.reason)
    stages = outcome.result.stages if outcome.result is not None else []
    if not stages:
        yield row
    times: Counter[str] = Counter()
    for stage in stages:
        title = f"{stage.label}, ISL {stage.isl}, OSL {stage.osl}"
        times[title] += 1
        # A load that occurs twice in a plan is two stages.
        yield _measured(row, stage, title if times[title] == 1 else f"{title} ({times[title]})")


def _measured(row: SweepRow, stage: StageResult, title: str) -> SweepRow:
    ttft, tpot = (latencies(stage).get(name, Summary(count=0)) for name in ("ttft", "tpot"))
    return replace(
        row,
        stage=title,
        isl=stage.isl,
        osl=stage.osl,
        completed=stage.requests.completed,
        failed=stage.requests.failed,
        unsent=stage.requests.unsent or 0,
        carried_over=stage.requests.carried_over or 0,
        limited=stage.limited,
        requests_per_s=stage.throughput.requests_per_s,
        output_tokens_per_s=stage.throughput.output_tokens_per_s,
        ttft_mean_ms=ttft.mean,
        ttft_p99_ms=ttft.p99,
        tpot_mean_ms=tpot.mean,
        tpot_p99_ms=tpot.p99,
        lower_bounds=tuple(f"ttft_{name}_ms" for name in ("mean", "p99") if name in ttft.lower_bounds),
    )


def _compared(row: SweepRow, first: SweepRow | None) -> SweepRow:
    if first is None:
        return row
    if row is first:
        return replace(row, is_base=True)
    differences: dict[str, float | None] = dict.fromkeys(_COMPARED)
    for name in _COMPARED:
        value, base = getattr(row, name), getattr(first, name)
        if value is not None and base and name not in row.lower_bounds + first.lower_bounds:
            differences[name] = 100 * (value / base - 1)
    return replace(row, difference_percent=differences)


def _columns(width: int) -> list[Column[SweepRow]]:
    return [
        Column("variant", lambda row: row.variant, words=True, width=width),
        Column("req/s", lambda row: row.requests_per_s, width=9),
        Column("tok/s", lambda row: row.output_tokens_per_s, width=10),
        Column("", lambda row: _difference(row, "output_tokens_per_s"), width=11),
        Column("TTFT mean", lambda row: _latency(row, "ttft_mean_ms"), width=11),
        Column("", lambda row: _difference(row, "ttft_mean_ms"), width=11),
        Column("TTFT p99", lambda row: _latency(row, "ttft_p99_ms"), width=10),
        Column("TPOT mean", lambda row: row.tpot_mean_ms, width=11),
        Column("", lambda row: _difference(row, "tpot_mean_ms"), width=11),
        Column("TPOT p99", lambda row: row.tpot_p99_ms, width=10),
        Column("", _troubles, words=True),
    ]


def _difference(row: SweepRow, name: str) -> str:
    if row.is_base:
        return "(100 %)"
    percent = row.difference_percent.get(name)
    return "" if percent is None else f"({percent:+.1f}%)"


def _latency(row: SweepRow, name: str) -> Statistic:
    return Statistic(getattr(row, name), name in row.lower_bounds)


def _troubles(row: SweepRow) -> str:
    counts = {"failed": row.failed, "never sent": row.unsent, "carried over": row.carried_over}
    words = [f"{count} {name}" for name, count in counts.items() if count]
    return "  ".join([*words, *(["client-limited"] if row.limited else [])])


def _endings(rows: Sequence[SweepRow], width: int) -> list[str]:
    lines = []
    for row in {row.variant: row for row in rows if row.state != "complete"}.values():
        words = "no numbers" if row.stage is None else row.state
        lines.append(f"{row.variant:<{width}}  {words}: {cut(row.reason.partition(chr(10))[0], _REASON)}")
    return lines
