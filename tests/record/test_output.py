"""The fold of canaries: what is held against which idle answer, and which words come of it."""

from typing import Any

import pytest

from loadgen.metrics.sequential import agreement
from loadgen.record.output import CanaryRecord
from loadgen.schema.journal import CanaryMeasured, ReferenceDisturbed
from loadgen.schema.output import CanaryKind, CanaryMoment, CanaryStage

IDLE = -1.8


def scored(when: CanaryMoment, score: float, *, name: str = "prose", **changes: Any) -> CanaryMeasured:
    return line("score", when, name, score=score, **{"scored_tokens": 80, "method": "echo", **changes})


def answered(when: CanaryMoment, text: str, **changes: Any) -> CanaryMeasured:
    return line("greedy", when, "count", answer=text, **changes)


def line(kind: CanaryKind, when: CanaryMoment, name: str, **changes: Any) -> CanaryMeasured:
    index = 0 if when == "load" else None
    fields = {"index": index, "ttft_ms": 10.0, "input_tokens": 81, "output_tokens": 1}
    return CanaryMeasured(t_s=1.0, name=name, kind=kind, when=when, **(fields | changes))


def record_of(*lines: CanaryMeasured | ReferenceDisturbed) -> CanaryRecord:
    record = CanaryRecord()
    for each in lines:
        if isinstance(each, ReferenceDisturbed):
            record.disturbed(each)
        else:
            record.apply(each)
    return record


def stage_of(record: CanaryRecord, index: int = 0) -> CanaryStage:
    stage = record.stage(index, 100)
    assert stage is not None
    return stage


HEALTHY = [
    *(scored("before", IDLE) for _ in range(3)),
    *(answered("before", "twelve, thirteen, fourteen") for _ in range(2)),
]


def test_a_load_that_changes_nothing_has_no_verdict() -> None:
    under_load = [
        one for _ in range(50) for one in (scored("load", IDLE), answered("load", "twelve, thirteen, fourteen"))
    ]
    record = record_of(*HEALTHY, *under_load, scored("after", IDLE))
    stage = stage_of(record)
    assert (stage.scores, stage.answers, stage.same, stage.agreement) == (50, 50, 50, 1.0)
    assert stage.drift == pytest.approx(0.0)
    assert (stage.sent, stage.share) == (100, 0.5)
    assert record.stage_verdicts(0) == record.run_verdicts() == []
    result = record.result(1000)
    assert result is not None and result.perplexity == pytest.approx(6.05, abs=0.01)
    (text,) = result.texts
    assert (text.idle_scores, text.load_scores, text.after) == (3, 50, IDLE)
    assert result.unchecked == ()


def test_scores_that_fall_under_load_are_a_drift_of_that_stage_alone() -> None:
    well = [scored("load", IDLE, index=0) for _ in range(20)]
    record = record_of(*HEALTHY, *well, *(scored("load", IDLE - 0.3, index=1) for _ in range(5)))
    assert record.stage_verdicts(0) == []
    (verdict,) = record.stage_verdicts(1)
    assert (verdict.id, verdict.subject, verdict.bad) == ("output-drift", "stage 2", True)
    assert "0.30 nats a token below" in verdict.text and "5 scores" in verdict.text


def test_early_divergence_is_a_drift_near_ties_are_not() -> None:
    late = record_of(*HEALTHY, *(answered("load", "twelve, thirteen, xx") for _ in range(40)))
    assert late.stage_verdicts(0) == []
    assert stage_of(late).first_difference == 18
    wrong = record_of(*HEALTHY, *(answered("load", "zaba zeba") for _ in range(12)))
    (verdict,) = wrong.stage_verdicts(0)
    assert verdict.id == "output-drift" and "12 of 12 greedy answers" in verdict.text


def test_a_perplexity_that_no_trained_model_has_is_broken() -> None:
    record = record_of(*(scored("before", -11.0) for _ in range(3)), *(scored("load", -11.0) for _ in range(3)))
    (verdict,) = record.stage_verdicts(0)
    assert verdict.id == "output-broken" and "59,874" in verdict.text


