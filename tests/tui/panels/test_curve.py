"""The curve view: a point for each load, and a line for each way up or down."""

from typing import Any

import msgspec
import pytest

from loadgen.schema.comparison import Comparison
from loadgen.schema.result import CurvePoint, Hits, Target, TierResult
from loadgen.schema.shared import SearchResult
from loadgen.schema.snapshot import Snapshot
from tests.tui.painted import frame_of, lines
from tests.tui.scripted import curve_point, running, stage
from tui.panels.curve import curve, points_of
from tui.panels.stages import loads
from tui.screens.pages import copied_loads, copied_stages

replace = msgspec.structs.replace


def drawn(snapshot: Snapshot, width: int = 80, height: int = 20, **changes: Any) -> tuple[str, str]:
    """The titles with their legends, and the plots."""
    titles, *plots = lines(curve, frame_of(snapshot, **changes), width, height) or [""]
    return titles, "\n".join(plots)


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
    titles, plots = drawn(ramped(), metric="itl")
    assert all(words in titles for words in ("ITL ms by streams held", "▲ p50 up", "▼ p50 down", "△ p99 up"))
    assert sum(plots.count(sign) for sign in "▲▼") >= 6
    assert not any(sign in drawn(ramped(), metric="e2e")[1] for sign in "▲▼△▽")


def test_table_has_a_row_for_each_load() -> None:
    heads, *rows = lines(loads, ramped(), 80, 5)
    assert heads.split() == "load held tok/s /user TTFT p50 p99 count ITL p50 p99 count".split()
    assert [row.split()[0:2] for row in rows] == [["8", "▼"], ["▸", "16"], ["32", "▼"], ["8", "▲"]]
    assert rows[0].split()[-1] == "100"
    assert "6 loads" in lines(loads, ramped(), 80, 9)[0]


def test_two_stages_at_one_load_are_one_point() -> None:
    first, second, third = (stage(n, size, 2.0, running=n == 3) for n, size in ((1, 8), (2, 16), (3, 16)))
    both = replace(curve_point(third), output_tokens_per_s=700.0)
    by_hand = replace(running(10.0), stages=(first, second, third), curve=(curve_point(first), both))
    points = points_of(by_hand)
    assert [(one.name, one.output) for one in points] == [
        ("8", first.throughput.output_tokens_per_s),
        ("16", 700.0),
    ]
    assert points[1].latency["e2e"] == third.latency_ms["e2e"]
    assert len(lines(loads, by_hand, 80, 5)) == 3
    assert copied_loads(frame_of(by_hand)).startswith("| load | held |")
    assert copied_loads(frame_of(running())) == copied_stages(frame_of(running()))


def test_a_rate_is_a_point_at_its_streams() -> None:
    at_rate = replace(stage(1, 8, 30.0, running=True), target=Target(None, 2.5, "poisson"))
    (only,) = points_of(replace(running(10.0), stages=(at_rate,), curve=()))
    assert (only.name, only.held) == ("2.50/s", at_rate.concurrency.mean)


def test_published_and_found_loads_have_signs() -> None:
    published = Comparison(3, "", "output_tokens_per_s", 1800.0, 3667.0, 100.0)
    found = SearchResult("knee", "concurrency", 32.0, 24.0, 48.0, resolved=True, why="", probes=6)
    _, plots = drawn(running(reference=(published,), search=found), width=220)
    assert plots.count("✦") == 3 and plots.count("◇") == 1  # the frontier has neither: it has no axis of loads


def test_total_throughput_by_e2e_has_what_was_published() -> None:
    figures = {"e2e_p50_ms": 12_000.0, "total_tokens_per_s": 9_000.0, "e2e_mean_ms": 12_100.0}
    published = tuple(Comparison(1, "MI300X", name, value, None, None) for name, value in figures.items())
    titles, plot = drawn(running(reference=published), metric="e2e")
    assert titles.startswith("total tok/s by E2E p50 ms") and "◇ published" in titles
    assert plot.count("◇") == 1 and plot.count("●") == 4
    now = running()
    too_early = replace(now, stages=(*now.stages[:-1], replace(now.stages[-1], e2e_needs_s=12.0)))
    assert drawn(too_early, metric="e2e")[1].count("●") == 3


def test_a_dominated_stage_is_pale_unless_it_has_another_shape() -> None:
    """At 64 fewer tokens than at 32, and slower for each user."""
    *others, last = running().stages
    worse = replace(last.throughput, output_tokens_per_s_per_gpu=100.0)
    for isl, pale in ((last.isl, 1), (last.isl + 1, 0)):
        dominated = replace(running(), stages=(*others, replace(last, isl=isl, throughput=worse)))
        titles, plot = drawn(dominated, metric="frontier")
        assert plot.count("○") == pale and ("○ dominated" in titles) == bool(pale)
        assert "tok/s per GPU by tok/s per user" in titles


def test_without_gpus_the_frontier_is_that_of_the_server() -> None:
    stages = tuple(
        replace(one, throughput=replace(one.throughput, output_tokens_per_s_per_gpu=None)) for one in running().stages
    )
    assert "output tok/s by tok/s per user" in drawn(running(stages=stages), metric="frontier")[0]


@pytest.mark.parametrize("metric", ["ttft", "tpot", "itl", "e2e", "frontier"])
@pytest.mark.parametrize("size", [(20, 3), (60, 9), (240, 30)])
def test_it_draws_at_every_size_and_without_stages(metric: str, size: tuple[int, int]) -> None:
    drawn(running(), *size, metric=metric)
    drawn(running(stages=(), curve=()), *size, metric=metric)


def test_a_load_that_was_only_passed_has_a_row_and_no_point() -> None:
    now = ramped()
    brief = replace(now, curve=(replace(now.curve[0], measured_s=0.008), *now.curve[1:]))
    assert len(points_of(brief)) == len(points_of(now)) - 1
    assert "6 loads" in lines(loads, brief, 80, 9)[0]


def test_a_limit_far_above_does_not_squeeze_the_curve() -> None:
    near, far = (drawn(running(slo_ms={"ttft_p99": limit_ms}))[1] for limit_ms in (2_000.0, 10_000.0))
    assert "SLO ttft_p99" in near and "SLO ttft_p99" not in far


def test_hits_of_sessions_stand_next_to_what_a_cache_could_hold() -> None:
    shares = {8: 0.96, 32: 0.9, 64: 0.04}
    points = tuple(
        replace(curve_point(stage(1, size, 30.0, running=False), ""), hits=Hits(hit, None, 0.96, 0.2, 2_000_000))
        for size, hit in shares.items()
    )
    titles, plots = drawn(replace(running(10.0), curve=points), width=110)
    assert "prefix hit % by live sessions" in titles
    assert "measured" in titles
    assert all(str(size) in plots for size in shares)


def test_plain_loads_have_no_plot_of_hits() -> None:
    assert "prefix hit" not in drawn(running(10.0), width=300)[0]


def test_a_tier_is_marked_where_it_was_found() -> None:
    tier = TierResult("30 tok/s", "concurrency", 16.0, None, None, 32.0)
    titles, plots = drawn(replace(running(130.0), tiers=(tier,)), width=160)
    assert "✦" in titles + plots and "30 tok/s: 16, not 32 ?" in titles
