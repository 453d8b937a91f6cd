"""Limits as suites of cases in JUnit XML, which CI systems show as tests: a case per limit on a stage.

A case fails exactly if it makes the exit code 1; a run that did not finish is an error of a case of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree as xml

from loadgen.errors import reported_as
from loadgen.format import plain
from loadgen.masking import masked_text
from loadgen.places import write_named
from loadgen.record.subject import known_time
from loadgen.report.assessment import failure_limit, limit_words, run_shortcomings, titles
from loadgen.report.compare import HeldAgainst, Outcome, RunComparison
from loadgen.report.compare_document import held_words
from loadgen.schema.result import Result

CaseOutcome = Literal["passed", "failure", "error", "skipped"]


class Case(NamedTuple):
    """One limit, and how it was missed; the words of one that was met appear nowhere."""

    subject: str
    name: str
    outcome: CaseOutcome = "passed"
    words: str = ""


class Suite(NamedTuple):
    name: str
    cases: Sequence[Case]
    started_at: str = ""
    duration_s: float | None = None


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
    with reported_as(f"--junit {path}: cannot be written"):
        write_named(path, junit_xml(suites))


def run_suite(result: Result) -> Suite:
    """The limits of a run; not those of a search's probes, which miss limits by design."""
    wrong = result.reason
    outcome: CaseOutcome = "skipped" if result.state == "stopped" else "error"
    if result.state == "complete":
        wrong = "; ".join(run_shortcomings(result))
        outcome = "failure" if wrong else "passed"
    cases = [Case(str(result.profile.get("name") or result.run_id), "run", outcome, wrong)]
    names = titles(result.stages)
    for stage in result.stages if result.search is None else []:
        limits = [failure_limit(stage, stage.failures)] if stage.failures is not None else []
        if stage.requests.sent or (stage.failures is not None and not stage.failures.met):
            limits += limit_words(stage).items()
        cases += [
            Case(names[stage.index], limit, "failure" if missed else "passed", missed) for limit, missed in limits
        ]

    duration_s = sum(stage.duration_s for stage in result.stages)
    return Suite(result.run_id, cases, known_time(result.started_at) or "", duration_s)


def compare_suite(comparison: RunComparison, held: Iterable[HeldAgainst]) -> Suite:
    """The limits of `--fail-if`, each in every stage that could be checked."""
    name = f"{comparison.b.name} against {comparison.a.name}"
    return Suite(name, [Case(one.stage, one.limit, _OUTCOMES[one.outcome], held_words(one)) for one in held])


_OUTCOMES: dict[Outcome, CaseOutcome] = {
    "kept": "passed",
    "broken": "failure",
    "in doubt": "skipped",
}
