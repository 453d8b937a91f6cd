"""The time axis: rows, marks, and what a long run leaves of its columns."""

import msgspec
import pytest

from loadgen.report.html.timeline import stage_starts_s, timeline
from loadgen.schema.result import Result
from tests.report.test_text import result

replace = msgspec.structs.replace


def rows(measured: Result) -> list[str]:
    figure = timeline(measured)
    assert figure is not None
    return [note.text for note in figure.layout.annotations if note.text.startswith("<b>")]


def test_only_what_is_known_has_a_row(measured: Result) -> None:
    found = " ".join(rows(measured))
    for title in (
        "Load",
        "Output, tok/s",
        "TTFT",
        "Engine",
        "KV cache",
        "GPU activity",
        "HBM",
        "GPU power",
        "Host CPU",
    ):
        assert f"<b>{title}" in found
    assert "Failed" not in found
    bare = " ".join(rows(replace(measured, gpu_series=[], host_series={})))
    assert "GPU" not in bare and "Host" not in bare
    assert timeline(result()) is None


def test_all_rows_share_the_axis_and_its_marks(measured: Result) -> None:
    figure = timeline(measured)
    assert figure is not None
    starts = set(stage_starts_s(measured).values())
    notes = {event.t_s for event in measured.events if event.kind == "note"}
    assert notes
    assert {shape.x0 for shape in figure.layout.shapes} == starts | notes
    assert {(shape.y0, shape.y1, shape.yref) for shape in figure.layout.shapes} == {(0, 1, "paper")}
    count = len(rows(measured))
    assert all(figure.layout[f"xaxis{number}"].matches == f"x{count}" for number in range(2, count))


def test_each_gpu_is_a_line(measured: Result) -> None:
    figure = timeline(measured)
    assert figure is not None
    busy = [trace for trace in figure.data if trace.name == "GPU 0"]
    assert len(busy) >= 4
    (series,) = [gpu for gpu in measured.gpu_series if gpu.index == 0]
    watts = next(trace for trace in busy if trace.y[-1] == pytest.approx(series.columns["power_w"][-1], rel=1e-3))
    assert len(watts.x) == len(series.columns["t_s"])


def test_what_was_merged_is_a_band(measured: Result) -> None:
    series = {"t_s": [0.0, 1.0], "held": [4, 9], "held_min": [1, 2], "target": [None, None]}
    figure = timeline(replace(measured, series=series, gpu_series=[], host_series={}))
    assert figure is not None
    low, high = figure.data
    assert (list(low.y), list(high.y), high.fill) == ([1.0, 2.0], [4.0, 9.0], "tonexty")
