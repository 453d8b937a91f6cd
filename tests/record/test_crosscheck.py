"""Whether client and engine agree on a stage, as a table: what is compared, what is not, and what is said."""

from typing import Any

import msgspec
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.record.crosscheck import account_of, truth_check, truth_verdicts, unintended_hits
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import ClientDelta, EncodedHistogram, SessionCounts, StageDelta
from loadgen.schema.engine import EngineLatencyMs, EngineStage, OthersTraffic, OwnRequests, SpecDecode
from loadgen.schema.journal import EngineMeasured, Line, StageStarted, Ticked
from loadgen.schema.result import StageResult
from tests.journal import STARTED, record_of
from tests.report.test_text import counted


def latency(mean: float, count: int = 64) -> EngineLatencyMs:
    return EngineLatencyMs(count=count, mean=mean)


def client(*, ttft_ms: float = 112.0, first_tokens: int = 64, alone: bool = True, **counters: int) -> StageRecord:
    said = {"completed": 64, "input_tokens": 640, "output_tokens": 320} | counters
    return counted(ttft_ms, first_tokens, alone=alone, **said)


ENGINE = EngineStage(
    ttft_mean_ms=100.0,
    ttft_count=64,
    queue_mean_ms=20.0,
    prefill_mean_ms=70.0,
    prompt_tokens=640,
    generation_tokens=320,
    latency_ms={"ttft": latency(100.0), "queue": latency(20.0), "prefill": latency(70.0)},
    idle_around=True,
)


def test_both_agree_and_the_difference_has_names() -> None:
    check = truth_check(client(), ENGINE)
    assert (check.agrees, check.why) == (True, "")
    assert (check.ttft_client_ms, check.ttft_server_ms, check.ttft_outside_ms) == (112.0, 100.0, 12.0)
    assert (check.queue_ms, check.prefill_ms, check.frontend_ms) == (20.0, 70.0, 10.0)
    assert check.ttft_client_ms == 20.0 + 70.0 + 10.0 + 12.0
    assert (check.input_tokens_client, check.output_tokens_client) == (640, 320)
    assert (check.input_tokens_server, check.output_tokens_server) == (640, 320)


@pytest.mark.parametrize(
    ("said", "engine", "why"),
    [
        ({"ttft_ms": 130.0}, {}, "30.0 ms of the TTFT pass between server and client (server 100.0 ms)"),
        ({"ttft_ms": 90.0}, {}, "the client saw first tokens 10.0 ms before the server made them, on average"),
        ({}, {"generation_tokens": 319}, "output tokens: client 320, server 319"),
        ({}, {"prompt_tokens": 0, "generation_tokens": None}, "input tokens: client 640, server 0"),
        (
            {},
            {"ttft_count": 63, "prompt_tokens": 630},
            "requests: client 64, server 63; input tokens: client 640, server 630; "
            "TTFT not compared: the client saw 64 first tokens, the server made 63",
        ),
    ],
)
def test_they_do_not_agree(said: dict[str, Any], engine: dict[str, Any], why: str) -> None:
    check = truth_check(client(**said), _changed(ENGINE, engine))
    assert (check.agrees, check.why) == (False, why)


@pytest.mark.parametrize(
    ("said", "engine", "why"),
    [
        ({"carried_over": 1}, {}, "streams were open when the stage ended"),
        ({"alone": False}, {}, "streams of the stage before were open when it began"),
        ({}, {"idle_around": None}, "the server does not say whether it was idle"),
        ({}, {"idle_around": False}, "the server was not idle when its figures were read"),
        ({}, {"ttft_count": None, "generation_tokens": None}, "the server does not say"),
        ({}, {"doubts": {"all": "it was restarted"}}, "the server cannot be believed: it was restarted"),
        ({"failed": 2}, {"ttft_count": 65}, "streams failed"),
        ({"cancelled": 2}, {"ttft_count": 65}, "streams were cancelled"),
        (
            {},
            {"ttft_count": 65, "prompt_tokens": 650},
            "the client saw 64 first tokens, the server made 65; others use it, too: 1 of them are theirs",
        ),
    ],
)
def test_figures_that_may_include_other_streams_are_not_compared(
    said: dict[str, Any], engine: dict[str, Any], why: str
) -> None:
    # They would not agree.
    check = truth_check(client(**{"output_tokens": 1, "ttft_ms": 900.0} | said), _changed(ENGINE, engine))
    assert (check.agrees, check.why) == (None, f"TTFT and totals not compared: {why}")
    times = (check.ttft_client_ms, check.ttft_server_ms, check.ttft_outside_ms, check.queue_ms, check.prefill_ms)
    assert {*times, check.frontend_ms} == {None}
    assert (check.requests_server, check.input_tokens_server, check.output_tokens_server) == (None, None, None)


