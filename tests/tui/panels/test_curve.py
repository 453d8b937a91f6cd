"""The curve view: against the streams held, up and down apart, from all that was measured at a load."""

from typing import Any

import msgspec
import pytest

from loadgen.schema.comparison import Comparison
from loadgen.schema.result import CurvePoint, Target
from loadgen.schema.shared import SearchResult
from loadgen.schema.snapshot import Snapshot
from tests.tui.scripted import curve_point, running, stage
from tui.charts.timeline import Timeline
from tui.panels.curve import curve, points_of
from tui.panels.frame import Frame, Wanted
from tui.panels.stages import loads
from tui.screens import tables
from tui.widgets.rows import width_of

replace = msgspec.structs.replace


def view_of(snapshot: Snapshot, **changes: Any) -> Frame:
    timeline = Timeline()
    timeline.add(snapshot)
    return Frame(snapshot, Wanted(), timeline=timeline, **changes)


def drawn(view: Frame, width: int = 80, height: int = 20) -> str:
    rows = curve(view, width, height)
    assert len(rows) <= height and all(width_of(row) <= width for row in rows)
    return "\n".join("".join(text for text, _ in row) for row in rows)


def table(view: Frame, height: int = 5) -> list[str]:
    rows = loads(view, 80, height)
    assert len(rows) <= height and all(width_of(row) <= 80 for row in rows)
    return ["".join(text for text, _ in row) for row in rows]


def steps(*sizes: int, direction: str) -> tuple[CurvePoint, ...]:
    """A way up; the one down takes longer for the same load."""
    by = 1.0 if direction == "up" else 1.5
    found = [curve_point(stage(1, size, 30.0, running=False), direction) for size in sizes]  # type: ignore[arg-type]
    return tuple(
        replace(one, itl_ms=replace(one.itl_ms, p50=by * (one.itl_ms.p50 or 0), p99=by * (one.itl_ms.p99 or 0)))
        for one in found
    )


def ramped(*, held: int = 16) -> Snapshot:
    up, down = steps(8, 16, 32, direction="up"), steps(8, 16, 32, direction="down")
    now = running(10.0)
    moving = replace(now.stages[0], label="ramp 32 to 8", target=Target(32, None, None, moves=(32.0, 8.0)), curve=down)
    return replace(now, curve=(*down, *up), stages=(moving,), load=replace(now.load, held=held))


def test_up_and_down_are_lines_of_their_own() -> None:
    shown = drawn(view_of(ramped(), metric="itl"))
    assert "▲ p50 up" in shown and "▼ p50 down" in shown and "△ p99 up" in shown
    assert sum(shown.count(sign) for sign in "▲▼") >= 6 + 2  # three points each, and the legend
    assert "ITL ms by streams held" in shown


def test_a_ramp_has_no_e2e() -> None:
    assert not any(sign in drawn(view_of(ramped(), metric="e2e")).partition("\n")[2] for sign in "▲▼△▽")


def test_under_it_is_a_row_for_each_load_with_its_counts_and_a_mark_at_now() -> None:
    heads, *rows = table(view_of(ramped()), height=5)
    assert heads.split() == "load held tok/s /user TTFT p50 p99 count ITL p50 p99 count".split()
    assert [row.split()[0:2] for row in rows] == [["8", "▼"], ["▸", "16"], ["32", "▼"], ["8", "▲"]]
    assert rows[0].split()[-1] == "100"
    assert "6 loads" in table(view_of(ramped()), height=9)[0]


def test_a_run_by_hand_is_drawn_once_for_each_load() -> None:
    """Two stages at 16: one point, of both, and one row."""
    first, second, third = (stage(n, size, 2.0, running=n == 3) for n, size in ((1, 8), (2, 16), (3, 16)))
    both = replace(curve_point(third), output_tokens_per_s=700.0)
    by_hand = replace(running(10.0), stages=(first, second, third), curve=(curve_point(first), both))
    assert [(one.name, one.output) for one in points_of(by_hand)] == [
        ("8", first.throughput.output_tokens_per_s),
        ("16", 700.0),
    ]
    assert points_of(by_hand)[1].latency["e2e"] == third.latency_ms["e2e"]
    assert len(table(view_of(by_hand))) == 3
    assert tables.loads(view_of(by_hand)).startswith("| load | held |")


def test_a_ladder_keeps_its_stages() -> None:
    assert "SLO" in table(view_of(running()))[0]
    assert tables.loads(view_of(running())) == tables.stages(view_of(running()))


