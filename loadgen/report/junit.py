"""A suite of cases as JUnit XML, which CI systems show as tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree as xml

from loadgen.errors import reported_as
from loadgen.format import plain
from loadgen.masking import masked_text
from loadgen.places import write_named


class Case(NamedTuple):
    """One limit, and how it was missed; the words of one that was met appear nowhere."""

    subject: str
    name: str
    outcome: Literal["passed", "failure", "error", "skipped"] = "passed"
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
