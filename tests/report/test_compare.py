"""Runs against each other: matched by load, what differs, what is not alike, and the words."""

from typing import Any

import msgspec
import pytest

from loadgen.metrics.result import Result, StageResult
from loadgen.report.compare import RunComparison, compare_runs
from tests.metrics.served import run_of, served

LADDER = run_of(served(1, concurrency=8), served(2, index=1, concurrency=16))
OTHER_LADDER = run_of(served(3, concurrency=8), served(4, index=1, concurrency=16))
SLOWER = run_of(served(3, concurrency=8, scale=1.2), served(4, index=1, concurrency=16, scale=1.2))


def compared(a: Result, b: Result, *, any_shape: bool = False) -> RunComparison:
    return compare_runs(("A", a), ("B", b), any_shape=any_shape)


def with_stage(result: Result, **changes: Any) -> Result:
    """The result with its first stage alone, changed."""
    return msgspec.structs.replace(result, stages=[msgspec.structs.replace(result.stages[0], **changes)])


def doubts_of(**changes: Any) -> list[str]:
    (stage,) = compared(with_stage(LADDER), with_stage(SLOWER, **changes)).stages
    words = {one.difference.word for one in stage.figures if one.difference is not None}
    assert (words == {"no evidence"}) is bool(stage.doubts)
    return stage.doubts


def test_a_run_does_not_differ_from_itself() -> None:
    found = compared(LADDER, LADDER)
    assert found.words["better"] == found.words["worse"] == 0 < found.words["no evidence"]
    assert (found.configuration, found.unlike, found.notes, found.only_a, found.only_b) == ([], [], [], [], [])
    assert all(mean.ratio.ratio == pytest.approx(1.0) for mean in found.means)


def test_stages_are_matched_by_load_and_the_slower_server_is_worse() -> None:
    found = compared(LADDER, SLOWER)
    assert [stage.title for stage in found.stages] == ["conc 8, ISL 512, OSL 128", "conc 16, ISL 512, OSL 128"]
    assert found.words["worse"] > 10 and found.words["better"] == 0
    ratio = next(mean.ratio for mean in found.means if mean.figure == "tpot_mean")
    assert ratio.stages == 2 and ratio.low is not None and ratio.high is not None
    assert 1.1 < ratio.low < ratio.ratio < ratio.high < 1.3


def test_swapping_the_runs_swaps_the_words() -> None:
    there, back = compared(LADDER, SLOWER), compared(SLOWER, LADDER)
    assert (there.words["better"], there.words["worse"]) == (back.words["worse"], back.words["better"])


def test_equal_servers_are_seldom_called_different() -> None:
    words = compared(LADDER, OTHER_LADDER).words
    assert words["better"] + words["worse"] <= 1 < words["no evidence"]


def test_loads_of_one_side_are_listed() -> None:
    found = compared(LADDER, run_of(served(3, concurrency=16), served(4, index=1, concurrency=64)))
    assert [stage.title for stage in found.stages] == ["conc 16, ISL 512, OSL 128"]
    assert (found.only_a, found.only_b) == (["conc 8, ISL 512, OSL 128"], ["conc 64, ISL 512, OSL 128"])
    assert found.means == []


def test_of_one_load_repeated_the_last_sound_stage_counts_and_is_named() -> None:
    repeated = run_of(served(1, concurrency=8), served(2, index=1, concurrency=8))
    found = compared(repeated, LADDER)
    assert found.stages[0].stage_a == 2
    assert found.notes == ["A: stages 1, 2 have the load conc 8, ISL 512, OSL 128; stage 2 counts"]


def test_another_shape_is_matched_only_when_it_is_asked_for() -> None:
    long = run_of(served(3, concurrency=8, osl=1024))
    assert compared(LADDER, long).stages == []
    found = compared(LADDER, long, any_shape=True)
    title = "conc 8, ISL 512, OSL 128 against ISL 512, OSL 1024"
    assert [stage.title for stage in found.stages] == [title]
    assert found.unlike == [f"another shape: {title}"]
    assert found.only_a == ["conc 16, ISL 512, OSL 128"]


def test_what_speaks_against_a_stage_takes_its_words() -> None:
    assert doubts_of() == []
    assert doubts_of(limited=True, why="its CPU was full") == ["B is client-limited: its CPU was full"]
    assert doubts_of(inconclusive="too few streams") == ["B is inconclusive: too few streams"]
    first: StageResult = SLOWER.stages[0]
    failed = msgspec.structs.replace(first.requests, failed=60)
    assert doubts_of(requests=failed) == ["B had 60 of 300 requests failing: the rest is not the same load"]
    short = msgspec.structs.replace(first.tokens, output_per_request=64.0)
    assert doubts_of(tokens=short) == ["a request had 128 output tokens in A and 64 in B"]
    by_events = msgspec.structs.replace(first.tokens, source="events")
    assert doubts_of(tokens=by_events) == ["tokens were counted by usage in A and by events in B"]


def test_a_stage_in_doubt_is_not_in_the_mean() -> None:
    doubtful = msgspec.structs.replace(SLOWER.stages[0], inconclusive="too few streams")
    found = compared(LADDER, msgspec.structs.replace(SLOWER, stages=[doubtful, SLOWER.stages[1]]))
    assert len(found.stages) == 2 and found.means == []


def test_runs_that_were_cut_short_say_so() -> None:
    stopped = msgspec.structs.replace(LADDER, state="stopped", reason="stopped by the operator")
    assert compared(LADDER, stopped).notes == ["B is not complete: stopped: stopped by the operator"]
