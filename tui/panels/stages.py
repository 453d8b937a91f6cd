"""The load curve: one row for each stage, the newest at the bottom; of a long plan the last ones that fit.

What a token costs in energy is a column once it is known; where it has no room, what can be told from the median time
per output token makes it.
"""

from __future__ import annotations

from loadgen import format as fmt
from loadgen.metrics.deltas import Summary
from loadgen.metrics.snapshot import StageView
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, titled

_HEADS = (
    ("#", 4, "dim"),
    ("load", 7, "dim"),
    ("held", 6, "held"),
    ("req/s", 7, "dim"),
    ("tok/s", 7, "throughput"),
    ("/user", 6, "dim"),
    ("TTFT p50", 9, "p50"),
    ("p99", 6, "p99"),
    ("TPOT p50", 9, "p50"),
    ("p99", 6, "p99"),
    ("SLO", 6, "dim"),
    ("fail", 6, "dim"),
    ("J/tok", 6, "dim"),
)
_USER, _ENERGY = 5, 12
_ALL = sum(cells for _, cells, _ in _HEADS)


def stages(view: Frame, width: int, height: int) -> Rows:
    """A title where there is room for it, the heads, and the stages."""
    found, planned = view.snapshot.stages, view.snapshot.load.stages_planned
    left_out = _left_out(found, width)
    heads = _without([(f"{head:>{cells}}", role) for head, cells, role in _HEADS], left_out)
    title = titled("stages: the load curve", ((f"{planned} planned", "dim"),), width)
    top = [heads] if height < 6 else [title, heads]
    room = max(1, height - len(top))
    return [*top, *[_without(_row(stage, view), left_out) for stage in found[-room:]]]


def _left_out(found: tuple[StageView, ...], width: int) -> int | None:
    """The column that does not show; None where all do."""
    if all(stage.joules_per_output_token is None for stage in found):
        return _ENERGY
    return _USER if width < _ALL else None


def _without(cells: list[Word], left_out: int | None) -> Row:
    return tuple(cell for place, cell in enumerate(cells) if place != left_out)


def _row(stage: StageView, view: Frame) -> list[Word]:
    ttft, tpot = (stage.latency.get(name, Summary(count=0)) for name in ("ttft", "tpot"))
    values: tuple[str, ...] = (
        _load(stage),
        fmt.number(stage.held_mean),
        fmt.number(stage.requests_per_s),
        fmt.number(stage.output_tokens_per_s),
        fmt.number(_per_user(tpot)),
        *(fmt.statistic(ttft, name) for name in ("p50", "p99")),
        *(fmt.statistic(tpot, name) for name in ("p50", "p99")),
    )
    if stage.moves is not None:
        values = _moving(stage, view)
    role = "strong" if stage.running else "text"
    sign = "▸" if stage.running else " "
    cells: list[Word] = [(f"{sign}{stage.number:>{_HEADS[0][1] - 1}}", role)]
    cells += [(f"{value:>{width}}", role) for value, (_, width, _) in zip(values, _HEADS[1:], strict=False)]
    failed: Word = (f"{fmt.count(stage.failed):>6}", "bad" if stage.failed else "dim")
    return [*cells, _slo(stage.slo_met), failed, (f"{fmt.number(stage.joules_per_output_token):>6}", role)]


def _load(stage: StageView) -> str:
    if stage.moves is not None:
        ends = "→".join(fmt.setting(load) for load in stage.moves)
        return ends if len(ends) < _HEADS[1][1] else f"→{fmt.setting(stage.moves[1])}"
    return fmt.setting(stage.concurrency) if stage.rate is None else f"{fmt.setting(stage.rate)}/s"


def _moving(stage: StageView, view: Frame) -> tuple[str, ...]:
    """While it runs where the load is now and what that step has; over, its figures are of no single load."""
    load, step = view.snapshot.load, None
    if stage.running and stage.curve:
        wanted = load.rate if load.rate is not None else float(load.concurrency or 0)
        step = min(stage.curve, key=lambda point: abs(point.load - wanted))
    return (
        _load(stage),
        fmt.number(stage.held_mean if step is None else load.held),
        fmt.number(stage.requests_per_s),
        fmt.number(stage.output_tokens_per_s if step is None else step.output_tokens_per_s),
        fmt.number(step.output_tokens_per_s_per_user if step is not None else None),
        *(fmt.statistic(step.ttft_ms if step is not None else None, name) for name in ("p50", "p99")),
        fmt.UNKNOWN,
        fmt.UNKNOWN,
    )


def _per_user(tpot: Summary) -> float | None:
    """Tokens a second that a user sees: the inverse of the median time per output token."""
    return 1000 / tpot.p50 if tpot.p50 else None


def _slo(met: bool | None) -> Word:
    if met is None:
        return (f"{fmt.UNKNOWN:>6}", "dim")
    return ("    ok", "good") if met else ("  MISS", "bad")
