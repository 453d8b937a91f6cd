"""Limits as JUnit XML, which CI systems show as tests: a case per limit on a stage, of a run or a comparison.

A case fails exactly if it makes the exit code 1; a run that did not finish is an error of a case of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree as xml

from loadgen.errors import ResultError
from loadgen.format import plain
from loadgen.masking import masked_text
from loadgen.places import write_named
from loadgen.report.assessment import failure_limit, limit_words, run_shortcomings, titles
from loadgen.report.compare import HeldAgainst, RunComparison
from loadgen.report.compare_document import held_words
from loadgen.schema.result import Result, StageResult


class Case(NamedTuple):
    """One limit, and how it was missed; empty if it was met."""

    subject: str
    name: str
    outcome: Literal["passed", "failure", "error", "skipped"] = "passed"
    words: str = ""


class Suite(NamedTuple):
    name: str
    cases: Sequence[Case]
    started_at: str = ""
    duration_s: float | None = None


def run_suite(result: Result) -> Suite:
    """The limits of a run; not those of a search's probes, which miss limits by design."""
    stages = result.stages if result.search is None else []
    names = titles(result.stages)
    cases = [case for stage in stages for case in _stage_cases(stage, names[stage.index])]
    duration_s = sum(stage.duration_s for stage in result.stages)
    return Suite(result.run_id, [*_run_cases(result), *cases], result.started_at, duration_s)


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


def junit_xml(suites: Iterable[Suite]) -> bytes:
    """A document with these suites; texts are free of markup, secrets and characters that XML forbids."""
    root = xml.Element("testsuites")
    for suite in suites:
        outcomes: list[str] = [case.outcome for case in suite.cases]
        counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        attributes = {"name": _text(suite.name), "tests": str(len(outcomes))}
        attributes |= {name: str(outcomes.count(outcome)) for name, outcome in counts.items()}
        attributes |= {"timestamp": suite.started_at} if suite.started_at else {}
        attributes |= {"time": f"{suite.duration_s:.3f}"} if suite.duration_s is not None else {}
        parent = xml.SubElement(root, "testsuite", attributes)
        for case in suite.cases:
            found = xml.SubElement(parent, "testcase", classname=_text(case.subject), name=_text(case.name))
            if case.outcome != "passed":
                xml.SubElement(found, case.outcome, message=_text(case.words))
    xml.indent(root)
    document: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _text(words: str) -> str:
    return plain(masked_text(words))


def write_junit(path: Path, suites: Sequence[Suite]) -> None:
    """Write limits as JUnit XML; raises `ResultError`."""
    try:
        write_named(path, junit_xml(suites))
    except OSError as error:
        raise ResultError(f"--junit {path}: cannot be written: {error.strerror}") from error
