"""The limits of a run or a comparison as a suite: a case per limit on a stage.

A case fails exactly if it makes the exit code 1; a run that did not finish is an error of a case of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from loadgen.record.subject import known_time
from loadgen.report.assessment import failure_limit, limit_words, run_shortcomings, titles
from loadgen.report.compare import HeldAgainst, Outcome, RunComparison
from loadgen.report.compare_document import held_words
from loadgen.report.junit import Case, Suite
from loadgen.schema.result import Result, StageResult


def run_suite(result: Result) -> Suite:
    """The limits of a run; not those of a search's probes, which miss limits by design."""
    stages = result.stages if result.search is None else []
    names = titles(result.stages)
    cases = [
        Case(names[stage.index], limit, "failure" if missed else "passed", missed)
        for stage in stages
        for limit, missed in _limits(stage)
    ]
    duration_s = sum(stage.duration_s for stage in result.stages)
    return Suite(result.run_id, [_run_case(result), *cases], known_time(result.started_at) or "", duration_s)


def _run_case(result: Result) -> Case:
    subject = str(result.profile.get("name") or result.run_id)
    if result.state == "complete":
        wrong = run_shortcomings(result)
        return Case(subject, "run", "failure" if wrong else "passed", "; ".join(wrong))
    return Case(subject, "run", "skipped" if result.state == "stopped" else "error", result.reason)


def _limits(stage: StageResult) -> Iterator[tuple[str, str]]:
    """Each limit of a stage, and how it was missed; empty if it was met."""
    if stage.failures is not None:
        yield failure_limit(stage, stage.failures)
    if stage.requests.sent or (stage.failures is not None and not stage.failures.met):
        yield from limit_words(stage).items()


def compare_suite(comparison: RunComparison, held: Iterable[HeldAgainst]) -> Suite:
    """The limits of `--fail-if`, each in every stage that could be checked."""
    name = f"{comparison.b.name} against {comparison.a.name}"
    return Suite(name, [Case(one.stage, one.limit, _OUTCOMES[one.outcome], held_words(one)) for one in held])


_OUTCOMES: dict[Outcome, Literal["passed", "failure", "skipped"]] = {
    "kept": "passed",
    "broken": "failure",
    "in doubt": "skipped",
}
