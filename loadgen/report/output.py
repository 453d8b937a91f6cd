"""The canaries' findings on the output as text and tables, and how two runs differ in output.

Scores are mean log probabilities, in nats per token. Two runs are compared by their idle engines' scores of the same
texts: a text that another tokenizer splits differently has no comparable score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from loadgen.format import counted, percent, plain, significant
from loadgen.grouping import by_key
from loadgen.metrics.difference import student_t
from loadgen.metrics.sequential import agreement
from loadgen.report.tabular import Column, cut
from loadgen.schema.comparison import Word
from loadgen.schema.finding import Verdict
from loadgen.schema.output import Answers, CanaryResult, CanaryStage, GreedyAnswer, ScoredText
from loadgen.schema.result import Result, StageResult

MIN_NATS = 0.001
"""A smaller difference between two runs is never evidence: 0.1 % of perplexity."""
_ANSWER_CELLS = 48


def is_of_output(verdict: Verdict) -> bool:
    return verdict.id.startswith("output-")


def output_words(canary: CanaryStage | None, answers: Answers | None) -> str | None:
    """Findings of the canaries during one load and of its sampled answers; None if nothing was checked."""
    found = []
    if canary is not None and canary.drift is not None:
        found.append(f"scores {canary.drift:+z.3f} nats a token from idle over {counted(canary.scores, 'score')}")
    if canary is not None and canary.answers:
        at = "" if canary.first_difference is None else f", first difference at character {canary.first_difference}"
        found.append(f"{canary.same} of {counted(canary.answers, 'greedy answer')} as idle{at}")
    if answers is not None and answers.read:
        of = counted(answers.read, "answer")
        found.append(f"{answers.flawed or 'none'} of {of} to load requests degenerate")
    if canary is not None:
        failed = f", {canary.failed} of them failed" if canary.failed else ""
        share = "" if canary.share is None else f", {canary.share:.1%} of all requests"
        found.append(f"{counted(canary.sent, 'canary request')}{failed}{share}")
    return "; ".join(found) or None


def run_words(canary: CanaryResult) -> Iterator[str]:
    """The idle engine's scores, how sensitive the check is, and what was not checked."""
    if canary.perplexity is not None and canary.method is not None:
        noise = "" if canary.noise is None else f", repeated scores differ by {canary.noise:.4f} nats a token"
        yield f"idle perplexity {significant(canary.perplexity)} by {canary.method}{noise}"
    if canary.least_drift is not None:
        yield (
            f"a drift of scores is detected from {canary.least_drift:.3f} nats a token on; false alarms occur in at "
            f"most {canary.false_alarms:.1%} of all runs of a healthy engine, however long"
        )
    for problem in canary.unchecked:
        yield f"not checked: {plain(problem)}"


def text_columns(texts: Sequence[ScoredText]) -> list[Column[ScoredText]]:
    several = len({text.instance for text in texts}) > 1
    server = [Column[ScoredText]("server", lambda text: text.instance + 1)] if several else []
    return [
        *server,
        Column("scored text", lambda text: text.name, words=True, width=14),
        Column("tokens", lambda text: text.tokens),
        Column("idle, nats/token", lambda text: text.idle, decimals=4),
        Column("spread", lambda text: text.idle_spread, decimals=4),
        Column("under load", lambda text: text.load, decimals=4),
        Column("scores", lambda text: text.load_scores),
        Column("idle again", lambda text: text.after, decimals=4),
    ]


def answer_columns(answers: Sequence[GreedyAnswer]) -> list[Column[GreedyAnswer]]:
    several = len({answer.instance for answer in answers}) > 1
    server = [Column[GreedyAnswer]("server", lambda answer: answer.instance + 1)] if several else []
    return [
        *server,
        Column("greedy answer", lambda answer: answer.name, words=True, width=14),
        Column("idle twice", lambda answer: _share(answer.idle_agreement)),
        Column("same under load", _as_idle),
        Column("differs from character", lambda answer: answer.first_difference),
        Column("idle again", lambda answer: _share(answer.after_agreement)),
        Column("idle text", lambda answer: cut(plain(answer.text.strip()), _ANSWER_CELLS), words=True),
    ]


