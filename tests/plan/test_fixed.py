"""From a profile to its stages."""

import pytest

from loadgen.errors import ProfileError
from loadgen.plan import Stage, check_lengths, plan_of
from loadgen.profile.document import build_profile


def plan(**parts: object) -> list[Stage]:
    return plan_of(build_profile({"server": {"engine": "simulator"}, **parts}, where="test"))


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
