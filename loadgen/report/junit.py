"""Limits and criteria as the tests that CI systems show: suites of cases in JUnit XML, and a certificate also as CTRF.

A case of a run or a comparison is a limit on a stage. It fails exactly if it makes the exit code 1; a run that did not
finish is an error of a case of its own.

INCONCLUSIVE is neither passed nor failed: JUnit has it skipped with its reason, CTRF as `other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree as xml

from loadgen.errors import reported_as
from loadgen.format import plain
from loadgen.masking import masked, masked_text
from loadgen.places import write_named
from loadgen.record.acceptance import title
from loadgen.record.subject import known_time
from loadgen.report.assessment import failure_limit, limit_words, run_shortcomings, titles
from loadgen.report.certificate import reason_words
from loadgen.report.compare import HeldAgainst, Outcome, RunComparison
from loadgen.report.compare_document import held_words
from loadgen.report.tabular import json_text
from loadgen.schema.certificate import Certificate, PhaseRecord, PhaseState
from loadgen.schema.result import Result

CTRF_VERSION = "0.0.0"
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
        for limit, missed in limits:
            cases.append(Case(names[stage.index], limit, "failure" if missed else "passed", missed))

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


_STATES: dict[PhaseState, tuple[CaseOutcome, str]] = {
    "pass": ("passed", "passed"),
    "fail": ("failure", "failed"),
    "inconclusive": ("skipped", "other"),
    "skipped": ("skipped", "skipped"),
}
"""In JUnit and in CTRF."""


def _tests(certificate: Certificate) -> Iterator[tuple[PhaseRecord, list[tuple[str, PhaseState, str]]]]:
    """The tests in JUnit and in CTRF, with state and message: for each phase, one for itself and one per criterion."""
    for phase in certificate.phases:
        criteria = [one for one in certificate.criteria if one.demand.phase == phase.name]
        of_criteria = [(title(one.demand), one.outcome, f"{one.outcome}: {reason_words(one)}") for one in criteria]
        yield phase, [(f"phase {phase.name}", phase.state, phase.reason), *of_criteria]


def certificate_suites(certificate: Certificate) -> list[Suite]:
    """One suite per phase."""
    return [
        Suite(
            f"{certificate.profile}: {phase.name}",
            [Case(phase.name, name, _STATES[state][0], message) for name, state, message in tests],
            phase.started_at or "",
            _seconds(phase),
        )
        for phase, tests in _tests(certificate)
    ]


def ctrf_json(certificate: Certificate) -> str:
    """Common Test Report Format; the duration of a test is that of its phase."""
    tests = []
    for phase, of_phase in _tests(certificate):
        duration_ms = round(1000 * (_seconds(phase) or 0.0))
        for name, state, message in of_phase:
            test = {"name": name, "status": _STATES[state][1], "duration": duration_ms, "suite": phase.name}
            test |= {"message": message} if state != "pass" else {}
            tests.append(test | {"extra": {"outcome": state}})
    states = [test["status"] for test in tests]
    summary = {"tests": len(tests)} | {
        state: states.count(state) for state in ("passed", "failed", "skipped", "pending", "other")
    }
    times = {"start": _unix_ms(certificate.started_at), "stop": _unix_ms(certificate.finished_at)}
    results = {
        "tool": {"name": "vramp", "version": certificate.vramp_version},
        "summary": summary | times,
        "tests": tests,
    }
    extra = {"verdict": certificate.verdict, "profile": certificate.profile}
    document = {"reportFormat": "CTRF", "specVersion": CTRF_VERSION, "results": results, "extra": extra}
    return json_text(masked(document))


def write_ctrf(path: Path, certificate: Certificate) -> None:
    """Write a certificate as CTRF; raises `ResultError`."""
    with reported_as(f"--ctrf {path}: cannot be written"):
        write_named(path, ctrf_json(certificate).encode())


def _unix_ms(moment: str) -> int:
    return round(1000 * datetime.fromisoformat(moment).timestamp())


def _seconds(phase: PhaseRecord) -> float | None:
    if phase.started_at is None or phase.finished_at is None:
        return None
    return (_unix_ms(phase.finished_at) - _unix_ms(phase.started_at)) / 1000
