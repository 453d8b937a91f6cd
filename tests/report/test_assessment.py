"""The answers, from results that a run could have left; those of `situations.md` are not repeated."""

import msgspec
import pytest

from loadgen.report.assessment import assessment, best_stage, missed_words, shortcomings, titles
from loadgen.report.tabular import Bad
from loadgen.report.text import text_report
from loadgen.schema.finding import Verdict
from loadgen.schema.result import FailureCheck, Goodput, OpenLoop, Result, SloCheck, StageResult, Target, Throughput
from loadgen.schema.shared import SearchResult
from tests.report.test_text import result, stage

replace = msgspec.structs.replace
QUEUEING = Verdict("queueing", "stage 2", "queueing: 7.0 requests waiting on average", bad=False)
BOUND = Verdict("bandwidth-bound", "stage 2", "bandwidth-bound: memory controllers 83% busy", bad=False)


def at(concurrency: int, tokens_per_s: float, *verdicts: Verdict, met: bool = True, index: int = 0) -> StageResult:
    return replace(
        stage(80),
        index=index,
        label=f"conc {concurrency}",
        target=Target(concurrency=concurrency, rate=None, arrival=None),
        concurrency=replace(stage(80).concurrency, mean=float(concurrency)),
        throughput=Throughput(1.0, 10.0, tokens_per_s, 11.0, 1.0),
        slo={"ttft_p99": SloCheck(limit_ms=25.0, measured_ms=20.0 if met else 30.0, met=met)},
        verdicts=list(verdicts),
    )


def ladder() -> Result:
    return result(at(8, 900.0), at(16, 1500.0, QUEUEING, BOUND, met=False, index=1))


def answers(of: Result) -> dict[str, str]:
    return {answer.subject: answer.text for answer in assessment(of)}


def bad(of: Result) -> set[str]:
    return {answer.subject for answer in assessment(of) if isinstance(answer.text, Bad)}


def test_a_ladder_that_saturates_and_misses_its_limit() -> None:
    found = answers(ladder())
    assert found == {
        "Healthy?": "Yes: 160 requests completed, none failed; no GPU was measured.",
        "Saturated?": "Yes, at conc 16: queueing: 7.0 requests waiting on average.",
        "What was the limit?": "The server, not the client: at conc 16 bandwidth-bound: memory controllers 83% busy; "
        "queueing: 7.0 requests waiting on average.",
        "Within its limits?": "Missed at 1 of 2 stages, first at conc 16: ttft_p99 30 ms, limit 25 ms.",
    }
    assert bad(ladder()) == {"Within its limits?"}


def test_limits_that_the_figures_meet_by_chance() -> None:
    run = result(at(8, 900.0), at(16, 1500.0, index=1))
    few = [replace(stage, slo={k: replace(check, needs=381) for k, check in stage.slo.items()}) for stage in run.stages]
    words = "By the figures yes, but not for sure: at conc 8 ttft_p99 needs 381 more requests, and 1 more."
    assert answers(run)["Within its limits?"] == "Yes, at every stage."
    assert answers(replace(run, stages=few))["Within its limits?"] == words


def test_of_a_result_without_series_nobody_knows_what_queued() -> None:
    found = answers(replace(result(at(1024, 900.0)), series={}))
    assert found["Saturated?"] == "Not known: the engine does not say what waits in it."


def test_streams_of_an_earlier_stage_that_failed_are_failures_too() -> None:
    first = at(64, 900.0)
    requests = replace(first.requests, carried_in=64, carried_failed=64, errors={"reset": 64})
    failing = result(first, replace(at(8, 900.0, index=1), requests=requests))
    assert answers(failing)["Healthy?"] == "No: 64 of 160 requests failed."
    table = text_report(failing)
    assert "64 (open at the beginning, 64 of them failed)" in table
    assert "\nreset " in table


def test_a_live_run_was_not_stopped() -> None:
    live = replace(result(at(8, 900.0), state="stopped"), reason="the run still runs")
    assert answers(live)["Healthy?"].endswith(" The run has not ended: the run still runs.")
    assert ", live: the run still runs" in text_report(live)
    ended = replace(live, finished_at="2026-01-01T00:01:00Z")
    assert answers(ended)["Healthy?"].endswith(" The run was stopped: the run still runs.")


def test_an_open_loop_whose_requests_outlast_the_stage_may_be_saturated() -> None:
    stage = replace(
        at(8, 900.0),
        label="rate 40/s",
        target=Target(concurrency=None, rate=40.0, arrival="poisson"),
        throughput=Throughput(31.0, 1.0, 900.0, 1.0, 1.0),
        open_loop=OpenLoop(due_s=30.0, open_halfway=130.0, open_at_end=238.0, behind=None),
    )
    words = "Not known: requests of rate 40/s last too long for a stage of "
    assert answers(result(stage))["Saturated?"].startswith(words)


@pytest.mark.parametrize(
    ("found", "resolved", "words"),
    [
        (37.0, True, "The knee is at concurrency 37 (31 to 44)."),
        (34.9847, True, "The knee is at concurrency 35.0 (31 to 44)."),
        (37.0, False, "The search for the knee is unresolved: the probes vary."),
        (None, True, "The search for the knee is unresolved: the probes vary."),
    ],
)
def test_what_a_search_has_found(found: float | None, resolved: bool, words: str) -> None:
    search = SearchResult("knee", "concurrency", found, 31.0, 44.0, resolved, "the probes vary", 7)
    saturated = answers(replace(ladder(), search=search))["Saturated?"]
    assert saturated.startswith(words)
    assert (saturated == words) == (resolved and found is not None)  # a knee that is found is the answer


