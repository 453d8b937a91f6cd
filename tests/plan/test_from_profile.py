"""From a profile to its stages."""

from collections import Counter
from itertools import takewhile

import pytest

from loadgen.errors import ProfileError
from loadgen.plan.from_profile import SESSIONS_S, ladder_loads, next_stages, stages_of
from loadgen.plan.stage import Measured, Stage, check_lengths
from loadgen.profile.document import build_profile
from loadgen.workload.arrivals import arrival_offsets_s
from tests.plan.probing import play, profile


def plan(**parts: object) -> list[Stage]:
    return stages_of(build_profile({"server": {"engine": "simulator"}, **parts}, where="test"))


def test_one_stage_for_each_concurrency() -> None:
    stages = plan(load={"concurrency": [1, 4], "isl": 10, "osl": 20})
    assert [(stage.concurrency, stage.rate, stage.requests, stage.duration_s) for stage in stages] == [
        (1, None, 10, None),
        (4, None, 40, None),
    ]
    assert stages[1].title == "conc 4"


def test_each_shape_with_each_concurrency() -> None:
    stages = plan(load={"concurrency": [4, 8], "shapes": [[1024, 1024], [1024, 8192]], "isl": 10})
    assert [(stage.isl, stage.osl, stage.concurrency) for stage in stages] == [
        (1024, 1024, 4),
        (1024, 1024, 8),
        (1024, 8192, 4),
        (1024, 8192, 8),
    ]


def test_one_stage_for_each_rate() -> None:
    stages = plan(load={"rate": [0.5, 8], "arrival": "constant"})
    assert [(stage.rate, stage.concurrency, stage.duration_s, stage.arrival) for stage in stages] == [
        (0.5, None, 30.0, "constant"),
        (8.0, None, 30.0, "constant"),
    ]
    assert stages[0].title == "rate 0.5/s"


def test_a_stage_says_only_what_differs() -> None:
    load = {"concurrency": 2, "isl": 7, "duration": "5s", "warmup": "1s"}
    first, second, third = plan(
        load=load, stages=[{"isl": 99}, {"rate": 3.0, "warmup": 4}, {"concurrency": 8, "requests": 5, "label": "burst"}]
    )
    assert (first.concurrency, first.isl, first.duration_s, first.warmup_s) == (2, 99, 5.0, 1.0)
    assert (second.rate, second.concurrency, second.warmup_requests, second.warmup_s) == (3.0, None, 4, 0.0)
    assert (third.concurrency, third.requests, third.duration_s, third.title) == (8, 5, None, "burst")


@pytest.mark.parametrize("limit", [None, 100])
def test_lengths_within_the_model(limit: int | None) -> None:
    check_lengths(plan(load={"isl": 60, "osl": 40}), limit, where="p.toml")


def test_lengths_beyond_the_model() -> None:
    with pytest.raises(ProfileError, match=r"p\.toml: stage 1: isl 60 \+ osl 41 = 101 tokens.*max_model_len is 100"):
        check_lengths(plan(load={"isl": 60, "osl": 41}), 100, where="p.toml")


def loads(**parts: object) -> list[float]:
    return [stage.load for stage in stages_of(profile(**parts))]


def test_ladders() -> None:
    assert loads(plan={"ladder": 64}) == [1, 2, 4, 8, 16, 32, 64]
    assert loads(plan={"ladder": 100}) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert loads(plan={"ladder": [1, 10, 3]}) == [1, 10, 3]
    assert ladder_loads(1) == [1]
    stages = stages_of(profile(plan={"ladder": [0.5, 8], "by": "rate"}))
    assert [(stage.rate, stage.concurrency) for stage in stages] == [(0.5, None), (8, None)]


def test_a_ladder_goes_up_each_shape() -> None:
    stages = stages_of(profile(plan={"ladder": 2}, load={"shapes": [[10, 20], [30, 40]]}))
    assert [(stage.isl, stage.concurrency) for stage in stages] == [(10, 1), (10, 2), (30, 1), (30, 2)]


def test_a_ramp_is_one_stage_whose_load_moves_by_steps() -> None:
    (up,) = stages_of(profile(plan={"ramp": {"start": 1, "end": 10, "over": "20s"}}))
    assert up.steps == tuple((2.0 * step, 1.0 + step) for step in range(10))
    assert (up.concurrency, up.duration_s, up.requests, up.most_streams) == (1, 20.0, None, 10)
    (down,) = stages_of(profile(plan={"ramp": {"start": 4, "end": 1, "over": "60s", "steps": 30}}))
    assert [load for _, load in down.steps] == [4, 3, 2, 1]
    assert (down.concurrency, down.duration_s, down.most_streams) == (4, 60.0, 4)


