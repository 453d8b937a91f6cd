"""The figures of a stage: the same from its record and from its result, and which stage of several counts."""

import msgspec
import pytest

from loadgen.metrics.difference import Estimate
from loadgen.metrics.histogram import Histogram
from loadgen.profile.schema import Reference, ReferencePoint
from loadgen.record.figures import (
    FIGURES,
    LoadShape,
    compared,
    figures_of,
    load_of,
    load_requested,
    sound_stage,
    stages_by_load,
    without_words,
)
from loadgen.record.reference import compare
from loadgen.record.stage import StageRecord
from loadgen.schema.comparison import Comparison
from loadgen.schema.deltas import StageDelta
from loadgen.schema.engine import EngineStage
from loadgen.schema.journal import StageStarted
from loadgen.schema.result import Goodput, Limits
from tests.metrics.served import result_of, run_of, running_figures, served
from tests.report.test_text import stage_of_sessions


def test_a_running_stage_and_its_result_have_the_same_figures() -> None:
    stage = served(1, in_step=True)
    now, then = running_figures(stage), figures_of(result_of(stage))
    assert now.keys() == then.keys() and {"output_tok_s", "req_s", "ttft_p50", "e2e_p99"} <= now.keys()
    for name, estimate in now.items():
        assert estimate.value == then[name].value
        assert estimate.low == pytest.approx(then[name].low, rel=1e-3)
        assert estimate.high == pytest.approx(then[name].high, rel=1e-3)
    assert load_requested(stage.started) == load_of(result_of(stage))


def test_every_estimate_encloses_its_value() -> None:
    for estimate in figures_of(result_of(served(2))).values():
        assert estimate.low <= estimate.value <= estimate.high


def test_good_streams_and_energy_are_figures_where_they_are_known() -> None:
    good = Goodput({"ttft": 200.0}, good=480, determined=480, share=1.0, requests_per_s=16.0, wanted=0.9, met=True)
    plain = result_of(served(3))
    found = figures_of(msgspec.structs.replace(plain, goodput=good))
    assert found["goodput"].value == 100.0 == found["goodput"].high > found["goodput"].low
    assert "goodput" not in figures_of(plain) and "j_per_token" not in figures_of(plain)
    assert running_figures(served(3), Limits({"ttft": 200.0}))["goodput"] == found["goodput"]


def test_hits_and_interactivity_of_sessions_are_figures() -> None:
    found = figures_of(stage_of_sessions())
    assert (found["hits"].value, found["interactivity"].value) == (95.0, 0)
    (hits,) = (one for one in compared(found, {"hits": Estimate(50.0)}) if one.figure == "hits")
    assert hits.difference is not None and hits.difference.word == "no evidence"  # it has no interval


def test_a_result_without_histograms_has_values_without_intervals() -> None:
    stage = result_of(served(4))
    bare = {name: msgspec.structs.replace(summary, hdr=None) for name, summary in stage.latency_ms.items()}
    found = figures_of(msgspec.structs.replace(stage, latency_ms=bare, precision=None))
    assert found["ttft_p50"].value == figures_of(stage)["ttft_p50"].value
    assert all(one.difference is None or one.difference.low is None for one in compared(found, found))


def test_a_figure_of_one_side_only_has_no_difference() -> None:
    a = figures_of(result_of(served(5)))
    found = compared(a, {"req_s": a["req_s"]})
    assert [one.figure for one in found] == [name for name in FIGURES if name in a]
    assert [one.figure for one in found if one.difference is not None] == ["req_s"]


def test_doubt_takes_the_words_and_leaves_the_numbers() -> None:
    a, b = (figures_of(result_of(served(1, scale=scale))) for scale in (1.0, 1.5))
    said = compared(a, b)
    doubted = without_words([*said, *compared(a, {})])
    assert {one.difference.word for one in said if one.difference is not None} >= {"worse"}
    assert {one.difference.word for one in doubted if one.difference is not None} == {"no evidence"}
    assert [one.b for one in doubted[: len(said)]] == [one.b for one in said]


def test_of_several_stages_the_last_sound_one_counts() -> None:
    stages = [served(1, index=0), served(2, index=1), served(3, index=2, concurrency=32)]
    first, again, other = run_of(*stages).stages
    limited = msgspec.structs.replace(again, limited=True, why="its CPU was full")
    assert sound_stage([first, again]) == again
    assert sound_stage([first, limited]) == first
    assert sound_stage([limited]) == limited
    by_load = stages_by_load(run_of(*stages))
    assert [load.words for load in by_load] == ["conc 16, ISL 512, OSL 128", "conc 32, ISL 512, OSL 128"]
    assert [len(found) for found in by_load.values()] == [2, 1] and by_load[load_of(other)][0].index == 2


