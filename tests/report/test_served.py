"""Stages of no load in every report: the engine's own figures, percentiles as intervals."""

from __future__ import annotations

import csv
import io

import msgspec
import pytest

from loadgen.report.assessment import assessment, shortcomings
from loadgen.report.csv import csv_report
from loadgen.report.html.run_page import html_report
from loadgen.report.served import LATENCY, SERVED, latencies_of, served_notes
from loadgen.report.tabular import Bad
from loadgen.report.text import markdown_report, text_report
from loadgen.schema.engine import EngineLatencyMs, EngineStage, OthersTraffic, SpecDecode
from loadgen.schema.result import Concurrency, Requests, Result, StageResult, Target, Throughput, Tokens
from tests.report.conftest import EVIL
from tests.report.test_text import result, stage

ENGINE = EngineStage(
    requests=120,
    prompt_tokens=60_000,
    generation_tokens=15_000,
    between_s=(0.0, 60.0),
    latency_ms={
        "ttft": EngineLatencyMs(120, 93.0, {"p50": (80.0, 100.0), "p90": (100.0, 250.0), "p99": (640_000.0, None)}),
        "e2e": EngineLatencyMs(120, 2100.0, {"p50": (0.0, 2500.0)}),
    },
    finished={"stop": 100, "length": 20, EVIL: 1},
    errors={"4xx": 2, "503": 1},
    spec=SpecDecode(10, 40, 20, 0.5, 3.0, (0.9, 0.6)),
    prompt_tokens_by_source={"local_cache_hit": 10, "local_compute": 20},
    unavailable={"prefill": "SGLang has no such histogram"},
)


def watched(label: str = "no load", **changes: object) -> StageResult:
    none = Requests(0, 0, 0, 0, 0, 0, 0, {}, {}, scheduled=0, unsent=0, carried_over=0, carried_in=0)
    seen = msgspec.structs.replace(
        stage(0),
        label=label,
        target=Target(concurrency=0, rate=None, arrival=None),
        measured_s=60.0,
        requests=none,
        concurrency=Concurrency(0.0, 0),
        tokens=Tokens(0, 0, "usage"),
        throughput=Throughput(0.0, 0.0, 0.0, 0.0, None),
        latency_ms={},
        slo={},
        engine=ENGINE,
        others=OthersTraffic(3.5, 2.0, 1000.0, 250.0),
        truth=None,
    )
    return msgspec.structs.replace(seen, **changes)


def monitor(*stages: StageResult) -> Result:
    return msgspec.structs.replace(result(*stages), kind="monitor")


def test_the_report_of_a_monitor_has_the_engines_word_and_nothing_of_ours() -> None:
    text = text_report(monitor(watched("fan at full speed")))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for words in [
        "fan at full speed 60.00 3.5 2.00 1000 250 80-100 >640k - - <2.5 - 120 3",
        "TTFT (ms) 120 93.00 80-100 100-250 >640k",
        "E2E (s) 120 2.10 <2.5 - -",
        "Errors by status: 4xx 2, 503 1",
        "Speculative decoding: 50% of the drafted tokens accepted, 3.00 tokens a step; by position 90% 60%",
        "Not reported: prefill: SGLang has no such histogram",
    ]:
        assert any(words in line for line in lines), words
    assert "completed" not in text and "\x1b" not in text


def test_what_an_engine_does_not_report_is_reported_once_and_what_is_others_each_time() -> None:
    text = text_report(monitor(watched(), msgspec.structs.replace(watched("again"), index=1)))
    assert text.count("Not reported:") == 1
    assert text.count("Of others: 3.50 running, 2.00 req/s, 1.00k tok/s in") == 2


def test_a_monitor_is_healthy_although_nothing_was_measured_by_us() -> None:
    seen = monitor(watched())
    assert [(one.text, isinstance(one.text, Bad)) for one in assessment(seen)] == [
        ("As far as can be seen: nothing was sent, 120 requests of others ended, no GPU was measured.", False)
    ]
    assert shortcomings(seen) == []


@pytest.mark.parametrize("report", [markdown_report, html_report], ids=["markdown", "html"])
def test_pages_show_the_intervals_and_keep_texts_harmless(report: object) -> None:
    assert callable(report)
    text = report(monitor(watched(), watched("after the reset")))
    assert "80-100" in text and "after the reset" in text and "by position 90% 60%" in text
    assert "<script>alert" not in text.replace("\\<script", "") and "\x1b" not in text


def test_a_load_and_a_pause_of_it_stand_in_their_own_tables() -> None:
    pause = msgspec.structs.replace(watched(), index=1)
    text = text_report(result(stage(80), pause))
    load, _, rest = text.partition("Throughput ---")[2].partition("Without load ---")
    without = rest.partition("Fit to quote ---")[0]
    assert "conc 8 " in load and "no load " not in load
    assert "no load " in without and "conc 8 " not in without
    lines = markdown_report(result(stage(80), pause)).splitlines()
    assert [line.count("80-100") for line in lines if line.startswith("| no load ")] == [1]
    assert not any("80-100" in line for line in lines if line.startswith("| conc 8 "))


def test_what_the_engine_does_not_say_is_unknown() -> None:
    silent = watched(engine=None, others=None)
    assert {column.report(silent) for column in SERVED} == {"-"}
    assert latencies_of(None) == [] and list(served_notes(EngineStage())) == []
    cells = [column.report(latencies_of(ENGINE)[1]) for column in LATENCY]
    assert cells == [
        "E2E (s)",
        "120",
        "2.10",
        "<2.5",
        "-",
        "-",
    ]
    (row,) = (line for line in text_report(monitor(silent)).splitlines() if line.startswith("no load "))
    assert row.split() == ["no", "load", "60.00", *["-"] * 12]


def test_csv_has_a_row_for_what_was_watched_with_the_bounds_as_numbers() -> None:
    [row] = csv.DictReader(io.StringIO(csv_report([monitor(watched())])))
    reported = ("sent", "engine_requests", "engine_requests_per_s", "others_running", "others_generation_tokens_per_s")
    assert [row[name] for name in reported] == ["0", "120", "2.0", "3.5", "250.0"]
    ends = [row[f"engine_ttft_{name}_ms"] for name in ("p50_at_least", "p50_at_most", "p99_at_least", "p99_at_most")]
    assert ends == ["80.0", "100.0", "640000.0", ""]
