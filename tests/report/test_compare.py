"""Runs against each other: matched by load, what differs, what is not alike, the words, and limits for CI."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError, ResultError
from loadgen.record.figures import FIGURES
from loadgen.report.compare import (
    Limit,
    RunComparison,
    compare_runs,
    hold_against,
    is_beyond,
    parse_limit,
    with_meant_shapes,
)
from loadgen.report.compare_document import compare_text
from loadgen.schema.comparison import Difference
from loadgen.schema.deltas import Summary
from loadgen.schema.engine import EngineLatencyMs, EngineStage
from loadgen.schema.result import CurvePoint, Result, StageResult, Target
from tests.metrics.served import run_of, served

LADDER = run_of(served(1, concurrency=8), served(2, index=1, concurrency=16))
OTHER_LADDER = run_of(served(3, concurrency=8), served(4, index=1, concurrency=16))
SLOWER = run_of(served(3, concurrency=8, scale=1.2), served(4, index=1, concurrency=16, scale=1.2))

CURVE_POINT = CurvePoint(512, 128, 1.0, "up", 1.0, 6.0, 90.0, 90.0, Summary(count=0), Summary(count=0))


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


def test_stages_without_load_are_matched_by_label() -> None:
    def watched(tokens: int, *labels: str) -> Result:
        engine = EngineStage(
            generation_tokens=tokens, between_s=(0.0, 10.0), latency_ms={"ttft": EngineLatencyMs(5, 20.0)}
        )
        quiet = msgspec.structs.replace(
            LADDER.stages[0], target=Target(0, None, None), engine=engine, latency_ms={}, precision=None
        )
        stages = [msgspec.structs.replace(quiet, index=index, label=label) for index, label in enumerate(labels)]
        return msgspec.structs.replace(LADDER, kind="monitor", stages=stages)

    found = compared(watched(100, "no load", "no load", "fan"), watched(200, "no load", "fan", "hot"))
    assert [(stage.title, stage.stage_a, stage.stage_b) for stage in found.stages] == [("no load", 1, 1), ("fan", 3, 2)]
    assert (found.only_a, found.only_b) == (["no load (2)"], ["hot"])
    for stage in found.stages:
        assert [(one.figure, one.a, one.b) for one in stage.figures] == [
            ("output_tok_s", 10.0, 20.0),
            ("ttft_mean", 20.0, 20.0),
        ]
        assert "vramp sent nothing" in stage.doubts[0]
    assert found.words["better"] == found.words["worse"] == 0


def test_another_shape_is_matched_only_on_request() -> None:
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


def test_survivors_are_never_called_better() -> None:
    """A's p99 is known; of the faster B many streams still waited, so that its p99 is only a lower bound."""
    slow, fast = (one.stages[0] for one in (SLOWER, LADDER))
    ttft = msgspec.structs.replace(fast.latency_ms["ttft"], censored=9, lower_bounds=("mean", "p90", "p99", "max"))
    bounded = with_stage(LADDER, latency_ms=fast.latency_ms | {"ttft": ttft})
    (stage,) = compared(with_stage(SLOWER, index=slow.index), bounded).stages
    words = {one.figure: one.difference.word for one in stage.figures if one.difference is not None}
    assert (words["ttft_p50"], words["ttft_p99"], words["ttft_mean"]) == ("better", "no evidence", "no evidence")
    p99 = next(one for one in stage.figures if one.figure == "ttft_p99")
    assert (p99.a_at_least, p99.b_at_least) == (False, True)
    table = compare_text(compared(with_stage(SLOWER, index=slow.index), bounded))
    assert next(line for line in table.splitlines() if line.startswith("TTFT p99")).split()[4] == ">="


def test_a_lower_bound_is_in_no_mean() -> None:
    first, second = LADDER.stages
    ttft = msgspec.structs.replace(first.latency_ms["ttft"], censored=9, lower_bounds=("p99",))
    bounded = msgspec.structs.replace(first, latency_ms=first.latency_ms | {"ttft": ttft})
    found = compared(msgspec.structs.replace(LADDER, stages=[bounded, second]), SLOWER)
    assert {"ttft_p99"} == {mean.figure for mean in compared(LADDER, SLOWER).means} - {m.figure for m in found.means}


def test_a_load_that_moves_is_matched_only_with_one_like_it() -> None:
    ramp = with_stage(LADDER, label="ramp 1 to 8", curve=(CURVE_POINT,))
    assert compared(LADDER, ramp).stages == []
    (stage,) = compared(ramp, ramp).stages
    assert stage.title == "ramp 1 to 8, ISL 512, OSL 128"
    assert stage.doubts[0] == "the load of A moves: its figures are not those of a single load"


