"""What the notes on a stage say: its requests add up, and no figure is shown as more than it is."""

import csv
import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.histogram import Histogram
from loadgen.report.bench_table import serve_tables
from loadgen.report.columns import outcome_columns
from loadgen.report.csv import csv_report
from loadgen.report.html.run_page import html_report
from loadgen.report.notes import account_words, has_numbers, published_nowhere, request_counts, stage_notes, took_part
from loadgen.report.text import markdown_report, text_report
from loadgen.report.vllm_json import vllm_documents
from loadgen.schema.comparison import ReferenceResult
from loadgen.schema.deltas import Summary
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import ComputeResult, EnergyResult
from loadgen.schema.result import FirstWave, StageResult, Target
from tests.report.test_text import result, stage, summary_of


def short_stage() -> StageResult:
    """Two seconds with streams that take eight: none is complete, three still wait for their first token."""
    whole = stage(0)
    waited = summary_of(1500, 2310, 900)
    ttft = summary_of(*range(100, 160)).summary_with(waited, with_hdr=True)
    latency = whole.latency_ms | {
        "ttft": ttft,
        "ttft_from_intended": msgspec.structs.replace(ttft, censored=12),
        "itl": summary_of(10, 11, 12).summary(with_hdr=True),
        "tpot": summary_of(11, 12).summary(with_hdr=True),
        "e2e": Summary(count=0),
    }
    requests = msgspec.structs.replace(
        whole.requests,
        sent=64,
        scheduled=73,
        unsent=9,
        unsent_longest_wait_s=1.234,
        failed=1,
        errors={"reset": 1},
        unfinished=3,
        lost=2,
        carried_over=60,
        carried_in=8,
        carried_failed=1,
    )
    return msgspec.structs.replace(
        whole,
        requests=requests,
        latency_ms=latency,
        tpot_parts=2,
        carried_share=0.94,
        e2e_inconclusive="E2E: inconclusive: 94% of its streams outlived the stage; it takes 24.0 s",
        first_wave=FirstWave(streams=64, counted=False, ttft_ms=summary_of(500, 510).summary()),
        tail_share=0.12,
    )


def test_a_stage_without_a_complete_stream_shows_what_it_knows() -> None:
    lines = [" ".join(line.split()) for line in text_report(result(short_stage())).splitlines()]
    for words in [
        "0 1",  # completed, failed
        "73 64 3 (2 lost with their worker) 60 (open at the end, 94% of the sent) "
        "8 (open at the beginning, 1 of them failed) 9 (longest wait 1.2 s)",
        "479.07",
        "ITL conc 8 3 11.00 11.01 12.00 12.00 12.00",
        "E2E: inconclusive: 94% of its streams outlived the stage; it takes 24.0 s",
        "TTFT: 3 streams still waited for the first token when they or the stage ended; >= is a lower bound",
        "TTFT from intended: unknown for 12 arrivals, without a first token when they or the stage ended",
        "TPOT: 2 of 2 values cover part of a stream",
        "First wave: 64 streams that began at once, in no other figure: TTFT p50 500, p99 510 ms",
        "Tail: for 12% of the time fewer streams than asked for, as the requests ran out",
    ]:
        assert any(words in line for line in lines), words
    (ttft,) = (line for line in lines if line.startswith("TTFT conc 8"))
    assert ttft.endswith(">= 2,310")
    assert not any(line.startswith("E2E conc") for line in lines)


def test_every_format_marks_a_lower_bound() -> None:
    known = result(short_stage())
    assert r"\>= 2,310" in markdown_report(known)
    assert "&gt;= 2,310" in html_report(known)
    assert "P99 TTFT (ms):                           >= 2,310" in serve_tables(
        known, metrics=["ttft"], percents=[10, 99]
    )
    (row,) = csv.DictReader(io.StringIO(csv_report([known])))
    assert (row["ttft_censored"], "p99" in row["ttft_lower_bounds"].split()) == ("3", True)
    (document,) = vllm_documents(known)
    assert "p99_ttft_ms" in document["vramp"]["lower_bounds"]
    assert "mean_e2el_ms" not in document


def test_numbers_that_scripts_read_have_no_thousands() -> None:
    slow = stage(80)
    slow = msgspec.structs.replace(slow, latency_ms=slow.latency_ms | {"ttft": summary_of(12_345.0).summary()})
    assert "12345.00" in text_report(result(slow))
    assert "Mean TTFT (ms):                          12345.00" in serve_tables(
        result(slow), metrics=["ttft"], percents=[99]
    )


def test_percentiles_above_a_lower_bound_are_some_too() -> None:
    table = serve_tables(result(short_stage()), metrics=["ttft"], percents=[10, 97, 99.99])
    lines = [line for line in table.splitlines() if line.startswith("P") and "TTFT" in line]
    below, between, above = lines
    assert ">=" not in below and ">=" in between and ">=" in above


@pytest.mark.parametrize(
    ("wave", "words"),
    [
        (FirstWave(8, counted=True, ttft_ms=None), "counted, as in `vllm bench` and what is published with it"),
        (FirstWave(8, counted=False, ttft_ms=None), "8 streams that began at once, in no other figure"),
    ],
)
def test_the_first_wave(wave: FirstWave, words: str) -> None:
    (note,) = stage_notes(msgspec.structs.replace(stage(8), first_wave=wave))
    assert str(note) == f"First wave: {words}"