@pytest.mark.parametrize("theirs", [61, 63, 65, 67])
def test_a_different_number_of_streams_is_not_compared(theirs: int) -> None:
    """5 % of the streams with ten times the TTFT move its mean by 45 %."""
    check = truth_check(client(), _changed(ENGINE, {"ttft_count": theirs}))
    assert (check.ttft_client_ms, check.ttft_server_ms, check.ttft_outside_ms) == (None, None, None)
    what = "TTFT and totals" if theirs > 64 else "TTFT"
    assert f"{what} not compared: the client saw 64 first tokens, the server made {theirs}" in check.why


def test_the_reason_for_no_comparison_names_the_other_traffic() -> None:
    stage = client()
    stage.others = OthersTraffic(running=3.2, generation_tokens_per_s=410.0)
    check = truth_check(stage, _changed(ENGINE, {"idle_around": False}))
    said = "TTFT and totals not compared: others use this server, too: 3.20 running, 410 tok/s out"
    assert (check.agrees, check.why) == (None, said)


def test_totals_are_compared_although_the_ttft_is_implausible() -> None:
    check = truth_check(client(), _changed(ENGINE, {"ttft_mean_ms": None, "doubts": {"ttft": "a mean of 1e+03 s"}}))
    assert (check.agrees, check.why) == (True, "TTFT not compared: the server cannot be believed: a mean of 1e+03 s")
    assert (check.ttft_server_ms, check.output_tokens_server) == (None, 320)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"warmup": 4}, "warm-up is in the server's only"),
        ({"failed": 1}, "streams failed"),
        ({"cancelled": 1}, "streams were cancelled"),
        ({"counted_by_events": 1}, "the server reported no usage, events were counted"),
    ],
)
def test_totals_that_lack_streams_are_not_compared(said: dict[str, Any], why: str) -> None:
    check = truth_check(client(**{"output_tokens": 1} | said), ENGINE)
    assert (check.agrees, check.why) == (True, f"totals not compared: {why}")


def test_totals_without_the_requests_that_prime_are_not_compared() -> None:
    stage = client(output_tokens=1)
    stage.metrics.add(StageDelta(sessions=SessionCounts(primed=2)))
    check = truth_check(stage, ENGINE)
    why = "totals not compared: requests that prime sessions are in the server's only"
    assert (check.agrees, check.why) == (True, why)


def test_input_that_the_server_does_not_report_is_not_compared() -> None:
    check = truth_check(client(unknown_input=64, input_tokens=0), ENGINE)
    assert (check.agrees, check.why) == (True, "input tokens not compared: the server does not report them")
    assert check.input_tokens_client is None


def test_output_that_was_never_streamed_is_in_both() -> None:
    check = truth_check(client(hidden_tokens=200, uneven_streams=64), ENGINE)
    assert (check.agrees, check.why) == (True, "")


CANARIES = OwnRequests(requests=4, input_tokens=40, output_tokens=20, ttft_ms=4 * 112.0)
WITH_CANARIES = {"ttft_count": 68, "prompt_tokens": 680, "generation_tokens": 340}


def test_canaries_are_in_both_means_and_in_no_total() -> None:
    stage = client()
    stage.canaries = CANARIES
    check = truth_check(stage, _changed(ENGINE, WITH_CANARIES))
    assert (check.agrees, check.why, check.over) == (True, "", "including 4 canaries")
    assert (check.ttft_client_ms, check.ttft_server_ms) == (112.0, ENGINE.ttft_mean_ms)
    assert (check.requests_server, check.input_tokens_server, check.output_tokens_server) == (64, 640, 320)


def test_slow_canaries_alone_are_no_disagreement() -> None:
    stage = client(ttft_ms=100.0)
    stage.canaries = _changed(CANARIES, {"ttft_ms": 4 * 1000.0})
    check = truth_check(stage, _changed(ENGINE, WITH_CANARIES))
    assert (check.agrees, check.why) == (True, "")
    assert check.ttft_outside_ms == pytest.approx((64 * 100.0 + 4 * 1000.0) / 68 - 100.0)


