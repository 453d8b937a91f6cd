"""What a run leaves on disk: every stream's row, every histogram; and a disk that does not take them costs a word."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hdrh.histogram import HdrHistogram

from loadgen.errors import ResultError
from loadgen.metrics.histogram import HIGHEST_US
from loadgen.run.operations import Abort, NextStage, SetConcurrency, Stop
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings
from loadgen.run.writer import RunWriter
from loadgen.schema.journal import Happened, RunFinished
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from loadgen.store.files import SafeFiles
from loadgen.store.journal import journal_is_held, read_journal
from loadgen.store.recover import recover
from loadgen.store.runs import read_result
from tests.engines import Simulator, attach, profile
from tests.journal import STARTED
from tests.run.driving import finish, flowing, in_turn, once, run_of
from tests.store.full_disk import no_room
from tests.store.test_histogram_log import read as read_histograms
from tests.store.test_histogram_log import read_stages
from tests.store.test_stream_rows import ROW


def at_stage(number: int) -> Callable[[Snapshot], bool]:
    return lambda snapshot: len(snapshot.stages) == number and flowing(snapshot)


def rows_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "records.jsonl").read_text().splitlines()]


def require_same(rows: list[dict[str, Any]], result: Result) -> None:
    """The rows say of every stage what its result says."""
    for stage in result.stages:
        mine = [row for row in rows if row["stage"] == stage.index and not row["warmup"]]
        outcomes = Counter(row["outcome"].partition(":")[0] for row in mine)
        requests = stage.requests
        assert outcomes["completed"] == requests.completed
        assert outcomes["failed"] == requests.failed == sum(requests.errors.values())
        assert len(mine) == requests.sent
        completed = [row for row in mine if row["outcome"] == "completed"]
        assert sum(row["output_tokens"] for row in completed) == stage.tokens.output
        assert sum(row["input_tokens"] for row in completed) == stage.tokens.input
        for name in ("ttft", "tpot", "e2e"):
            values = [row[f"{name}_ms"] for row in mine if row[f"{name}_ms"] is not None and not row["first_wave"]]
            summary = stage.latency_ms[name]
            assert len(values) == summary.count
            if values:
                assert max(values) == pytest.approx(summary.max, abs=0.002)
                assert sum(values) / len(values) == pytest.approx(summary.mean, abs=0.002)


async def test_every_stream_has_a_row_and_they_add_up_to_the_result(engine: Simulator) -> None:
    engine.faults("reset:after=3,every=4", "http_500:every=7")
    load = {"concurrency": [2, 6], "requests": 20, "warmup": 3, "workers": 2}
    run = run_of(attach(engine, load=load), records="jsonl")
    result = await finish(run)
    rows = rows_of(run)
    require_same(rows, result)
    assert sum(row["warmup"] for row in rows) == sum(stage.requests.warmup for stage in result.stages)
    assert {row["worker"] for row in rows} == {0, 1}
    assert {row["model"] for row in rows} == {"simulator"}
    assert sorted(row["request"] for row in rows if row["stage"] == 1) == list(range(23))
    for row in rows:
        if row["outcome"] == "completed":
            assert row["intended_unix_s"] <= row["sent_unix_s"] < row["first_unix_s"] <= row["last_unix_s"]
            assert row["ttft_ms"] == pytest.approx(1000 * (row["first_unix_s"] - row["sent_unix_s"]), abs=0.01)
    assert journal_is_held(run.folder / "journal.jsonl") is False


async def test_streams_that_were_cut_off_are_in_the_table_too(engine: Simulator) -> None:
    load = {"concurrency": 4, "osl": 2000, "requests": 100}
    run = run_of(attach(engine, load=load), records="parquet")
    result = await finish(run, once(lambda snapshot: snapshot.point.held == 4, Abort()))
    rows = pyarrow.parquet.read_table(run.folder / "records.parquet").to_pylist()
    assert [row["outcome"] for row in rows] == ["unfinished"] * 4
    assert result.stages[0].requests.unfinished == 4
    assert {row["e2e_ms"] for row in rows} == {None}


def values_of(histogram: HdrHistogram) -> list[tuple[int, int]]:
    """Each counter in use with its count, so that equal ones have every percentile in common."""
    return [(index, count) for index, count in enumerate(histogram.counts) if count]


def require_same_histograms(folder: Path, result: Result) -> None:
    """The log has the counts and percentiles of the result, stage by stage; those still awaited are kept apart."""
    logged = read_stages(folder / "histograms.hlog")
    assert logged.keys() <= {stage.index for stage in result.stages}
    for stage in result.stages:
        found = logged.get(stage.index, {})
        for name, summary in stage.latency_ms.items():
            total = found.get(name, HdrHistogram(1, HIGHEST_US, 3))
            assert total.get_total_count() == summary.count, (stage.label, name)
            if f"{name}_censored" in found and summary.hdr is not None:
                total.add(found[f"{name}_censored"])
                assert total.get_total_count() == summary.count + summary.censored
            if summary.hdr is None:
                continue  # E2E of streams that outlive a stage has a count only
            assert values_of(total) == values_of(HdrHistogram.decode(summary.hdr)), (stage.label, name)


async def test_histogram_log_equals_result_in_every_stage(engine: Simulator) -> None:
    stages = [
        {"concurrency": 3, "duration": "20s"},  # ended by hand: the load changes twice
        {"rate": 40.0, "duration": "1s"},
        {"concurrency": 4, "requests": 30, "warmup": 2},
        {"concurrency": 1, "duration": "600ms"},
    ]
    run = run_of(attach(engine, load={"osl": 40, "requests": None, "workers": 2}, stages=stages))
    by_hand = in_turn((at_stage(1), SetConcurrency(6)), (at_stage(2), SetConcurrency(2)), (at_stage(3), NextStage()))
    result = await finish(run, by_hand)
    assert [stage.target.concurrency for stage in result.stages] == [3, 6, 2, None, 4, 1]
    require_same_histograms(run.folder, result)
    assert not (run.folder / "records.jsonl").exists()
    (run.folder / "histograms.hlog").unlink()
    recover(run.folder, force=True)
    require_same_histograms(run.folder, read_result(run.folder / "result.json"))


async def test_log_is_complete_when_the_plan_is_done(engine: Simulator) -> None:
    run = run_of(attach(engine, load={"concurrency": 2, "requests": 10}), hold_open=True)
    counts: list[int] = []

    def look(run: Run) -> None:
        intervals = read_histograms(run.folder / "histograms.hlog")
        counts.append(sum(each.get_total_count() for each in intervals if each.get_tag() == "e2e"))
        run.apply(Stop())

    await finish(run, once(lambda snapshot: snapshot.result_path is not None, look))
    # Two of the ten are the first wave.
    assert counts == [8]


def test_files_that_the_disk_does_not_take_are_reported_once_each(tmp_path: Path) -> None:
    files = SafeFiles(tmp_path, "jsonl")
    with no_room(tmp_path / "records.jsonl", left=0):
        problems = files.write(STARTED)
        for _ in range(3):
            problems += files.write(Happened(1.0, "note", ""))
            problems += files.write_rows({0: [ROW], 1: [ROW]}, None)
        problems += files.write(RunFinished(2.0, 1.7e9, "complete", ""))
    files.close()
    assert [kind for kind, _ in problems] == ["error"] * 3
    for words in (
        "its lines wait in memory, where they would not survive a crash",
        "the log of histograms cannot be written",
        "the rows of streams cannot be written",
    ):
        assert sum(words in problem for _, problem in problems) == 1
    assert all("File too large; the run goes on" in problem for _, problem in problems)


def test_the_journal_goes_on_without_a_gap_once_the_disk_has_room_again(tmp_path: Path) -> None:
    files = SafeFiles(tmp_path)
    events = files.write(STARTED)
    lines = [Happened(float(n), "note", "a line of some length") for n in range(5)]
    with no_room(tmp_path / "journal.jsonl"):
        for line in lines[:3]:
            events += files.write(line)
    for line in lines[3:]:
        events += files.write(line)
    files.close()
    assert [kind for kind, _ in events] == ["error", "note"]
    assert "written again, and nothing of it is lost" in events[1][1]
    assert list(read_journal(tmp_path / "journal.jsonl"))[1:] == lines


def test_a_journal_that_would_fill_the_memory_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.store.journal._MAX_WAITING", 1000)  # it is 64 MiB
    files = SafeFiles(tmp_path)
    events = files.write(STARTED)
    with no_room(tmp_path / "journal.jsonl"):
        for _ in range(30):
            events += files.write(Happened(1.0, "note", "a line of some length"))
    events += files.write(Happened(2.0, "note", "there is room again"))
    files.close()
    assert [kind for kind, _ in events] == ["error", "error"]
    assert "it is given up" in events[1][1]
    assert len(list(read_journal(tmp_path / "journal.jsonl"))) == 1


def test_what_comes_after_the_end_is_not_kept(tmp_path: Path) -> None:
    files = SafeFiles(tmp_path)
    files.close()
    assert files.write(Happened(1.0, "note", "late")) == files.flush() == []
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


async def test_the_result_is_where_it_could_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = RunWriter(
        RunSettings(
            profile({"engine": "none"}, load={"concurrency": [0]}), where="test", json_path=tmp_path / "mine.json"
        )
    )
    ledger.log(STARTED)
    (tmp_path / "mine.json").mkdir()
    await ledger.finish("complete", "")
    assert ledger.written == ledger.folder / "result.json"
    assert isinstance(ledger.error, ResultError)


def test_a_folder_that_cannot_be_written_begins_nothing(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="the journal cannot be written"):
        SafeFiles(tmp_path / "nowhere")