def test_rates_are_points_where_their_streams_were() -> None:
    at_rate = replace(stage(1, 8, 30.0, running=True), target=Target(None, 2.5, "poisson"))
    (only,) = points_of(replace(running(10.0), stages=(at_rate,), curve=()))
    assert (only.name, only.held) == ("2.50/s", at_rate.concurrency.mean)


def test_published_and_found_stand_at_their_loads() -> None:
    published = Comparison(3, "", "output_tokens_per_s", 1800.0, 3667.0, 100.0)
    found = SearchResult("knee", "concurrency", 32.0, 24.0, 48.0, resolved=True, why="", probes=6)
    shown = drawn(view_of(running(reference=(published,), search=found)), width=220)
    _, _, plots = shown.partition("\n")
    assert plots.count("✦") == 3 and plots.count("◇") == 1  # the frontier has neither: it has no axis of loads


def test_total_throughput_stands_against_e2e_beside_what_was_published() -> None:
    figures = {"e2e_p50_ms": 12_000.0, "total_tokens_per_s": 9_000.0, "e2e_mean_ms": 12_100.0}
    published = tuple(Comparison(1, "MI300X", name, value, None, None) for name, value in figures.items())
    heads, _, plot = drawn(view_of(running(reference=published), metric="e2e")).partition("\n")
    assert heads.startswith("total tok/s by E2E p50 ms") and "◇ published" in heads
    assert plot.count("◇") == 1 and plot.count("●") == 4
    assert "total tok/s by E2E" in drawn(view_of(running()), width=220)
    assert "total tok/s by E2E" not in drawn(view_of(running()), width=160)


def test_the_frontier_stands_beside_the_chosen_latency() -> None:
    heads, _, plot = drawn(view_of(running()), width=104).partition("\n")
    assert "tok/s per GPU by tok/s per user" in heads
    assert heads.count("● frontier") == 1 and "○ dominated" not in heads
    assert plot.count("●") == 4 + 4


def test_a_stage_that_another_dominates_is_pale_and_one_of_another_shape_is_not() -> None:
    """At 64 fewer tokens than at 32, and slower for each user."""
    now = running()
    *others, last = now.stages
    worse = replace(last.throughput, output_tokens_per_s_per_gpu=100.0)
    found = [
        drawn(view_of(replace(now, stages=(*others, replace(last, isl=isl, throughput=worse))), metric="frontier"))
        for isl in (last.isl, last.isl + 1)
    ]
    assert [shown.partition("\n")[2].count("○") for shown in found] == [1, 0]
    assert "○ dominated" in found[0].partition("\n")[0]


def test_without_gpus_the_frontier_is_of_the_server() -> None:
    stages = tuple(
        replace(one, throughput=replace(one.throughput, output_tokens_per_s_per_gpu=None)) for one in running().stages
    )
    assert "output tok/s by tok/s per user" in drawn(view_of(running(stages=stages), metric="frontier"))


def test_a_stage_has_no_place_by_e2e_until_that_is_known() -> None:
    now = running()
    *others, last = now.stages
    too_early = replace(now, stages=(*others, replace(last, e2e_needs_s=12.0)))
    assert drawn(view_of(too_early, metric="e2e")).partition("\n")[2].count("●") == 3


@pytest.mark.parametrize("metric", ["ttft", "tpot", "itl", "e2e", "frontier"])
@pytest.mark.parametrize("size", [(20, 3), (60, 9), (240, 30)])
def test_it_draws_at_every_size_and_of_nothing(metric: str, size: tuple[int, int]) -> None:
    drawn(view_of(running(), metric=metric), *size)
    drawn(view_of(running(stages=(), curve=()), metric=metric), *size)


def test_a_load_that_was_only_passed_by_has_a_row_and_no_point() -> None:
    now = ramped()
    passed = replace(now.curve[0], measured_s=0.008)
    brief = replace(now, curve=(passed, *now.curve[1:]))
    assert len(points_of(brief)) == len(points_of(now)) - 1
    assert "6 loads" in table(view_of(brief), height=9)[0]


def test_a_limit_far_above_does_not_squeeze_the_curve() -> None:
    near, far = (drawn(view_of(running(slo_ms={"ttft_p99": limit_ms}))) for limit_ms in (2_000.0, 10_000.0))
    assert "SLO ttft_p99" in near and "SLO ttft_p99" not in far