def test_loads_in_words() -> None:
    assert LoadShape(None, 2.5, "poisson", 512, 128).words == "rate 2.5/s poisson, ISL 512, OSL 128"
    assert LoadShape(None, 2.5, None, 512, 128).words == "rate 2.5/s, ISL 512, OSL 128"
    assert LoadShape(None, None, "replay", 512, 128).words == "replay, ISL 512, OSL 128"
    assert LoadShape(8, None, None, 512, 128, pass_number=2).words == "conc 8, ISL 512, OSL 128, pass 2"
    assert LoadShape(8, None, None, 512, 128, in_sessions=True).words == "8 sessions"


def test_passes_are_loads_of_their_own() -> None:
    first = run_of(served(1)).stages[0]
    passes = [msgspec.structs.replace(first, pass_number=number) for number in (1, 2)]
    run = msgspec.structs.replace(run_of(served(1)), stages=passes)
    assert [[stage.pass_number for stage in found] for found in stages_by_load(run).values()] == [[1], [2]]


# Published figures next to measured ones.


SECOND = 1_000_000_000


def histogram_ms(*values: int) -> Histogram:
    histogram = Histogram()
    histogram.record_ns([1_000_000 * value for value in values])
    return histogram


def stage(*, completed: int = 80) -> StageRecord:
    record = StageRecord(StageStarted(t_s=0.0, index=2, concurrency=8, rate=None, isl=4096, osl=1024, requests=80))
    record.metrics.add(
        StageDelta(
            completed=completed,
            input_tokens=327_680,
            output_tokens=81_920,
            window_requests=80,
            window_input_tokens=320_000,
            window_output_tokens=80_000,
            window_start_ns=0,
            window_end_ns=160 * SECOND,
            latency={"ttft": histogram_ms(*range(1, 101)).encode(), "normalized": histogram_ms(12).encode()},
        )
    )
    return record


def published(figures: dict[str, float], *, completed: int = 80, **load: int) -> list[Comparison]:
    point = ReferencePoint.model_validate({"figures": figures, "of": "MI300X", **load})
    return compare(Reference(source="a publication", points=[point]), stage(completed=completed))


@pytest.mark.parametrize(
    ("figure", "measured"),
    [
        ("ttft_mean_ms", 50.5),
        ("ttft_p50_ms", 50.015),
        ("ttft_p999_ms", 100.0),
        ("ttft_p10_ms", 10.007),
        ("itl_p99_ms", None),
        ("normalized_mean_ms", 12.0),
        ("requests_per_s", 0.5),
        ("requests_per_min", 30.0),
        ("input_tokens_per_s", 2000.0),
        ("output_tokens_per_s", 500.0),
        ("total_tokens_per_s", 2500.0),
        ("duration_s", 160.0),
        ("completed", 80.0),
        ("input_tokens", 327_680.0),
        ("output_tokens", 81_920.0),
    ],
)
def test_every_figure_has_its_measurement(figure: str, measured: float | None) -> None:
    (comparison,) = published({figure: 100.0})
    assert comparison.measured == measured
    assert (comparison.stage, comparison.of, comparison.figure) == (2, "MI300X", figure)


def test_the_difference_is_measured_against_published() -> None:
    (comparison,) = published({"requests_per_s": 0.4})
    assert comparison.difference_percent == 25.0


@pytest.mark.parametrize(
    ("load", "matches"),
    [
        ({}, True),
        ({"concurrency": 8}, True),
        ({"concurrency": 16}, False),
        ({"isl": 4096, "osl": 1024}, True),
        ({"isl": 1024}, False),
        ({"rate": 8}, False),
    ],
)
def test_a_point_speaks_of_stages_with_its_load(load: dict[str, int], matches: bool) -> None:
    assert bool(published({"duration_s": 171.0}, **load)) is matches


def test_nothing_measured_is_no_difference() -> None:
    (comparison,) = published({"duration_s": 171.0}, completed=0)
    assert (comparison.measured, comparison.difference_percent) == (None, None)


def passed(number: int, hit_rate: float | None, tokens: int = 1000) -> StageRecord:
    again = stage()
    again.started = msgspec.structs.replace(again.started, pass_number=number, index=number)
    again.engine = EngineStage(prefix_hit_rate=hit_rate, prompt_tokens=tokens)
    return again


@pytest.mark.parametrize(
    ("rates", "measured"), [([0.01], None), ([0.01, 0.97], 49.0), ([0.01, None], None), ([None, 0.97], None)]
)
def test_prefix_hits_are_of_all_passes_so_far(rates: list[float | None], measured: float | None) -> None:
    point = ReferencePoint(pass_number=2, figures={"prefix_hit_percent": 50})
    *earlier, last = [passed(number, rate) for number, rate in enumerate(rates, start=1)]
    found = compare(Reference(source="a publication", points=[point]), last, earlier=earlier)
    assert [one.measured for one in found] == ([] if len(rates) == 1 else [measured])