def test_a_canary_that_was_not_answered_leaves_ttft_uncompared() -> None:
    stage = client()
    stage.canaries = _changed(CANARIES, {"requests": 3})
    check = truth_check(stage, _changed(ENGINE, WITH_CANARIES))
    assert check.ttft_server_ms is None
    assert "the client saw 67 first tokens (including 3 canaries), the server made 68" in check.why


# Several stages together.


def together(engine: EngineStage, totals: dict[str, int] | None = None, **counters: int) -> StageRecord:
    """A stage that ended with an open stream, and is compared until its last answer."""
    counted_by_client: dict[str, Any] = {"carried_over": 1} | counters
    stage = client(**counted_by_client)
    totals = {"requests": 64, "input_tokens": 640, "output_tokens": 320} | (totals or {})
    stage.span = account_of([stage], engine, totals, OwnRequests(), is_span=True)
    return stage


def test_a_stage_with_open_streams_is_compared_until_its_last_answer() -> None:
    check = truth_check(together(ENGINE, warmup=9), _changed(ENGINE, {"ttft_count": 63}))
    assert (check.agrees, check.why, check.over) == (True, "", "stage 1 until its last answer")
    assert check.ttft_outside_ms == 12.0


@pytest.mark.parametrize(
    ("counters", "engine", "why"),
    [
        ({}, {"ttft_count": 65}, "the client saw 64 first tokens, the server made 65; others use it, too: 1 of them"),
        ({}, {"idle_around": False}, "the server was not idle when its figures were read"),
        ({}, {"restarts": 1}, "the server was restarted"),
        ({"unfinished": 1}, {"ttft_count": 65}, "streams were cut off"),
        ({"carried_failed": 1}, {"ttft_count": 65}, "streams failed"),
    ],
)
def test_stages_together_are_not_compared_with_other_streams(
    counters: dict[str, int], engine: dict[str, Any], why: str
) -> None:
    check = truth_check(together(_changed(ENGINE, engine), None, **counters), ENGINE)
    assert (check.agrees, check.ttft_client_ms, check.ttft_server_ms) == (None, None, None)
    own = "TTFT and totals not compared: streams were open when the stage ended"
    assert check.why.startswith(f"{own}; stage 1 until its last answer: TTFT and totals not compared: {why}")


def test_streams_that_were_cut_off_are_in_no_total() -> None:
    check = truth_check(together(ENGINE, {"output_tokens": 1}, unfinished=1), ENGINE)
    assert (check.agrees, check.why) == (True, "totals not compared: streams were cut off")


def test_totals_of_stages_together_are_compared() -> None:
    check = truth_check(together(ENGINE, {"output_tokens": 319}), ENGINE)
    assert (check.agrees, check.why) == (False, "stage 1 until its last answer: output tokens: client 319, server 320")


def test_nothing_to_compare() -> None:
    check = truth_check(client(), EngineStage())
    assert check.agrees is None
    assert check.why == "TTFT and totals not compared: the server does not say"
    restarted = truth_check(client(), _changed(ENGINE, {"restarts": 1}))
    assert (restarted.agrees, restarted.why) == (None, "TTFT and totals not compared: the server was restarted")
    silent = truth_check(client(first_tokens=0), _changed(ENGINE, {"ttft_count": 0}))
    assert silent.ttft_outside_ms is None


def test_queue_and_prefill_of_other_requests_are_no_parts_of_the_ttft() -> None:
    engine = _changed(ENGINE, {"latency_ms": ENGINE.latency_ms | {"queue": latency(20.0, count=60)}})
    assert truth_check(client(), engine).frontend_ms is None


@pytest.mark.parametrize(
    ("rate", "intended", "flagged"),
    [
        (None, 0.0, False),
        (0.0, 0.0, False),
        (0.01, 0.0, False),
        (0.011, 0.0, True),
        (0.5, 0.5, False),
        (0.52, 0.5, True),
    ],
)
def test_prefix_hits_that_nobody_wanted(rate: float | None, intended: float, flagged: bool) -> None:
    words = unintended_hits(rate, intended=intended)
    assert (words is not None) == flagged


def reported(engine: EngineStage | None, **requested: object) -> StageRecord:
    """A stage that asked for these, and of which the engine said that."""
    stage = client()
    stage.started, stage.engine = msgspec.structs.replace(stage.started, **requested), engine
    return stage