def test_a_large_tail_has_its_verdict() -> None:
    large = msgspec.structs.replace(stage(8), tail_share=0.4, verdicts=[Verdict("tail", "stage 1", "for 40 %")])
    assert stage_notes(large) == []


def test_nothing_is_said_of_a_stage_in_which_all_went_well() -> None:
    plain = stage(80)
    assert list(request_counts(plain.requests).values()) == ["80"]
    assert stage_notes(plain) == []
    assert has_numbers(plain) and took_part(plain)


def test_a_stage_that_only_inherited_streams_took_part() -> None:
    empty = stage(0)
    assert not took_part(empty) and not has_numbers(empty)
    assert took_part(msgspec.structs.replace(empty, latency_ms={"itl": summary_of(9).summary()}))
    waited = Histogram().summary_with(summary_of(9))
    assert has_numbers(msgspec.structs.replace(empty, latency_ms={"ttft": waited}))


def test_open_loop_says_how_long_an_arrival_waited() -> None:
    open_loop = msgspec.structs.replace(stage(8), target=Target(None, 2.0, "poisson"))
    for text in (text_report(result(open_loop)), markdown_report(result(open_loop)), html_report(result(open_loop))):
        assert "TTFT from due" in text
    assert "from due" not in text_report(result(stage(8))) + markdown_report(result(stage(8))) + html_report(
        result(stage(8))
    )


@given(st.lists(st.integers(0, 10_000), min_size=7, max_size=7))
def test_the_account_adds_up(counts: list[int]) -> None:
    completed, failed, cancelled, unfinished, over, still_open, unsent = counts
    sent = completed + failed + cancelled + unfinished + over + still_open
    requests = msgspec.structs.replace(
        stage(0).requests,
        sent=sent,
        completed=completed,
        failed=failed,
        unfinished=unfinished,
        cancelled=cancelled,
        carried_over=over,
        unsent=unsent,
        scheduled=sent + unsent,
        open=still_open,
    )
    *before, of_sent = account_words(requests).split(";")
    reported, _, parts = of_sent.partition("=")
    assert int(reported.split()[0].replace(",", "")) == sent
    assert sum(int(part.split()[0].replace(",", "")) for part in parts.split("+") if part) == sent
    assert bool(before) == bool(unsent)


def test_share_of_the_peak_from_engine_operations() -> None:
    silent, known = stage(80), ComputeResult(52.3, "bf16", 1307.4, 4.0)
    unknown = ComputeResult(52.3, why="no peak is known of NVIDIA H20")
    reported, unreported = (msgspec.structs.replace(silent, compute=compute) for compute in (known, unknown))
    words = "MFU: 4.00 %: 52.3 TFLOP/s a GPU by the engine's own estimate, of 1,307 in bf16, dense"
    assert words in map(str, stage_notes(reported)) and not any("MFU" in str(note) for note in stage_notes(silent))
    assert "MFU: unknown: no peak is known of NVIDIA H20" in text_report(result(unreported))
    assert "<th>MFU %</th>" in html_report(result(reported)) and "MFU" not in html_report(result(silent))
    assert "| MFU % |" in markdown_report(result(reported, silent)) and "MFU" not in markdown_report(result(silent))


def test_published_figures_without_a_stage_of_their_load() -> None:
    matching = ReferenceResult("a publication", ["about 1.0x of the other"], [])
    points = [{"concurrency": 512, "figures": {"mfu_percent": 85.0}}]
    for published, words in ({"points": points}, "no stage of this run"), ({"notes": []}, ""), ([], ""):
        run = msgspec.structs.replace(result(stage(80)), reference=matching, profile={"reference": published})
        assert published_nowhere(run).startswith(words) and bool(published_nowhere(run)) is bool(words)
        assert words in markdown_report(run) and "about 1.0x" in markdown_report(run)


def test_energy_that_may_be_others_is_said() -> None:
    energy = EnergyResult(100.0, "counter", False, 10.0, 0.1, 10.0, ())
    whose = {"given": None, "hbm": "the GPUs whose memory is in use", "all": "all GPUs of the box"}
    for by, words in whose.items():
        reported = stage_notes(msgspec.structs.replace(stage(0), energy=msgspec.structs.replace(energy, devices_by=by)))
        assert [note.text for note in reported if note.subject == "Energy"] == (
            [f"of {words}: the server's own GPUs are unknown"] if words else []
        )


def test_a_column_of_outcomes_has_every_stages_own_count() -> None:
    quiet = stage(39)
    busy = msgspec.structs.replace(
        stage(80), index=1, requests=msgspec.structs.replace(quiet.requests, sent=241, completed=240, carried_over=1)
    )
    cells = {column.label: [column.value(one) for one in (quiet, busy)] for column in outcome_columns([quiet, busy])}
    assert cells["Sent requests"] == ["39", "241"]
    assert cells["Carried over"] == ["0", "1 (open at the end, 0.4% of the sent)"]


def test_retried_requests_are_reported() -> None:
    retried = msgspec.structs.replace(stage(80).requests, retried=3)
    assert request_counts(retried)["Retried requests"] == "3 (sent again on a new connection)"