def test_a_stage_in_doubt_is_not_in_the_mean() -> None:
    doubtful = msgspec.structs.replace(SLOWER.stages[0], inconclusive="too few streams")
    found = compared(LADDER, msgspec.structs.replace(SLOWER, stages=[doubtful, SLOWER.stages[1]]))
    assert len(found.stages) == 2 and found.means == []


def test_runs_that_were_cut_short_say_so() -> None:
    stopped = msgspec.structs.replace(LADDER, state="stopped", reason="stopped by the operator")
    assert compared(LADDER, stopped).notes == ["B is not complete: stopped: stopped by the operator"]


ONE = run_of(served(1))
MUCH_SLOWER = run_of(served(2, scale=1.2))


def broken(a: Result, b: Result, *limits: str, strict: bool = False) -> list[str]:
    comparison = compare_runs(("A", a), ("B", b))
    held = hold_against(comparison, [parse_limit(text) for text in limits], strict=strict)
    return [one.limit for one in held if one.outcome == "broken"]


@pytest.mark.parametrize(
    ("text", "figure", "up", "by", "relative"),
    [
        ("ttft_p99>+10%", "ttft_p99", True, 10.0, True),
        ("output_tok_s<-5%", "output_tok_s", False, 5.0, True),
        ("tpot_p50>+2ms", "tpot_p50", True, 2.0, False),
        (" e2e_mean > +1.5 s ", "e2e_mean", True, 1500.0, False),
    ],
)
def test_limits_are_read(text: str, figure: str, up: bool, by: float, relative: bool) -> None:
    assert parse_limit(text) == Limit(text=text, figure=figure, up=up, by=by, relative=relative)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ttft_p99", "expected FIGURE>"),
        ("ttft_p99>10%", "expected FIGURE>"),
        ("ttft_p99>+10", "expected FIGURE>"),
        ("ttft_p98>+10%", "no figure ttft_p98; there are output_tok_s, total_tok_s, req_s, ttft_mean"),
        ("ttft_p99>-10%", "> goes with \\+, < with -"),
        ("output_tok_s<-10ms", "output_tok_s is no latency; its limits are in %"),
    ],
)
def test_what_is_no_limit_is_reported(text: str, why: str) -> None:
    with pytest.raises(ProfileError, match=f"^--fail-if {text.replace('+', chr(92) + '+')}: {why}"):
        parse_limit(text)


@given(st.text(max_size=30))
def test_any_text_is_a_limit_or_a_message(text: str) -> None:
    try:
        assert parse_limit(text).figure in FIGURES
    except ProfileError as error:
        assert str(error).startswith("--fail-if")


def test_a_slower_server_breaks_the_limits_that_it_passes() -> None:
    limits = (
        "tpot_mean>+10%",
        "tpot_mean>+40%",
        "output_tok_s<-5%",
        "output_tok_s>+5%",
        "tpot_mean>+1ms",
        "tpot_mean>+1s",
    )
    assert broken(ONE, MUCH_SLOWER, *limits) == ["tpot_mean>+10%", "output_tok_s<-5%", "tpot_mean>+1ms"]
    assert broken(ONE, ONE, *limits) == []


def test_without_evidence_only_a_strict_limit_is_broken() -> None:
    short, slower = run_of(served(1, seconds=3.5)), run_of(served(2, seconds=3.5, scale=1.2))
    assert broken(short, slower, "ttft_p50>+10%") == []
    assert broken(short, slower, "ttft_p50>+10%", strict=True) == ["ttft_p50>+10%"]


def test_a_stage_in_doubt_breaks_only_strict_limits() -> None:
    (stage,) = MUCH_SLOWER.stages
    limited = msgspec.structs.replace(MUCH_SLOWER, stages=[msgspec.structs.replace(stage, limited=True, why="full")])
    assert broken(ONE, limited, "tpot_mean>+10%") == []
    assert broken(ONE, limited, "tpot_mean>+10%", strict=True) == ["tpot_mean>+10%"]
    (held,) = hold_against(compared(ONE, limited), [parse_limit("tpot_mean>+10%")], strict=False)
    assert (held.outcome, held.why) == ("in doubt", "B is client-limited: full")


def failing(result: Result, *, failed: int, completed: int | None = None) -> Result:
    """The run with requests of its last stage failing, and without figures of it if none completed."""
    *others, stage = result.stages
    requests = msgspec.structs.replace(stage.requests, failed=failed)
    if completed is not None:
        requests = msgspec.structs.replace(requests, completed=completed)
        stage = msgspec.structs.replace(stage, latency_ms={}, tokens=msgspec.structs.replace(stage.tokens, output=0))
    return msgspec.structs.replace(result, stages=[*others, msgspec.structs.replace(stage, requests=requests)])