def test_verdicts() -> None:
    shared = _changed(ENGINE, {"prefix_hit_rate": 0.25})
    found = truth_verdicts(reported(shared), truth_check(client(ttft_ms=130.0), ENGINE))
    assert [(verdict.id, verdict.subject, verdict.bad) for verdict in found] == [
        ("truth", "stage 1", True),
        ("prefix-cache", "stage 1", True),
    ]
    assert found[1].text.startswith("25.0% of the prompt tokens came from the prefix cache, 0% were meant to")
    assert truth_verdicts(reported(ENGINE), truth_check(client(), ENGINE)) == []
    assert truth_verdicts(reported(None), None) == []
    assert truth_verdicts(reported(shared, meant_hits=0.25), None) == []


def test_speculation_on_random_prompts_is_a_verdict() -> None:
    guessing = _changed(ENGINE, {"spec": SpecDecode(drafts=9, drafted_tokens=36, accepted_tokens=30, acceptance=5 / 6)})
    [verdict] = truth_verdicts(reported(guessing, random_prompts=True), None)
    assert (verdict.id, verdict.bad) == ("spec-decode-random", True)
    assert verdict.text.startswith("speculative decoding accepted 83% of its drafts on random prompts")
    assert truth_verdicts(reported(guessing), None) == [], "prompts of a dataset"
    assert truth_verdicts(reported(ENGINE, random_prompts=True), None) == [], "no speculation"


# In the result.


def milliseconds(*values: int) -> EncodedHistogram:
    histogram = Histogram()
    histogram.record_ns([value * 1_000_000 for value in values])
    return histogram.encode()


def folded(*, open_before: int = 0, warmup: int = 1, engine: EngineStage | None = None) -> StageResult:
    """A stage of one warm-up stream and two that count."""
    lines: list[Line] = [
        STARTED,
        Ticked(
            t_s=0.5,
            span_s=0.25,
            stages={},
            client=ClientDelta(),
            held=open_before,
            open_stages={0: open_before} if open_before else {},
        ),
        StageStarted(
            t_s=1.0,
            index=1,
            label="conc 1",
            concurrency=1,
            rate=None,
            arrival="poisson",
            isl=10,
            osl=5,
            requests=2,
            duration_s=None,
            warmup_requests=0,
            warmup_s=0.0,
        ),
        Ticked(t_s=1.5, span_s=0.25, stages={1: _delta(warmup)}, client=ClientDelta(), held=0),
    ]
    if engine is not None:
        lines.append(EngineMeasured(t_s=2.0, index=1, engine=engine))
    return record_of(lines).result().stages[0]


def _delta(warmup: int) -> StageDelta:
    latency = {"ttft": milliseconds(10, 20), "warmup_ttft": milliseconds(60), "first_wave_ttft": milliseconds(50)}
    return StageDelta(warmup=warmup, sent=2, completed=2, input_tokens=20, output_tokens=10, latency=latency)


def test_first_tokens_of_warm_up_and_first_wave_are_in_both() -> None:
    engine = EngineStage(ttft_mean_ms=25.0, ttft_count=4, generation_tokens=15, prefix_hit_rate=0.5, idle_around=True)
    stage = folded(engine=engine)
    assert stage.latency_ms["ttft"].mean == pytest.approx(15.0)
    assert stage.truth is not None
    assert stage.truth.ttft_client_ms == pytest.approx(35.0)
    assert stage.truth.ttft_outside_ms == pytest.approx(10.0)
    assert (stage.truth.agrees, stage.truth.why) == (True, "totals not compared: warm-up is in the server's only")
    assert [verdict.id for verdict in stage.verdicts] == ["prefix-cache"]


def test_without_engine_metrics_there_is_no_crosscheck() -> None:
    assert folded().truth is None


def test_streams_of_the_stage_before_are_seen() -> None:
    engine = EngineStage(ttft_mean_ms=25.0, ttft_count=3, generation_tokens=15, idle_around=True)
    stages = [folded(open_before=streams, warmup=0, engine=engine) for streams in (0, 2)]
    words = [stage.truth.why for stage in stages if stage.truth is not None]
    assert words[0].endswith(
        "the client saw 2 first tokens, the server made 3; others use it, too: 1 of them are theirs"
    )
    assert words[1] == "TTFT and totals not compared: streams of the stage before were open when it began"


def _changed(struct: Any, changes: dict[str, Any]) -> Any:
    return msgspec.structs.replace(struct, **changes)
