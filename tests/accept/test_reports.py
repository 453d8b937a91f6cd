"""A certificate as text, page, JUnit and CTRF: all say the same."""

import json
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from msgspec.structs import replace

import loadgen
from loadgen.criteria import PHASES
from loadgen.report.certificate import (
    certificate_sections,
    criterion_line,
    demanded,
    headline,
    place_of,
)
from loadgen.report.html.certificate import PAGE, certificate_page, verify_page, write_certificate
from loadgen.report.junit import certificate_suites, ctrf_json, junit_xml
from loadgen.report.text import sections_text
from loadgen.schema.certificate import Certificate
from loadgen.store.acceptance import CERTIFICATE, verify
from tests.accept.evidence import box, certified, counts, criterion, of_phase, written

ROW = {"figure": "ttft_p99_ms", "at_most": 125, "margin": "4%", "source": "<b>agreement</b>"}
INCONCLUSIVE = (1.1, 1.25, 1.25)


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return certified(*box(INCONCLUSIVE, criteria=[ROW]))


def test_every_format_names_every_criterion(certificate: Certificate) -> None:
    text = sections_text(certificate_sections(certificate))
    texts = [text, certificate_page(certificate), ctrf_json(certificate)]
    for one in certificate.criteria:
        assert all(one.demand.figure in text for text in texts)
    assert headline(certificate).startswith("INCONCLUSIVE for performance only: box-1, profile box, some/model")
    assert "box: not asked for" in text and "480 a start" in text


def test_the_headline_names_phases_unless_all_were_carried_out() -> None:
    alone = certified(of_phase("burn-in", counts("burn-in", "gpu_resets", 0)), {})
    assert headline(alone) == "PASS for burn-in only: box not identified, profile box (1 passed)"
    assert (*alone.reasons, alone.phases[0].reason) == ("its only criterion passed",) * 2
    every = [replace(alone.phases[0], name=name) for name in PHASES]
    assert headline(replace(alone, phases=tuple(every))).startswith("PASS: ")


def test_the_line_of_a_criterion(certificate: Certificate) -> None:
    line = criterion_line(criterion(certificate, "ttft_p99_ms"))
    assert line.startswith("INCONCLUSIVE  performance: ttft_p99_ms at conc 16, ISL 512, OSL 128: ")
    assert "(demanded: <= 125 ms, margin 5); it would take " in line


def test_the_page_needs_no_script_and_escapes_what_is_not_ours(certificate: Certificate) -> None:
    page = certificate_page(certificate)
    assert "<script" not in page and "script-src 'none'" in page
    assert "&lt;b&gt;agreement&lt;/b&gt;" in page and "<b>agreement" not in page
    named = certificate_page(replace(certificate, files={"a/<i>\"'x.json": "00"}))
    assert "href='a/%3Ci%3E%22%27x.json'" in named and "<i>" not in named


def test_a_bar_lies_on_the_side_where_its_interval_is(certificate: Certificate) -> None:
    open_ = place_of(criterion(certificate, "ttft_p99_ms"))
    good = place_of(criterion(certified(*box((1.0, 1.01, 1.0))), "ttft_p99_ms"))
    assert open_ is not None and good is not None
    assert open_.low < open_.observed < open_.high and open_.low < 0 < open_.high
    assert open_.bound < 0  # the margin lies between bound and edge
    assert good.high < 0 == good.bound
    assert place_of(criterion(certificate, "failed_requests")) is None
    assert demanded(criterion(certificate, "failed_requests").demand) == "none"


def test_junit_skips_what_is_inconclusive(certificate: Certificate) -> None:
    root = xml.fromstring(junit_xml(certificate_suites(certificate)))
    tags = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert tags["failed_requests"] == []
    assert tags["ttft_p99_ms at conc 16, ISL 512, OSL 128"] == ["skipped"]
    failed = junit_xml(certificate_suites(certified(*box((3.0, 3.0, 3.0)))))
    assert b"<failure" in failed


def test_ctrf_has_what_is_inconclusive_as_other(certificate: Certificate) -> None:
    document = json.loads(ctrf_json(certificate))
    summary = document["results"]["summary"]
    assert (document["reportFormat"], summary["tests"], summary["passed"], summary["other"]) == ("CTRF", 5, 3, 2)
    assert summary["stop"] - summary["start"] == 10_000
    phase, other = (test for test in document["results"]["tests"] if test["status"] == "other")
    assert phase["name"] == "phase performance"
    assert other["extra"] == {"outcome": "inconclusive"} and other["message"]
    skipped = json.loads(ctrf_json(certified(of_phase("silicon", state="skipped"), {})))
    assert [test["status"] for test in skipped["results"]["tests"]] == ["skipped"]


def test_a_phase_that_failed_is_a_failed_test() -> None:
    failed = certified(of_phase("start", state="failed"), {})
    assert json.loads(ctrf_json(failed))["results"]["summary"]["failed"] == 1
    assert junit_xml(certificate_suites(failed)).count(b"<failure") == 1


def test_a_page_is_verified_by_the_vramp_that_made_it(tmp_path: Path) -> None:
    lines, results = box((1.0, 1.01, 1.02))
    own = [replace(lines[0], vramp_version=loadgen.__version__), *lines[1:]]
    for kind, first in (("own", own), ("another", lines)):
        folder = written(tmp_path / kind, first, results)
        certificate = write_certificate(folder)
        assert verify(folder) == verify_page(folder, certificate) == []
        page = folder / PAGE
        page.write_text(page.read_text().replace("PASS", "FAIL"))
        assert verify_page(folder, certificate) == [f"{PAGE}: is not the page of {CERTIFICATE}"] * (kind == "own")
        page.unlink()
        assert verify_page(folder, certificate) == [f"{PAGE}: is missing"]
