"""Limits as JUnit XML: what fails there is what the exit code is about."""

from __future__ import annotations

from xml.etree import ElementTree as xml

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.assessment import shortcomings
from loadgen.report.compare import compare_runs, hold_against, parse_limit
from loadgen.report.junit import Case, Suite, compare_suite, junit_xml, run_suite
from loadgen.schema.result import Result
from loadgen.schema.shared import SearchResult
from tests.metrics.served import run_of, served


def cases(*suites: Suite) -> dict[str, str]:
    """By name, what came of each; read back from the document."""
    root = xml.fromstring(junit_xml(suites))
    found = {}
    for suite in root:
        outcomes = []
        for case in suite:
            (outcome,) = [child.tag for child in case] or ["passed"]
            outcomes.append(outcome)
            found[f"{case.get('classname')}: {case.get('name')}"] = outcome
        counted = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        assert int(suite.get("tests", "")) == len(outcomes)
        assert all(int(suite.get(name, "")) == outcomes.count(tag) for name, tag in counted.items())
    return found


def test_limits_that_are_kept_and_missed(measured: Result) -> None:
    found = cases(run_suite(measured))
    assert found["test: run"] == "passed"
    assert {name: outcome for name, outcome in found.items() if name.startswith("conc 2")} == {
        "conc 2: failed or unsent <= 0 %": "passed",
        "conc 2: ttft_p99 <= 0.001 ms": "failure",
        "conc 2: tpot_p99 <= 100,000 ms": "passed",
        "conc 2: goodput >= 95%": "passed",
    }
    assert shortcomings(measured)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("complete", "passed"), ("stopped", "skipped"), ("failed", "error"), ("server_died", "error")],
)
def test_a_run_that_did_not_come_to_its_end(measured: Result, state: str, outcome: str) -> None:
    ended = msgspec.convert(msgspec.to_builtins(measured) | {"state": state}, Result)
    assert cases(run_suite(ended))["test: run"] == outcome


@pytest.mark.parametrize("resolved", [True, False])
def test_of_a_search_only_its_end_counts(measured: Result, resolved: bool) -> None:
    search = SearchResult(
        kind="slo", by="concurrency", found=4, low=3, high=5, probes=3, resolved=resolved, why="a word"
    )
    searched = msgspec.structs.replace(measured, search=search)
    assert cases(run_suite(searched)) == {"test: run": "passed" if resolved else "failure"}
    assert bool(shortcomings(searched)) != resolved


def test_limits_of_a_comparison() -> None:
    comparison = compare_runs(("good", run_of(served(1))), ("slow", run_of(served(2, scale=1.2))))
    limits = [parse_limit("tpot_mean>+10%"), parse_limit("req_s<-90%")]
    suite = compare_suite(comparison, hold_against(comparison, limits, strict=False))
    assert suite.name == "slow against good"
    assert cases(suite) == {
        "conc 16, ISL 512, OSL 128: tpot_mean>+10%": "failure",
        "conc 16, ISL 512, OSL 128: req_s<-90%": "passed",
    }


def test_of_a_stage_in_doubt_the_doubt_is_reported() -> None:
    slow = run_of(served(2, scale=1.2))
    limited = msgspec.structs.replace(
        slow, stages=[msgspec.structs.replace(slow.stages[0], limited=True, why="its CPU was full")]
    )
    comparison = compare_runs(("good", run_of(served(1))), ("slow", limited))
    (case,) = compare_suite(comparison, hold_against(comparison, [parse_limit("tpot_mean>+10%")], strict=False)).cases
    assert case.outcome == "skipped" and case.words.endswith("; B is client-limited: its CPU was full")


def test_a_load_without_figures_is_a_failure() -> None:
    both = run_of(served(1, concurrency=8), served(2, index=1))
    short = msgspec.structs.replace(run_of(served(3, concurrency=8)), state="server_died")
    comparison = compare_runs(("good", both), ("dead", short))
    found = compare_suite(comparison, hold_against(comparison, [parse_limit("tpot_mean>+10%")], strict=False)).cases
    assert Case("conc 16, ISL 512, OSL 128", "tpot_mean>+10%", "failure", "dead has no figures of this load") in found


@given(st.text(), st.text())
def test_any_text_is_a_document(name: str, words: str) -> None:
    assert list(cases(Suite(name, [Case(name, "run", "error", words)])).values()) == ["error"]
