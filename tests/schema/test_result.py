"""The result's document: its schema is the shipped one, and a file is whole or not there."""

import json
from pathlib import Path

import msgspec
import pytest

from loadgen.errors import ResultError
from loadgen.record.record import Record
from loadgen.schema.journal import RunFinished, StageStarted
from loadgen.schema.result import SCHEMA_PATH, Result, json_schema
from loadgen.store.runs import read_result, write_result
from tests.journal import STARTED
from tests.result_schema import require_schema


def result() -> Result:
    """A run that ended before anything was measured: every number that can be unknown is."""
    record = Record()
    record.apply(msgspec.structs.replace(STARTED, profile={"slo": {"ttft_p99": 5.0}}))
    record.apply(
        StageStarted(
            t_s=1.0,
            index=0,
            label="conc 1",
            concurrency=1,
            rate=None,
            arrival="poisson",
            isl=1,
            osl=1,
            requests=None,
            duration_s=None,
            warmup_requests=0,
            warmup_s=0.0,
        )
    )
    record.apply(RunFinished(t_s=2.0, unix_s=1.7e9 + 2, state="failed", reason="nothing came"))
    return record.result()


def test_the_shipped_schema_is_that_of_the_code() -> None:
    assert SCHEMA_PATH.read_text() == json_schema(), "run `make schema`"


def test_unknown_is_null_and_the_schema_allows_it(tmp_path: Path) -> None:
    write_result(result(), tmp_path / "a" / "r.json")
    text = (tmp_path / "a" / "r.json").read_text()
    require_schema(text.encode())
    document = json.loads(text)
    assert "NaN" not in text
    assert "N/A" not in text
    stage = document["stages"][0]
    assert stage["latency_ms"]["ttft"]["p99"] is None
    check = stage["slo"]["ttft_p99"]
    assert (check["limit_ms"], check["measured_ms"], check["met"], check["population"]) == (5.0, None, False, 0)
    assert document["started_at"] == "2023-11-14T22:13:20.000Z"
    assert read_result(tmp_path / "a" / "r.json") == result()


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    write_result(result(), target)
    before = target.read_bytes()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResultError, match="the result cannot be written"):
        write_result(result(), tmp_path / "folder")
    with pytest.raises(ResultError, match="the result cannot be written"):
        write_result(result(), target / "below.json")
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "r.json"]


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"schema": 3}', '{"schema": "vramp.sweep/1"}', '{"schema": "vramp.result/1"}'):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(ResultError, match=r"r\.json: not a result of vramp"):
            read_result(tmp_path / "r.json")
    with pytest.raises(ResultError, match="cannot be read"):
        read_result(tmp_path / "nothing.json")


@pytest.mark.parametrize("moment", ["yesterday", "2026-11-21T10:00:00"])
def test_a_result_whose_times_are_none_is_refused(moment: str, tmp_path: Path) -> None:
    document = msgspec.to_builtins(result())
    document["stages"][0]["started_at"] = moment
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(document))
    with pytest.raises(ResultError, match=rf"r\.json: not a result of vramp: .*{moment}"):
        read_result(tmp_path / "r.json")


def test_a_newer_schema_is_reported(tmp_path: Path) -> None:
    document = msgspec.to_builtins(result()) | {"schema": "vramp.result/2", "stages": "of another kind"}
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(document))
    with pytest.raises(ResultError, match=r"r\.json: made by a newer vramp \(vramp\.result/2; this one reads "):
        read_result(tmp_path / "r.json")


def test_a_run_without_an_end_says_that_it_was_killed() -> None:
    record = Record()
    record.apply(STARTED)
    partial = record.result()
    assert (partial.state, partial.finished_at) == ("failed", None)
    assert "killed" in partial.reason