def test_failing_requests_excuse_no_server_that_is_slower() -> None:
    assert broken(ONE, failing(MUCH_SLOWER, failed=500), "tpot_mean>+10%") == ["tpot_mean>+10%"]
    assert broken(failing(ONE, failed=500), MUCH_SLOWER, "tpot_mean>+10%") == []


def test_a_load_that_b_failed_to_measure_breaks_every_limit() -> None:
    nothing = failing(LADDER, failed=500, completed=0)
    (first, second) = hold_against(compared(LADDER, nothing), [parse_limit("tpot_mean>+10%")], strict=False)
    assert (first.outcome, first.stage, first.why) == (
        "broken",
        "conc 16, ISL 512, OSL 128",
        "B has no figures of this load",
    )
    assert (second.outcome, second.stage) == ("kept", "conc 8, ISL 512, OSL 128")
    short = msgspec.structs.replace(with_stage(LADDER), state="server_died")
    assert broken(LADDER, short, "tpot_mean>+10%") == ["tpot_mean>+10%"]
    assert broken(LADDER, with_stage(LADDER), "tpot_mean>+10%") == []  # it was not asked for


def test_a_figure_that_is_missing_in_b_breaks_its_limit() -> None:
    (stage,) = ONE.stages
    latency = {name: summary for name, summary in stage.latency_ms.items() if name != "tpot"}
    without = msgspec.structs.replace(ONE, stages=[msgspec.structs.replace(stage, latency_ms=latency)])
    assert broken(ONE, without, "tpot_mean>+10%", "req_s<-5%") == ["tpot_mean>+10%"]


def test_a_limit_that_nothing_can_be_held_against_is_no_pass() -> None:
    with pytest.raises(ResultError, match="goodput<-1%: no stage has this figure in both A and B"):
        broken(ONE, MUCH_SLOWER, "goodput<-1%")


def test_of_nothing_anything_is_more_than_any_percentage() -> None:
    risen = Difference(3.0, 2.0, 4.0, None, None, None, "worse")
    assert is_beyond(risen, parse_limit("ttft_p50>+10%"))
    assert not is_beyond(risen, parse_limit("ttft_p50<-10%"))
    assert not is_beyond(risen, parse_limit("ttft_p50>+5ms"))
    still = Difference(0.0, 0.0, 0.0, None, None, None, "no evidence")
    assert not any(is_beyond(still, parse_limit(text)) for text in ("itl_p50>+0%", "goodput<-0%", "itl_p50>+50%"))


def waiting(result: Result) -> Result:
    """The same run, where streams still waited for their first token at the end."""
    (stage,) = result.stages
    ttft = msgspec.structs.replace(
        stage.latency_ms["ttft"], censored=9, lower_bounds=("mean", "p50", "p90", "p99", "max")
    )
    latency = stage.latency_ms | {"ttft": ttft}
    return msgspec.structs.replace(result, stages=[msgspec.structs.replace(stage, latency_ms=latency)])


@pytest.mark.parametrize("strict", [False, True])
def test_a_lower_bound_breaks_a_limit_only_where_it_settles_it(strict: bool) -> None:
    assert broken(ONE, waiting(MUCH_SLOWER), "ttft_p50>+10%", strict=strict) == ["ttft_p50>+10%"]
    with pytest.raises(ResultError, match="other than as a bound"):
        broken(ONE, waiting(run_of(served(3))), "ttft_p50>+10%", strict=strict)
    with pytest.raises(ResultError, match="other than as a bound"):
        broken(waiting(ONE), MUCH_SLOWER, "ttft_p50>+10%", strict=strict)
    assert broken(waiting(MUCH_SLOWER), ONE, "ttft_p50>+10%", strict=strict) == []


def test_another_tools_mean_lengths_are_the_shape_that_was_meant() -> None:
    ours = with_stage(LADDER)
    near, far = (msgspec.structs.replace(with_stage(LADDER, isl=isl, osl=127), measured_by="x") for isl in (519, 600))
    named = [("far", far), ("near", near), ("ours", ours)]
    found = [(name, result.stages[0].isl, result.stages[0].osl) for name, result in with_meant_shapes(named)]
    assert found == [("far", 600, 127), ("near", 512, 128), ("ours", 512, 128)]
    kept = with_meant_shapes([("a", ours), ("b", with_stage(LADDER, isl=519))])
    assert kept[1][1].stages[0].isl == 519  # vramp knows what was asked for
