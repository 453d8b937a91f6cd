"""The load curve: one row for each stage, the newest at the bottom; of a long plan the last ones that fit."""

from __future__ import annotations

from loadgen.metrics.histogram import Summary
from loadgen.metrics.snapshot import StageView
from tui import format as fmt
from tui.paint import Row, Rows, Word, titled
from tui.view import View

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
)


def stages(view: View, width: int, height: int) -> Rows:
    """A title where there is room for it, the heads, and the stages."""
    heads = tuple((f"{head:>{cells}}", role) for head, cells, role in _HEADS)
    planned = view.snapshot.load.stages_planned
    title = titled("stages: the load curve", ((f"{planned} planned", "dim"),), width)
    top = [heads] if height < 6 else [title, heads]
    room = max(1, height - len(top))
    return [*top, *[_row(stage) for stage in view.snapshot.stages[-room:]]]


def _row(stage: StageView) -> Row:
    ttft, tpot = (stage.latency.get(name, Summary(count=0)) for name in ("ttft", "tpot"))
    values = (
        fmt.setting(stage.concurrency) if stage.rate is None else f"{fmt.setting(stage.rate)}/s",
        fmt.number(stage.held_mean),
        fmt.number(stage.requests_per_s),
        fmt.number(stage.output_tokens_per_s),
        fmt.number(_per_user(tpot)),
        fmt.number(ttft.p50),
        fmt.number(ttft.p99),
        fmt.number(tpot.p50),
        fmt.number(tpot.p99),
    )
    role = "strong" if stage.running else "text"
    sign = "▸" if stage.running else " "
    cells: list[Word] = [(f"{sign}{stage.number:>{_HEADS[0][1] - 1}}", role)]
    cells += [(f"{value:>{width}}", role) for value, (_, width, _) in zip(values, _HEADS[1:], strict=False)]
    return (*cells, _slo(stage.slo_met), (f"{fmt.count(stage.failed):>6}", "bad" if stage.failed else "dim"))


def _per_user(tpot: Summary) -> float | None:
    """Tokens a second that a user sees: the inverse of the median time per output token."""
    return 1000 / tpot.p50 if tpot.p50 else None


def _slo(met: bool | None) -> Word:
    if met is None:
        return (f"{fmt.UNKNOWN:>6}", "dim")
    return ("    ok", "good") if met else ("  MISS", "bad")
