"""The figures' data: points where they belong, limits and marks in sight."""

from typing import Any

import msgspec
import plotly.graph_objects as go
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.report.html.charts import (
    distribution,
    has_curve,
    latency_curve,
    ramp,
    throughput_curve,
)
from loadgen.schema.result import Result
from loadgen.schema.shared import SearchResult
from tests.report.test_text import result, stage

replace = msgspec.structs.replace


def traces(figure: go.Figure | None) -> list[dict[str, Any]]:
    """The data of a figure as plotly's code would get it."""
    assert figure is not None
    found: list[dict[str, Any]] = figure.to_plotly_json()["data"]
    return found


def words(figure: go.Figure) -> str:
    return " ".join(shape.label.text for shape in figure.layout.shapes)


def test_a_stage_is_a_point(measured: Result) -> None:
    rates = [one.throughput.output_tokens_per_s for one in measured.stages]
    p99, p50, published = traces(latency_curve(measured, "ttft"))
    assert list(p50["x"]) == list(p99["x"]) == rates
    assert list(p50["y"]) == [one.latency_ms["ttft"].p50 for one in measured.stages]
    # All of them missed a limit of a microsecond.
    assert set(p50["marker"]["symbol"]) == {"circle-open"}
    assert (list(published["x"]), list(published["y"])) == ([500.0], [40.0])


def test_total_throughput_against_e2e_with_what_was_published(measured: Result) -> None:
    line, published = traces(throughput_curve(measured))
    assert list(line["x"]) == [one.latency_ms["e2e"].p50 for one in measured.stages]
    assert list(line["y"]) == [one.throughput.total_tokens_per_s for one in measured.stages]
    assert list(line["text"]) == ["2", "4"]
    assert (list(published["x"]), list(published["y"])) == ([90.0], [1500.0])
    assert published["name"] == "published"


def test_e2e_of_short_and_long_answers_has_a_logarithmic_axis(measured: Result) -> None:
    first, second = measured.stages
    e2e = second.latency_ms["e2e"]
    far = second.latency_ms | {"e2e": replace(e2e, p50=100 * (e2e.p50 or 0))}
    figures = [
        throughput_curve(replace(measured, stages=[first, one]))
        for one in (second, replace(second, osl=8192, latency_ms=far))
    ]
    assert [figure.layout.xaxis.type for figure in figures] == [None, "log"]


def test_a_stage_that_ended_too_early_for_its_e2e_is_no_point_of_it(measured: Result) -> None:
    first, second = measured.stages
    cut = replace(measured, stages=[replace(first, e2e_inconclusive="E2E: too short"), second], reference=None)
    (line,) = traces(throughput_curve(cut))
    assert (line["x"][0], line["y"][0]) == (None, None) and None not in (line["x"][1], line["y"][1])


def test_a_limit_is_a_line_where_it_lies(measured: Result) -> None:
    figure = latency_curve(measured, "ttft")
    assert [shape.y0 for shape in figure.layout.shapes] == [0.001]
    assert "limit p99 0.001 ms" in words(figure)
    assert not latency_curve(measured, "tpot").layout.shapes  # 100 s would squeeze the values


def test_what_a_search_has_found_is_marked(measured: Result) -> None:
    search = SearchResult("knee", "concurrency", 3.0, 2.5, 3.5, True, "", 5)
    figure = latency_curve(replace(measured, search=search), "itl")
    low, high = sorted(one.throughput.output_tokens_per_s or 0.0 for one in measured.stages)
    (line,) = figure.layout.shapes
    assert low < line.x0 < high
    assert "knee, concurrency 3" in words(figure)


def test_shapes_have_a_colour_each(measured: Result) -> None:
    first, second = measured.stages
    shapes = replace(measured, stages=[first, replace(second, isl=4096)], reference=None)
    p99, p50, *others = traces(latency_curve(shapes, "ttft"))
    assert p99["line"]["dash"] == "dot" and p50["line"]["dash"] == "solid"
    assert others[1]["line"]["color"] != p50["line"]["color"]


def test_one_load_is_no_curve(measured: Result) -> None:
    assert not has_curve(result(stage(80), stage(80)))
    published = replace(measured, stages=measured.stages[:1])
    assert has_curve(published) and not has_curve(replace(published, reference=None))


def test_a_distribution_ends_where_its_values_end() -> None:
    histogram = Histogram()
    histogram.record_ns([1_000_000 * value for value in range(1, 101)])
    latency = stage(80).latency_ms | {"ttft": histogram.summary(with_hdr=True)}
    (line,) = traces(distribution(result(replace(stage(80), latency_ms=latency)), "ttft"))
    assert line["x"][0] == 1.0 and line["x"][-1] == pytest.approx(100.0)
    assert line["y"][0] == pytest.approx(1.0, rel=2e-3)
    assert line["y"][line["customdata"].index("50")] == pytest.approx(50.0, rel=2e-3)
    assert line["y"][-1] == pytest.approx(99.0, rel=2e-3)
    assert distribution(result(stage(80)), "ttft") is None


def test_a_ramp_ends_in_the_strong_tone() -> None:
    assert ramp(1) == ramp(5)[-1:]
    assert len(set(ramp(8))) == 8