def test_what_is_wrong_after_the_load_is_a_verdict_on_the_run() -> None:
    record = record_of(*HEALTHY, scored("load", IDLE), *(scored("after", IDLE - 0.5) for _ in range(5)))
    (verdict,) = record.run_verdicts()
    assert (verdict.id, verdict.subject) == ("output-drift", "output") and "after the load" in verdict.text


def test_of_several_servers_the_wrong_one_is_named() -> None:
    lines = [
        one
        for server in (0, 1)
        for one in (
            *(scored("before", IDLE, instance=server) for _ in range(3)),
            *(scored("load", IDLE - 0.5 * server, instance=server) for _ in range(6)),
        )
    ]
    (verdict,) = record_of(*lines).stage_verdicts(0)
    assert verdict.text.startswith("server 2: ")


def test_a_server_that_was_started_anew_has_idle_answers_of_its_own() -> None:
    again = [scored("before", IDLE - 1.0) for _ in range(3)]
    record = record_of(*HEALTHY, scored("load", IDLE), *again, *(scored("load", IDLE - 1.0, index=1) for _ in range(9)))
    assert record.stage_verdicts(1) == []
    assert stage_of(record, 1).drift == pytest.approx(0.0)


def test_what_was_not_idle_before_the_load_is_not_called_so() -> None:
    busy = [ReferenceDisturbed(t_s=0.5, others=others) for others in (3.0, 1.0)]
    under_load = [scored("load", IDLE - 0.4) for _ in range(20)]
    record = record_of(*busy, *HEALTHY, *under_load)
    (verdict,) = record.stage_verdicts(0)
    assert "0.40 nats a token below the reference taken while others used the server, of which" in verdict.text
    result = record.result(0)
    assert result is not None and result.unchecked == (
        "server 1 was not idle before the load, others had 3 requests on it: what differs is against that, and not "
        "against an idle engine",
    )
    again = record_of(*busy, *HEALTHY, *under_load, *HEALTHY).result(0)
    assert again is not None and again.unchecked == ()


def test_scores_of_other_tokens_are_not_compared() -> None:
    record = record_of(*HEALTHY, *(scored("load", -5.0, scored_tokens=40) for _ in range(9)))
    stage = stage_of(record)
    assert (stage.scores, stage.drift, stage.failed) == (0, None, 9)
    assert record.stage_verdicts(0) == []
    result = record.result(0)
    assert result is not None
    assert result.unchecked == ("40 tokens of prose were scored, 80 when it was idle (9 canaries)",)


def test_idle_answers_that_disagree_are_said_to_tell_nothing() -> None:
    unsteady = [scored("before", IDLE + 0.2 * number) for number in range(3)]
    answers = [answered("before", "one"), answered("before", "two")]
    under_load = [answered("load", "three") for _ in range(20)] + [scored("load", IDLE - 0.4) for _ in range(20)]
    record = record_of(*unsteady, *answers, *under_load)
    assert record.stage_verdicts(0) == []
    result = record.result(0)
    assert result is not None and result.least_drift is not None and result.least_drift > 1.0
    assert [words.partition(" of server")[0] for words in result.unchecked] == ["idle scores", "idle answers"]


def test_an_endpoint_that_scores_nothing_is_said_so() -> None:
    refused = line("score", "before", "prose", problem="echo of prose: HTTP 400", ttft_ms=None)
    record = record_of(refused, answered("before", "one"), answered("load", "one"))
    result = record.result(0)
    assert result is not None and (result.method, result.perplexity, result.least_drift) == (None, None, None)
    assert result.unchecked == (
        "no text was scored while the engine was idle: drift of scores",
        "echo of prose: HTTP 400",
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("", "", (1.0, None)), ("abcd", "abcd", (1.0, None)), ("abcd", "abxd", (0.5, 2)), ("ab", "abcd", (0.5, 2))],
)
def test_how_far_two_answers_agree(one: str, other: str, expected: tuple[float, int | None]) -> None:
    assert agreement(one, other) == agreement(other, one) == expected
