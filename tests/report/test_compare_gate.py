"""Limits for CI: their grammar, and which stages break them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError, ResultError
from loadgen.metrics.figures import FIGURES
from loadgen.metrics.result import Difference, Result
from loadgen.report.compare import compare_runs
from loadgen.report.compare_gate import Limit, breaches, is_beyond, parse_limit
from tests.metrics.served import run_of, served

A = run_of(served(1))
SLOWER = run_of(served(2, scale=1.2))


def broken(a: Result, b: Result, *limits: str, strict: bool = False) -> list[str]:
    comparison = compare_runs(("A", a), ("B", b))
    return [breach.limit for breach in breaches(comparison, [parse_limit(text) for text in limits], strict=strict)]


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
        ("ttft_p98>+10%", "no figure ttft_p98; there are output_tok_s, req_s, ttft_mean"),
        ("ttft_p99>-10%", "> goes with \\+, < with -"),
        ("output_tok_s<-10ms", "output_tok_s is no latency; its limits are in %"),
    ],
)
def test_what_is_no_limit_is_told(text: str, why: str) -> None:
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
    assert broken(A, SLOWER, *limits) == ["tpot_mean>+10%", "output_tok_s<-5%", "tpot_mean>+1ms"]
    assert broken(A, A, *limits) == []


def test_without_evidence_only_a_strict_limit_is_broken() -> None:
    short, slower = run_of(served(1, seconds=3.5)), run_of(served(2, seconds=3.5, scale=1.2))
    assert broken(short, slower, "ttft_p50>+10%") == []
    assert broken(short, slower, "ttft_p50>+10%", strict=True) == ["ttft_p50>+10%"]


def test_a_stage_in_doubt_breaks_only_strict_limits() -> None:
    (stage,) = SLOWER.stages
    limited = msgspec.structs.replace(SLOWER, stages=[msgspec.structs.replace(stage, limited=True, why="full")])
    assert broken(A, limited, "tpot_mean>+10%") == []
    assert broken(A, limited, "tpot_mean>+10%", strict=True) == ["tpot_mean>+10%"]


def test_a_limit_that_nothing_can_be_held_against_is_no_pass() -> None:
    with pytest.raises(ResultError, match="goodput<-1%: no stage of B has this figure beside one of A"):
        broken(A, SLOWER, "goodput<-1%")


def test_of_nothing_anything_is_more_than_any_percentage() -> None:
    risen = Difference(3.0, 2.0, 4.0, None, None, None, "worse")
    assert is_beyond(risen, parse_limit("ttft_p50>+10%"))
    assert not is_beyond(risen, parse_limit("ttft_p50<-10%"))
    assert not is_beyond(risen, parse_limit("ttft_p50>+5ms"))


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
    assert broken(A, waiting(SLOWER), "ttft_p50>+10%", strict=strict) == ["ttft_p50>+10%"]
    with pytest.raises(ResultError, match="not only as a bound"):
        broken(A, waiting(run_of(served(3))), "ttft_p50>+10%", strict=strict)
    with pytest.raises(ResultError, match="not only as a bound"):
        broken(waiting(A), SLOWER, "ttft_p50>+10%", strict=strict)
    assert broken(waiting(SLOWER), A, "ttft_p50>+10%", strict=strict) == []
