"""Plans that an operator asks for: what the words mean, what follows from a load, what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.plan.from_here import plan_from_here
from loadgen.plan.from_profile import stages_of
from loadgen.plan.request import PlanRequest, parse_plan
from loadgen.plan.stage import Measured, Stage
from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile


def profile(**parts: object) -> Profile:
    load = {"isl": 512, "osl": 128, "concurrency": 8, "duration": "5s", "warmup": "1s"}
    document = {"name": "test", "server": {"engine": "attach", "url": "http://127.0.0.1:9"}, "load": load}
    return build_profile(document | parts, where="test")


def present(parts: Profile, **changes: object) -> Stage:
    (stage, *_) = stages_of(parts)
    return stage.by_hand(**changes) if changes else stage


def first(requested: PlanRequest, parts: Profile, at: Stage) -> Stage:
    stage = plan_from_here(requested, parts, at)[0]([])
    assert isinstance(stage, Stage)
    return stage


def all_of(requested: PlanRequest, parts: Profile, at: Stage) -> list[Stage]:
    plan, stages = plan_from_here(requested, parts, at)[0], list[Stage]()
    while isinstance(stage := plan([Measured(stage=each) for each in stages]), Stage):
        stages.append(stage)
    return stages


@pytest.mark.parametrize(
    ("text", "requested"),
    [
        ("8,16, 32", PlanRequest("ladder", loads=(8, 16, 32))),
        ("  2.5 ", PlanRequest("ladder", loads=(2.5,))),
        ("8, 16 each 30s", PlanRequest("ladder", loads=(8, 16), duration_s=30)),
        ("64 in 60s", PlanRequest("ramp", to=64, over_s=60)),
        ("0.5 in 2m", PlanRequest("ramp", to=0.5, over_s=120)),
        ("4 to 24 in 15s", PlanRequest("ramp", start=4, to=24, over_s=15)),
        (" 24  to 4 in 1m ", PlanRequest("ramp", start=24, to=4, over_s=60)),
    ],
)
def test_the_words_of_a_plan(text: str, requested: PlanRequest) -> None:
    assert parse_plan(text) == requested


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "a load is missing; type loads, such as 8, 16, 32"),
        ("8,,16", "a load is missing"),
        ("8 16", "8 16: not a number"),
        ("0", "0: not a load; expected a number above 0"),
        ("-3", "-3: not a load"),
        ("nan", "nan: not a load"),
        ("1e999", "1e999: not a load"),
        ("2e6", "2e6: not a load; expected a number above 0, up to 1,000,000"),
        ("4 in 0s", "0s: too short for a ramp"),
        ("0 to 4 in 5s", "0: not a load"),
        ("x to 4 in 5s", "x: not a number"),
        ("64 in an hour", "expected a duration such as 30s"),
        ("8 each day", "expected a duration such as 30s"),
    ],
)
def test_what_is_no_plan_is_reported(text: str, complaint: str) -> None:
    with pytest.raises(ProfileError, match=complaint):
        parse_plan(text)


@given(st.text())
def test_any_text_is_a_plan_or_a_complaint(text: str) -> None:
    try:
        requested = parse_plan(text)
    except ProfileError as error:
        assert str(error)
    else:
        assert requested.words


@given(st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=9))
def test_a_ladder_is_read_back(loads: list[float]) -> None:
    assert parse_plan(", ".join(map(repr, loads))).loads == tuple(loads)


def test_ladder_has_the_shape_of_the_current_stage() -> None:
    parts = profile(stages=[{"concurrency": 8}, {"concurrency": 99}])
    stages = all_of(PlanRequest("ladder", loads=(2, 4)), parts, present(parts, isl=1000, osl=10))
    assert [stage.concurrency for stage in stages] == [2, 4]
    assert [(stage.isl, stage.osl, stage.duration_s, stage.warmup_s) for stage in stages] == [(1000, 10, 5, 1)] * 2
    (timed,) = all_of(PlanRequest("ladder", loads=(2,), duration_s=30), parts, present(parts))
    assert (timed.requests, timed.duration_s) == (None, 30)


def test_an_open_loop_stays_open_and_a_dataset_stays_what_is_sent() -> None:
    parts = profile(load={"data": "sample", "osl": 16, "concurrency": 4})
    at = present(parts, concurrency=None, rate=3.0)
    stages = all_of(PlanRequest("ladder", loads=(0.5, 7)), parts, at)
    assert [(stage.rate, stage.concurrency) for stage in stages] == [(0.5, None), (7, None)]
    assert all(stage.work == at.work and stage.work.data is not None for stage in stages)


def test_of_a_trace_that_is_sent_in_part_a_ladder_sends_that_part(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"timestamp_s": {n}, "input_length": 8, "output_length": 4}}\n' for n in range(5)))
    load = {"data": str(path), "data_format": "trace", "trace": {"end": "3s", "speed": 2}, "arrival": "replay"}
    at = present(profile(load=load))
    stages = all_of(PlanRequest("ladder", loads=(1, 2)), profile(load=load), at)
    assert [(stage.rate, stage.work.data) for stage in stages] == [(1, at.work.data), (2, at.work.data)]


def test_a_ramp_goes_from_the_present_load() -> None:
    parts = profile()
    (up,) = all_of(PlanRequest("ramp", to=26, over_s=60), parts, present(parts))
    assert [load for _, load in up.steps] == [8, 10, 12, 14, 16, 18, 20, 22, 24, 26]
    assert up.duration_s == 60
    (down,) = all_of(PlanRequest("ramp", to=1, over_s=10), parts, present(parts))
    assert (down.steps[0][1], down.steps[-1][1]) == (8, 1)


def test_where_searches_from_the_current_load_begin() -> None:
    parts = profile(slo={"ttft_p99": "2s"})
    assert first(PlanRequest("slo"), parts, present(parts, concurrency=64)).concurrency == 64
    assert first(PlanRequest("slo"), parts, present(parts, concurrency=5000)).concurrency == 5000
    assert first(PlanRequest("slo"), parts, present(parts, concurrency=None, rate=0.25)).rate == 0.25
    assert first(PlanRequest("knee"), parts, present(parts, concurrency=64)).concurrency == 8
    assert first(PlanRequest("knee"), parts, present(parts)).concurrency == 1
    assert plan_from_here(PlanRequest("knee"), parts, present(parts))[1] == 0


@pytest.mark.parametrize(
    ("requested", "changes", "why"),
    [
        (PlanRequest("slo"), {}, "needs a limit"),
        (PlanRequest("knee"), {"concurrency": None, "rate": 2.0}, 'search = "knee" goes by concurrency'),
        (PlanRequest("ladder", loads=(1.5,)), {}, "1.5 is not a concurrency"),
        (PlanRequest("ladder", loads=(1e9,)), {}, "ladder: "),
        (PlanRequest("ladder"), {}, "an empty ladder"),
        (PlanRequest("ladder", loads=(8,), duration_s=0), {}, "each 0 s"),
        (PlanRequest("ramp", to=64), {}, "ramp"),
        (PlanRequest("ramp", to=64, over_s=-1), {}, "ramp.over: "),
    ],
)
def test_what_cannot_be_had_is_refused_in_words(requested: PlanRequest, changes: dict[str, object], why: str) -> None:
    parts = profile()
    with pytest.raises(ProfileError, match=why):
        plan_from_here(requested, parts, present(parts, **changes))


def test_from_no_load_a_plan_begins_with_one_stream() -> None:
    parts = profile(load={"isl": 512, "osl": 128, "concurrency": 0}, plan={"every": "10m"}, slo={"ttft_p99": "2s"})
    at = present(parts)
    assert [stage.load for stage in all_of(PlanRequest("ladder", loads=(4, 8)), parts, at)] == [4.0, 8.0]
    assert first(PlanRequest("ramp", to=8, over_s=60), parts, at).load == 1.0
    assert first(PlanRequest("slo"), parts, at).load == first(PlanRequest("knee"), parts, at).load == 1.0


def test_the_settings_of_another_plan_do_not_stand_in_the_way() -> None:
    searching = profile(plan={"search": "knee", "least": 2, "most": 64, "completed": 20})
    assert [
        stage.concurrency for stage in all_of(PlanRequest("ladder", loads=(3,)), searching, present(searching))
    ] == [3]
    by_rate = profile(plan={"by": "rate", "least": 0.5, "ladder": [1.0]}, slo={"ttft_p99": "2s"})
    assert first(PlanRequest("slo"), by_rate, present(by_rate, concurrency=3, rate=None)).concurrency == 3