def test_a_limited_client_is_bad() -> None:
    limited = replace(ladder(), client=replace(ladder().client, limited=True, why="stage 2: read late"))
    assert "What was the limit?" in bad(limited)


def test_what_is_not_healthy() -> None:
    assert answers(result(stage(0, reset=1), state="failed"))["Healthy?"].startswith(
        "No: the run failed: the server was"
    )
    doubt = Verdict("truth", "stage 1", "requests: client 5, server 6; totals not compared: x")
    at_odds = result(at(8, 900.0, doubt))
    assert answers(at_odds)["Healthy?"] == "No: at conc 8 client and engine disagree: requests: client 5, server 6."


def test_the_headline_is_of_the_stage_that_pays_and_keeps_its_limits() -> None:
    best = best_stage(ladder())
    assert best is not None and best.label == "conc 8"
    missed = best_stage(result(at(8, 900.0, met=False), at(16, 1500.0, met=False, index=1)))
    assert missed is not None and missed.label == "conc 16"
    assert best_stage(result(stage(0))) is None


def failing(count: int, unsent: int = 0, allowed: float = 0.0, **errors: int) -> StageResult:
    check = FailureCheck(count + unsent, unsent, 90, allowed, met=False, verdict="missed")
    good = at(8, 900.0)
    return replace(good, failures=check, requests=replace(good.requests, errors=errors))


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (failing(30, http_5xx=30), "30 of 90 requests failed (http_5xx); slo.failed allows 0 %"),
        (failing(0, 20), "20 of 90 requests were never sent; slo.failed allows 0 %"),
        (
            failing(5, 6, 0.01, http_5xx=3, reset=2),
            "5 of 90 requests failed (http_5xx, reset), 6 were never sent; slo.failed allows 1 %",
        ),
        (at(8, 1.0, met=False), "limits missed: ttft_p99 30 ms, limit 25 ms"),
    ],
)
def test_what_makes_the_exit_code_1(stage: StageResult, words: str) -> None:
    assert shortcomings(result(at(4, 1.0), replace(stage, index=1))) == [f"stage 2: {words}"]


def test_a_limit_that_was_hardly_missed_is_reported_with_enough_digits() -> None:
    hardly = replace(
        at(8, 900.0),
        slo={"tpot_p99": SloCheck(6.2, 6.203, False)},
        goodput=Goodput({"ttft": 1.0}, 9994, 10_000, 0.9994, None, 0.9995, False),
    )
    assert missed_words(hardly) == ["tpot_p99 6.203 ms, limit 6.2 ms", "goodput 99.94%, wanted 99.95%"]


def test_a_limit_that_nothing_was_measured_for_is_said_to_be_so() -> None:
    empty = replace(at(8, 900.0), slo={"ttft_p99": SloCheck(25.0, None, False, population=0)}, goodput=None)
    assert missed_words(empty) == ["ttft_p99 was not measured, limit 25 ms"]
    older = replace(empty, slo={"ttft_p99": SloCheck(25.0, None, False)})
    assert missed_words(older) == ["ttft_p99 -, limit 25 ms"]


def test_an_interrupted_search_says_what_it_had_found() -> None:
    probes = [at(load, 900.0, index=index) for index, load in enumerate((8, 64, 32, 16))]
    within = [stage_that(probe, met=load <= 16) for probe, load in zip(probes, (8, 64, 32, 16), strict=True)]
    stopped = replace(result(*within, state="stopped"), profile={"plan": {"search": "slo"}})
    words = "The search for the highest load within the limits was interrupted after 4 probes: "
    assert answers(stopped)["Saturated?"].startswith(f"{words}16 met the limits, 32 did not.")
    assert "interrupted" not in answers(replace(stopped, profile={}))["Saturated?"]


def stage_that(stage: StageResult, *, met: bool) -> StageResult:
    return replace(stage, slo={"ttft_p99": SloCheck(limit_ms=25.0, measured_ms=20.0 if met else 30.0, met=met)})


def test_a_search_is_judged_by_its_answer_and_not_by_its_probes() -> None:
    probes = replace(ladder(), stages=[*ladder().stages, replace(failing(30), index=2)])
    assert len(shortcomings(probes)) == 2
    found = SearchResult("slo", "concurrency", 8.0, 8.0, 16.0, True, "sure", 3)
    assert shortcomings(replace(probes, search=found)) == []
    unsure = replace(found, resolved=False, why="ttft_p99 needs 120 more requests")
    assert shortcomings(replace(probes, search=unsure)) == [
        "the search is unresolved: ttft_p99 needs 120 more requests"
    ]


def test_a_run_in_which_nothing_was_completed_is_no_success() -> None:
    assert shortcomings(result(replace(stage(0, reset=3), slo={}))) == ["nothing was measured"]
    assert shortcomings(result()) == []


def test_failures_beyond_what_is_borne_are_reported_with_the_limits() -> None:
    text = answers(result(failing(30, http_5xx=30)))["Within its limits?"]
    assert text == "Missed at 1 of 1 stages, first at conc 8: 30 of 90 requests failed (http_5xx)."


def test_stages_have_names_of_their_own() -> None:
    again = replace(at(8, 1.0, index=1))
    assert titles([at(8, 1.0), again]) == {0: "conc 8 (#1)", 1: "conc 8 (#2)"}
    assert titles([at(8, 1.0), replace(again, isl=16)]) == {0: "conc 8, 4096/1024", 1: "conc 8, 16/1024"}
    variant = replace(again, variant="fp8")
    assert titles([at(8, 1.0), variant]) == {0: "conc 8, no variant", 1: "conc 8, fp8"}
