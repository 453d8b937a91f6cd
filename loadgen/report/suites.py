"""The limits of a run or a comparison as a suite: a case per limit on a stage.

A case fails exactly if it makes the exit code 1; a run that did not finish is an error of a case of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loadgen.record.subject import known_time
from loadgen.report.assessment import failure_limit, limit_words, run_shortcomings, titles
from loadgen.report.compare import HeldAgainst, RunComparison
from loadgen.report.compare_document import held_words
from loadgen.report.junit import Case, Suite
from loadgen.schema.result import Result, StageResult


def run_suite(result: Result) -> Suite:
    """The limits of a run; not those of a search's probes, which miss limits by design."""
    stages = result.stages if result.search is None else []
    names = titles(result.stages)
    cases = [case for stage in stages for case in _stage_cases(stage, names[stage.index])]
    duration_s = sum(stage.duration_s for stage in result.stages)
    return Suite(result.run_id, [*_run_cases(result), *cases], known_time(result.started_at) or "", duration_s)


def _run_cases(result: Result) -> Iterator[Case]:
    subject = str(result.profile.get("name") or result.run_id)
    wrong = run_shortcomings(result)
    match result.state:
        case "complete":
            yield Case(subject, "run", "failure" if wrong else "passed", "; ".join(wrong))
        case "stopped":
            yield Case(subject, "run", "skipped", result.reason)
        case _:
            yield Case(subject, "run", "error", result.reason)


def _stage_cases(stage: StageResult, name: str) -> Iterator[Case]:
    if stage.failures is not None:
        yield _limit_case(name, *failure_limit(stage, stage.failures))
    if stage.requests.sent or (stage.failures is not None and not stage.failures.met):
        for limit, words in limit_words(stage).items():
            yield _limit_case(name, limit, words)


def _limit_case(subject: str, limit: str, missed: str) -> Case:
    return Case(subject, limit, "failure" if missed else "passed", missed)


def compare_suite(comparison: RunComparison, held: Iterable[HeldAgainst]) -> Suite:
    """The limits of `--fail-if`, each in every stage that could be checked."""
    name = f"{comparison.b.name} against {comparison.a.name}"
    return Suite(name, [_compare_case(one) for one in held])


def _compare_case(one: HeldAgainst) -> Case:
    match one.outcome:
        case "kept":
            return Case(one.stage, one.limit)
        case "broken":
            return Case(one.stage, one.limit, "failure", held_words(one))
        case "in doubt":
            return Case(one.stage, one.limit, "skipped", held_words(one))
