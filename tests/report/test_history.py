"""What is kept of a run, and trends over runs and versions."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.metrics.difference import Estimate
from loadgen.report.history import ListedRun, StageFigures, Trend, read_run, summary_of, trends
from loadgen.report.history_document import trend_text
from loadgen.schema.certificate import BoxIdentity, Certificate, GpuIdentity
from loadgen.store.index import CERTIFICATE, IndexEntry
from loadgen.store.runs import write_result
from tests.metrics.served import run_of, served

Run = tuple[str, ListedRun, IndexEntry]


def run(number: int, version: str, *values: float, doubt: str | None = None, **changes: Any) -> Run:
    """A run with one stage, or several loads, that measured these TTFTs."""
    fields: dict[str, Any] = {
        "profile": "mine",
        "model": "m",
        "box": "8 x MI300X",
        "version": version,
        "state": "complete",
    }
    fields["started_at"] = f"2026-01-{number:02}T00:00:00Z"
    summary = ListedRun(kind="load", reason="", **fields | changes)
    stages = [
        StageFigures(f"conc {2**place}, ISL 512, OSL 128", doubt, {"ttft_p99": Estimate(value, value - 1, value + 1)})
        for place, value in enumerate(values)
    ]
    return f"run{number}", summary, IndexEntry(b"", msgspec.msgpack.encode(stages))


def runs_of(*versions: tuple[str, float], each: int = 5) -> Iterator[Run]:
    """So many runs of each version, whose TTFT varies by 1 % around this one."""
    draw = random.Random(5)
    for place, (version, ttft_ms) in enumerate(versions):
        for number in range(each):
            yield run(1 + place * each + number, version, ttft_ms * draw.gauss(1, 0.01))


def words(trend: Trend) -> dict[str, str]:
    """What is said of each version."""
    return {one.version: one.difference.word if one.difference and not one.note else "" for one in trend.versions}


def test_a_version_that_is_slower_is_worse_and_an_equal_one_is_not() -> None:
    (trend,) = trends(list(runs_of(("0.31.0", 100.0), ("0.32.0", 112.0), ("0.33.0", 112.0))), "ttft_p99")
    assert words(trend) == {"0.31.0": "", "0.32.0": "worse", "0.33.0": "no evidence"}
    assert [point.run for point in trend.points] == [f"run{number}" for number in range(1, 16)]
    assert trend.points[0].low == pytest.approx(trend.points[0].value - 1)
    assert "TTFT p99, ms at conc 1, ISL 512, OSL 128" in trend_text([trend])


def test_since_a_version_all_runs_are_compared_with_all_before() -> None:
    found = list(runs_of(("0.30.1", 100.0), ("0.31.0rc1", 100.0), ("0.31.0", 90.0), ("0.32.1+cpu", 90.0), ("", 5.0)))
    (trend,) = trends(found, "ttft_p99", "0.31")
    assert words(trend) == {"unknown": "", "before 0.31": "", "since 0.31": "better"}
    assert [one.runs for one in trend.versions] == [5, 10, 10]


def test_one_run_of_a_version_is_not_judged() -> None:
    found = [*runs_of(("0.31.0", 100.0)), run(20, "0.32.0", 200.0)]
    (trend,) = trends(found, "ttft_p99")
    later = trend.versions[1]
    assert later.difference is not None and later.difference.percent == pytest.approx(100, abs=3)
    assert words(trend)["0.32.0"] == "" and "two of each version" in later.note
    assert later.low is later.high is None


def test_runs_in_doubt_are_shown_and_not_counted() -> None:
    found = [*runs_of(("0.31.0", 100.0)), run(8, "0.31.0", 900.0, doubt="client-limited: slow")]
    found += [run(9, "0.31.0", 900.0, state="stopped"), run(10, "0.32.0", 900.0, state="server_died")]
    (trend,) = trends(found, "ttft_p99")
    assert len(trend.points) == 8 and trend.versions[0].runs == 5
    assert trend.versions[0].value == pytest.approx(100, abs=2)
    assert trend.versions[1].note == "no run of it counts"
    text = trend_text([trend])
    assert "(900.00)" in text and "3 runs in brackets not counted: client-limited: slow; the run: stopped" in text


def test_a_copy_of_a_run_is_not_counted() -> None:
    (trend,) = trends([run(1, "0.31.0", 100.0), run(1, "0.31.0", 100.0), run(2, "0.32.0", 120.0)], "ttft_p99")
    assert [version.runs for version in trend.versions] == [1, 1]
    assert trend.why_not_counted == "a copy of another run"
    undated = [run(n, "0.31.0", 100.0, started_at="") for n in (1, 2)]
    (trend,) = trends(undated, "ttft_p99")
    assert trend.versions[0].runs == 2


def test_other_settings_are_named_in_place_of_a_judgement() -> None:
    found = [run(n, "0.31.0", 100.0 + n / 10, settings="a") for n in (1, 2, 3)]
    found += [run(n, "0.32.0", 120.0 + n / 10, settings="b") for n in (4, 5, 6)]
    (trend,) = trends(found, "ttft_p99")
    assert words(trend)["0.32.0"] == "" and "settings" in trend.versions[1].note


def test_each_profile_model_box_and_load_is_a_trend_of_its_own() -> None:
    found = [run(1, "", 1.0, 2.0), run(2, "", 1.0, 2.0), run(3, "", 1.0, box="other"), run(4, "", 1.0, box="other")]
    found += [run(5, "", 1.0, profile="alone")]
    assert [(trend.box, trend.load[:6]) for trend in trends(found, "ttft_p99")] == [
        ("8 x MI300X", "conc 1"),
        ("8 x MI300X", "conc 2"),
        ("other", "conc 1"),
    ]
    assert [trend.load[:6] for trend in trends(found, "ttft_p99", load="2")] == ["conc 2"]
    assert trends(found, "goodput") == []


def test_a_run_is_kept_with_its_figures_and_their_intervals(tmp_path: Path) -> None:
    folder = tmp_path / "20260101T000000Z-x"
    folder.mkdir()
    stage = served(1)
    result = msgspec.structs.replace(run_of(stage), profile={"name": "mine"}, finished_at="2026-01-01T00:01:00Z")
    write_result(result, folder / "result.json")
    entry = read_run(folder)
    assert entry is not None and entry.ended
    summary = summary_of(entry)
    assert (summary.profile, summary.model, summary.version) == ("mine", "some/model", "0.32.0")
    assert summary.load == "conc 16" and summary.output_tokens_per_s is not None
    (found,) = msgspec.msgpack.decode(entry.details, type=list[StageFigures])
    assert found.load == "conc 16, ISL 512, OSL 128" and found.figures["ttft_p99"].low > 0


def test_secrets_do_not_reach_the_index(tmp_path: Path) -> None:
    reason = "exited: --api-key sk-abcdefghijklmnop123456"
    result = msgspec.structs.replace(run_of(served(1)), reason=reason, finished_at="2026-01-01T00:01:00Z")
    write_result(result, tmp_path / "result.json")
    entry = read_run(tmp_path)
    assert entry is not None and b"sk-abc" not in entry.summary + entry.details


def test_an_acceptance_is_listed_by_its_verdict(tmp_path: Path) -> None:
    certificate = Certificate(
        vramp_version="1",
        verdict="fail",
        reasons=("TTFT p99 is beyond its limit",),
        by=None,
        box=BoxIdentity("host", gpus=(GpuIdentity(0, "MI300X"), GpuIdentity(1, "MI300X"))),
        profile="mine",
        model="m",
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T01:00:00Z",
        pass_confidence=0.95,
        false_fail=0.01,
        phases=(),
        criteria=(),
        not_tested=(),
    )
    (tmp_path / CERTIFICATE).write_bytes(msgspec.json.encode(certificate))
    entry = read_run(tmp_path)
    assert entry is not None
    summary = summary_of(entry)
    assert (summary.kind, summary.state, summary.box) == ("acceptance", "fail", "2 \N{MULTIPLICATION SIGN} MI300X")
    assert summary.reason == "TTFT p99 is beyond its limit"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": "vramp.result/9"}', b"\xff\xfe"])
def test_a_damaged_result_is_unreadable_with_its_reason(tmp_path: Path, content: bytes) -> None:
    for name in ("result.json", CERTIFICATE):
        folder = tmp_path / f"20260102T030405Z-{name}"
        folder.mkdir()
        (folder / name).write_bytes(content)
        entry = read_run(folder)
        assert entry is not None
        summary = summary_of(entry)
        assert summary.state == "unreadable" and summary.reason
        assert summary.started_at == "2026-01-02T03:04:05+00:00" and summary.profile == name


def test_a_folder_that_is_gone_is_no_run(tmp_path: Path) -> None:
    assert read_run(tmp_path / "gone") is None