def test_a_ramp_of_rates_sends_in_each_step_what_its_label_says() -> None:
    (stage,) = stages_of(profile(plan={"ramp": {"start": 10, "end": 100, "over": "20s"}, "by": "rate"}))
    assert [load for _, load in stage.steps] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert (stage.rate, stage.concurrency) == (55, None)
    sent_s = takewhile(lambda at_s: at_s < 20, arrival_offsets_s(55, "constant", 1, stage.rate_points))
    assert list(Counter(int(at_s // 2) for at_s in sent_s).values()) == [2 * load for _, load in stage.steps]


def test_a_soak_is_one_long_stage() -> None:
    (stage,) = stages_of(profile(plan={"soak": "2h"}, load={"concurrency": [16, 32]}))
    assert (stage.concurrency, stage.duration_s, stage.requests, stage.title) == (16, 7200, None, "soak")


def test_no_load_lasts_as_long_as_requested_and_counts_no_requests() -> None:
    (stage,) = plan(load={"concurrency": 0, "requests": 20, "duration": "30s", "warmup": 4})
    assert (stage.title, stage.requests, stage.duration_s, stage.warmup_requests) == ("no load", None, 30.0, 0)
    (stage,) = plan(load={"concurrency": 0})
    assert (stage.requests, stage.duration_s) == (None, None)
    first, second = plan(load={"concurrency": [0, 8], "duration": "30s"}, plan={"settle": "5s"})
    assert (first.settle_s, second.settle_s) == (0.0, 5.0)


def test_no_load_is_cut_into_pieces() -> None:
    pieces = plan(load={"concurrency": 0, "duration": "25s"}, plan={"every": "10s"})
    assert [piece.duration_s for piece in pieces] == [10.0, 10.0, 5.0]
    document = {"server": {"engine": "simulator"}, "load": {"concurrency": 0}, "plan": {"every": "10s"}}
    endless = build_profile(document, where="test")
    following = next_stages(endless)
    third = following([Measured(stage=stage) for stage in stages_of(endless) * 2])
    assert isinstance(third, Stage) and third.duration_s == 10.0


def test_a_fixed_plan_gives_its_stages_whatever_they_measure() -> None:
    found, stages = play(next_stages(profile(plan={"ladder": 8})), lambda stage: Measured(stage=stage))
    assert found is None
    assert [stage.load for stage in stages] == [1, 2, 4, 8]


def test_a_settled_stage_is_bounded_by_time_and_needs_its_requests() -> None:
    def settled(**load: object) -> Stage:
        return stages_of(profile(plan={"settle": "20s", "longest": "60s"}, load={"warmup": 5, **load}))[0]

    counted = settled(requests=40)
    assert (counted.requests, counted.min_completed, counted.settle_s) == (None, 40, 20)
    assert (counted.duration_s, counted.max_duration_s, counted.warmup_requests) == (1, 60, 0)
    timed = settled(duration="90s")
    assert (timed.min_completed, timed.duration_s, timed.max_duration_s) == (0, 90, 90)


def test_a_search_shows_its_first_and_furthest_stage() -> None:
    assert loads(plan={"search": "knee", "most": 300}) == [1, 300]
    first, _ = stages_of(profile(plan={"search": "slo"}, slo={"ttft": "2s", "tpot_p97": "50ms"}))
    assert (first.concurrency, first.settle_s, first.min_completed) == (8, 30, 50)
    assert first.limits_ms == {"ttft": 2000}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"plan": {"ladder": []}}, r"plan.ladder = \[\]: an empty ladder"),
        ({"plan": {"ladder": 0}}, "plan.ladder"),
        ({"plan": {"ladder": [1.5]}}, 'ladder: 1.5 is not a concurrency.*by = "rate"'),
        ({"plan": {"search": "slo"}}, "has no limit to search for: give one, such as slo.ttft_p99"),
        ({"plan": {"search": "knee", "by": "rate"}}, "goes by concurrency"),
        ({"plan": {"search": "best"}}, "plan.search = 'best'"),
        ({"plan": {"search": "knee", "soak": "1h"}}, "soak and search are plans of their own"),
        ({"plan": {"least": 9, "most": 3}}, r"least \(9\) is above most \(3\)"),
        ({"plan": {"completed": 5}}, "completed is for settled stages"),
        ({"plan": {"ladder": 4}, "stages": [{"concurrency": 1}]}, r"plan.ladder and \[\[stages\]\] are two plans"),
        ({"plan": {"search": "knee"}, "load": {"shapes": [[1, 2]]}}, "goes by one shape"),
        ({"plan": {"serach": "knee"}}, "did you mean plan.search"),
        ({"plan": {"ramp": {"start": 1, "end": 2}}}, "plan.ramp.over: is missing"),
        ({"plan": {"every": "10s"}}, "plan.every is for load.concurrency = 0 alone"),
        ({"server": {"engine": "none"}}, 'engine "none" is no server to load'),
        ({"slo": {"ttfb": "2s"}}, "slo.ttfb: expected a metric and a statistic"),
        ({"tiers": [3]}, "tiers.0 = 3: "),
        ({"tiers": [{"name": "fast"}]}, "tiers.0: name is no limit; a tier needs a limit, such as tokens_per_s = 30"),
        ({"slo": {"ttft_p100": "2s"}}, "slo.ttft_p100"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(parts: dict[str, object], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        profile(**parts)


def test_no_load_without_an_end_is_a_plan_of_its_own() -> None:
    with pytest.raises(ProfileError, match="needs a duration to end"):
        plan(load={"concurrency": [0, 8]})


SESSIONS = {"data": "sample", "scale": 0.1}


def test_sessions_are_a_closed_loop_that_time_bounds() -> None:
    (stage,) = plan(load={"sessions": SESSIONS, "concurrency": 4, "max_concurrency": 2})
    assert (stage.concurrency, stage.max_concurrency, stage.requests, stage.duration_s) == (4, 2, None, SESSIONS_S)


def test_sessions_have_no_rate() -> None:
    with pytest.raises(ProfileError, match="sessions need a concurrency, the number of live ones, not a rate"):
        plan(load={"sessions": SESSIONS, "rate": 2})


def test_sessions_beyond_the_model_are_to_end_before() -> None:
    limits = {"concurrency": 4, "sessions": SESSIONS | {"max_context": 9000}}
    check_lengths(plan(load=limits), 9000, where="p.toml")
    with pytest.raises(ProfileError, match=r"end sessions before .* load\.sessions\.max_context = 800"):
        check_lengths(plan(load=limits), 800, where="p.toml")
