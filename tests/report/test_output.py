"""What the canaries found, in words and tables, and the output of two runs side by side."""

import msgspec
import pytest

from loadgen.report.assessment import assessment
from loadgen.report.html.run_page import html_report
from loadgen.report.output import OutputComparison, compare_output, comparison_words, output_words
from loadgen.report.tabular import Bad
from loadgen.report.text import markdown_report, text_report
from loadgen.schema.finding import Verdict
from loadgen.schema.output import CanaryCount, CanaryResult, CanaryStage, GreedyAnswer, ScoredText
from loadgen.schema.result import Result
from tests.report.test_text import result, stage

replace = msgspec.structs.replace
BESIDE = CanaryStage(
    sent=30, failed=1, share=0.02, scores=14, drift=-0.0012, answers=15, same=14, agreement=0.99, first_difference=37
)
DRIFT = Verdict("output-drift", "stage 1", "wrong output under load: 5 scores 0.50 nats a token below idle")


def canary(
    shift: float = 0.0, *, noise: float = 0.001, tokens: int = 80, text: str = "twelve, thirteen"
) -> CanaryResult:
    names = ("prose", "code", "german")
    return CanaryResult(
        method="echo",
        texts=tuple(ScoredText(name, 0, tokens, -1.8 + shift, 3, 0.002) for name in names),
        answers=(GreedyAnswer("count", 0, text, 1.0, 15, 14, 37),),
        perplexity=6.05,
        noise=noise,
        least_drift=0.024,
        false_alarms=0.001,
        requests=CanaryCount(sent=60, share=0.02),
    )


def run(*verdicts: Verdict, found: CanaryResult | None = None) -> Result:
    own = replace(stage(80), canary=BESIDE, verdicts=list(verdicts))
    return replace(result(own), canary=found or canary())


def right(of: Result) -> tuple[str, bool]:
    (answer,) = (answer for answer in assessment(of) if answer.subject == "Is the output right?")
    return answer.text, isinstance(answer.text, Bad)


def test_a_stage_says_what_was_looked_at() -> None:
    assert output_words(BESIDE, None) == (
        "scores -0.001 nats a token from idle over 14 scores; 14 of 15 greedy answers as idle, first difference at "
        "character 37; 30 canary requests, 1 of them failed, 2.0% of all requests"
    )
    assert output_words(None, None) is None


def test_whether_the_output_is_right_is_among_the_first_answers() -> None:
    text, bad = right(run(DRIFT))
    assert bad and "stage 1: wrong output" in text
    text, _ = right(run(found=replace(canary(), unchecked=("no text was scored",))))
    assert text.endswith("Not checked: no text was scored.")
    assert "output" not in " ".join(answer.subject for answer in assessment(result(stage(80))))


def test_every_report_has_the_texts_and_the_answers() -> None:
    table, page, markdown = text_report(run(DRIFT)), html_report(run(DRIFT)), markdown_report(run(DRIFT))
    assert "-1.8000" in page and "twelve, thirteen" in page
    for report in (table, page, markdown):
        assert "14 of 15" in report
        assert "0.50 nats a token below idle" in report
    assert "<h2>Output</h2>" in page and "<h2>Output</h2>" not in html_report(result(stage(80)))


def compared(a: CanaryResult, b: CanaryResult) -> OutputComparison:
    found = compare_output(a, b, 0.99)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("shift", "noise", "word"),
    [(-0.02, 0.001, "worse"), (0.02, 0.001, "better"), (-0.02, 0.05, "no evidence"), (-0.0005, 0.0, "no evidence")],
)
def test_a_difference_beyond_noise_is_evidence(shift: float, noise: float, word: str) -> None:
    found = compared(canary(noise=noise), canary(shift, noise=noise))
    assert [one.text for one in found.texts] == ["prose", "code", "german", "all texts"]
    assert {one.word for one in found.texts} == {word}
    assert found.texts[-1].difference == pytest.approx(shift)


def test_other_tokens_and_other_answers_are_named() -> None:
    found = compared(canary(), canary(tokens=70, text="twelve, fourteen"))
    assert found.texts == [] and (found.same_answers, found.answers) == (0, 1)
    words = list(comparison_words(found))
    assert words[0] == "output: 0 of 1 greedy answer the same, idle"
    assert any("from character 8 on" in line for line in words) and any("tokenizer" in line for line in words)
    assert compare_output(canary(), None, 0.99) is None
