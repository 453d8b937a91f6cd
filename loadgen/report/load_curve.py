"""The load curve of a report: first tokens, gaps and throughput against the streams held, a row for each load.

Of a load that moves these are all the figures there are: each is of the moments in which so many streams were held, and
up and down are apart. Of a run it is everything that was measured at a load, however it came there.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.format import grouped, significant
from loadgen.metrics.result import CurvePoint, Result
from loadgen.report.cells import statistic
from loadgen.report.notes import has_numbers

HEADS = ("load", "held", "tok/s", "/user", "TTFT p50", "p99", "count", "ITL p50", "p99", "count")
"""Milliseconds, and output tokens; `held` are the streams that were really open, `count` first tokens and gaps."""
_WIDTHS = (8, 7, 10, 7, 9, 9, 6, 8, 8, 8)


def run_curve(result: Result) -> tuple[CurvePoint, ...]:
    """The curve of the whole run where it says more than its stages do: where a load came up several times."""
    parts = sum(
        len(stage.curve) or int(stage.target.rate is None and has_numbers(stage) and bool(stage.measured_s))
        for stage in result.stages
    )
    return result.curve if parts > len(result.curve) else ()


def moving_points(result: Result) -> tuple[CurvePoint, ...]:
    """What there is to draw against the streams held: the run's curve, where its load moved or came up again."""
    moved = any(stage.curve for stage in result.stages)
    return result.curve if moved or run_curve(result) else ()


def shape_of(point: CurvePoint) -> str:
    return f"{point.isl}/{point.osl}"


def load_words(point: CurvePoint) -> str:
    """The load, and where it was moving."""
    return f"{point.load:.4g} {point.direction}".rstrip()


def curve_cells(point: CurvePoint) -> list[str]:
    ttft, itl = point.ttft_ms, point.itl_ms
    return [
        load_words(point),
        grouped(point.held, 1),
        grouped(point.output_tokens_per_s, 1),
        significant(point.output_tokens_per_s_per_user),
        statistic(ttft, "p50", 1),
        statistic(ttft, "p99", 1),
        grouped(ttft.count),
        statistic(itl, "p50", 2),
        statistic(itl, "p99", 2),
        grouped(itl.count),
    ]


def curve_lines(points: Sequence[CurvePoint]) -> list[str]:
    """As text, under a head for each shape where there are several."""
    shapes = list(dict.fromkeys(shape_of(point) for point in points))
    lines = [_line(HEADS)] if points else []
    for shape in shapes:
        lines += [f"ISL/OSL {shape}"] if len(shapes) > 1 else []
        lines += [_line(curve_cells(point)) for point in points if shape_of(point) == shape]
    return lines


def _line(cells: Sequence[str]) -> str:
    first, *others = cells
    return f"{first:<{_WIDTHS[0]}}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(others, _WIDTHS[1:], strict=True)
    )
