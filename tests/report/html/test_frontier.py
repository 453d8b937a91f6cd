"""The frontier's data: points by their load, pale where another of their shape is better, open ones as they are."""

from typing import Any

import msgspec

from loadgen.report.html.charts import ColouredStages, axes_of, frontier_figure
from loadgen.schema.result import StageResult, Target
from tests.report.test_text import stage

replace = msgspec.structs.replace


def at(load: int, per_user: float, per_gpu: float | None, **changes: Any) -> StageResult:
    rates = {"output_tokens_per_s_per_user": per_user, "output_tokens_per_s_per_gpu": per_gpu}
    throughput = replace(stage(80).throughput, **rates)
    return replace(stage(80), index=load, target=Target(load, None, None), throughput=throughput, **changes)


def drawn(*series: ColouredStages) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frontier_figure(series).to_plotly_json()["data"]
    return found


FAST = ColouredStages("fast", "red", [at(1, 90, 100), at(8, 60, 400), at(32, 20, 380)])
WIDE = ColouredStages("wide", "blue", [at(1, 70, 90), at(8, 50, 350), at(32, 30, 900)])


def test_what_another_load_dominates_is_pale_and_off_the_line() -> None:
    line, points = drawn(FAST)
    assert (list(line["x"]), list(line["y"])) == ([60, 90], [400, 100])
    assert list(points["text"]) == ["1", "8", "32"]
    assert list(points["marker"]["opacity"]) == [1.0, 1.0, 0.3]
    assert set(points["marker"]["symbol"]) == {"circle-open"}  # all of them missed their limit


def test_runs_compete_on_one_picture() -> None:
    _, fast, line, wide = drawn(FAST, WIDE)
    assert list(fast["marker"]["opacity"]) == [1.0, 1.0, 0.3]
    assert list(wide["marker"]["opacity"]) == [0.3, 0.3, 1.0]
    assert list(line["x"]) == [30, 50, 70]  # its own frontier, whoever else is better
    assert wide["customdata"][2].startswith("wide: conc 8")


def test_shapes_do_not_compete() -> None:
    long = ColouredStages("long", "blue", [replace(one, isl=8192) for one in WIDE.stages])
    *_, points = drawn(FAST, long)
    assert list(points["marker"]["opacity"]) == [1.0, 1.0, 1.0]


def test_whole_servers_are_compared_where_the_gpus_of_one_are_not_known() -> None:
    unknown = ColouredStages("attached", "blue", [at(1, 70, None)])
    assert axes_of([FAST, WIDE]).labels() == ("tok/s per user", "tok/s per GPU")
    assert axes_of([FAST, unknown]).labels() == ("tok/s per user", "output tok/s")
    assert list(drawn(unknown)[1]["y"]) == [479.07]


def test_of_nothing_there_is_an_empty_figure() -> None:
    nothing = replace(stage(0), throughput=replace(stage(0).throughput, output_tokens_per_s_per_user=None))
    assert drawn(ColouredStages("none", "red", [nothing])) == drawn() == []