def _share(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _as_idle(compared: GreedyAnswer | CanaryStage) -> str | None:
    return f"{compared.same} of {compared.answers}" if compared.answers else None


def checked_columns(stages: Sequence[StageResult]) -> list[Column[StageResult]]:
    """What the checks of the output saw under each load, as far as they were made."""

    def of_canaries(
        label: str, value: Callable[[CanaryStage], str | int | None], *, alarm: bool = False
    ) -> Column[StageResult]:
        return Column(label, lambda stage: value(stage.canary) if stage.canary is not None else None, alarm=alarm)

    shown = [
        of_canaries(
            "score drift, nats/token", lambda canary: None if canary.drift is None else f"{canary.drift:+z.3f}"
        ),
        of_canaries("scores", lambda canary: canary.scores),
        of_canaries("greedy answers as idle", _as_idle),
        of_canaries("differ from character", lambda canary: canary.first_difference),
        Column(
            "degenerate answers",
            lambda stage: None if stage.answers is None else f"{stage.answers.flawed} of {stage.answers.read}",
        ),
        of_canaries("canaries", lambda canary: canary.sent),
        of_canaries("failed", lambda canary: canary.failed, alarm=True),
        of_canaries("of all requests", lambda canary: percent(canary.share)),
    ]
    return [column for column in shown if any(column.value(stage) not in (None, 0) for stage in stages)]


def output_verdicts(result: Result) -> list[Verdict]:
    of_stages = (verdict for stage in result.stages for verdict in stage.verdicts)
    return [verdict for verdict in (*of_stages, *result.verdicts) if is_of_output(verdict)]


class TextDifference(msgspec.Struct, frozen=True):
    """The idle score of one text in two runs, in nats per token; None if tokenizers differ."""

    text: str  # `all texts` for their mean
    a: float
    b: float
    difference: float  # B minus A
    low: float
    high: float
    word: Word  # on B: `worse` if its model finds the text less likely


class OutputComparison(msgspec.Struct, frozen=True):
    texts: list[TextDifference]  # the last is their mean; empty if nothing is comparable
    same_answers: int
    answers: int
    notes: list[str]


def compare_output(a: CanaryResult | None, b: CanaryResult | None, confidence: float) -> OutputComparison | None:
    """B against A; None if one of them had no canaries."""
    if a is None or b is None:
        return None
    scores_a, scores_b = _by_text(a), _by_text(b)
    both = [name for name in scores_a if name in scores_b]
    alike = [name for name in both if scores_a[name].tokens == scores_b[name].tokens and a.method == b.method]
    # Of several texts that are the same, any may be far off by chance: all together keep the confidence (Bonferroni).
    error = _error(a, b, 1 - (1 - confidence) / max(1, len(alike)))
    found = []
    for name in alike:
        one, other = scores_a[name], scores_b[name]
        found.append(_judged(name, one.idle, other.idle, error / math.sqrt(min(one.idle_scores, other.idle_scores))))
    texts_a, texts_b = ({one.name: one.text for one in reversed(run.answers)} for run in (a, b))
    differing = {name: agreement(text, texts_b[name])[1] for name, text in texts_a.items() if name in texts_b}
    notes = [f"answers to `{name}` differ from character {at} on" for name, at in differing.items() if at is not None]
    if len(alike) < len(both):
        notes.append("scores of other tokens are not compared: another tokenizer, or another way of scoring")
    moved = [abs(one.difference) for one in found if one.low * one.high > 0]
    if moved and all(one.word == "no evidence" for one in found):
        most = f"{max(moved):.1g} nats a token"
        notes.append(f"idle scores are up to {most} apart, repeated ones less: the two compute differently")
    if len(found) > 1:
        mean_a, mean_b = fmean(one.a for one in found), fmean(one.b for one in found)
        found.append(_judged("all texts", mean_a, mean_b, _error(a, b, confidence) / math.sqrt(len(found))))
    return OutputComparison(
        texts=found,
        same_answers=sum(at is None for at in differing.values()),
        answers=len(differing),
        notes=notes,
    )


def _by_text(canary: CanaryResult) -> dict[str, ScoredText]:
    """The idle scores of each text over all servers."""
    return {
        name: replace(texts[0], idle=fmean(text.idle for text in texts), idle_scores=sum(t.idle_scores for t in texts))
        for name, texts in by_key((text.name, text) for text in canary.texts).items()
    }


def _error(a: CanaryResult, b: CanaryResult, confidence: float) -> float:
    """The combined error of a single score in both runs."""
    freedom = min(sum(text.idle_scores - 1 for text in run.texts) for run in (a, b))
    return math.hypot(a.noise or 0.0, b.noise or 0.0) * student_t(max(1, freedom), confidence)


def _judged(name: str, a: float, b: float, half: float) -> TextDifference:
    difference = b - a
    evident = abs(difference) > max(half, MIN_NATS)
    word: Word = ("better" if difference > 0 else "worse") if evident else "no evidence"
    return TextDifference(name, a, b, difference, difference - half, difference + half, word)


def difference_columns(confidence: float) -> list[Column[TextDifference]]:
    return [
        Column("scored text", lambda one: one.text, words=True, width=22),
        Column("A", lambda one: f"{one.a:.4f}", width=12),
        Column("B", lambda one: f"{one.b:.4f}", width=12),
        Column("nats/token", lambda one: f"{one.difference:+.4f}", width=14),
        Column(f"{100 * confidence:g} % interval", lambda one: f"{one.low:+.4f} to {one.high:+.4f}", width=22),
        Column("B is", lambda one: one.word, words=True),
    ]


def comparison_words(output: OutputComparison) -> Iterator[str]:
    if output.texts:
        whole = output.texts[-1]
        percent = 100 * math.expm1(-whole.difference)
        yield f"output: {whole.text}: B's perplexity is {percent:+.2f} % of A's, {whole.word}"
    if output.answers:
        yield f"output: {output.same_answers} of {counted(output.answers, 'greedy answer')} the same, idle"
    yield from (f"output: {note}" for note in output.notes)
