"""Rows of streams: the same columns in both formats, on disk as they come, and clear words when the disk is full."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import msgspec
import pyarrow.parquet
import pytest

from loadgen.errors import ResultError
from loadgen.schema.deltas import StreamRow
from loadgen.store.files import JsonlRows, ParquetRows, RowsFormat, open_rows, require_format
from tests.store.full_disk import no_room

ROW = StreamRow(
    stage=2,
    request=7,
    turn=0,
    outcome="completed",
    warmup=False,
    intended_unix_s=1.7e9,
    sent_unix_s=1.7e9 + 1e-6,
    first_unix_s=1.7e9 + 0.5,
    last_unix_s=1.7e9 + 1,
    input_tokens=16,
    output_tokens=8,
    ttft_ms=500.0,
    tpot_ms=62.5,
    e2e_ms=1000.0,
)
FAILED = msgspec.structs.replace(
    ROW, outcome="failed:reset", sent_unix_s=None, first_unix_s=None, last_unix_s=None, ttft_ms=None, model="adapter"
)


def test_a_row_goes_through_the_pipe() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FAILED), type=StreamRow) == FAILED


def test_both_formats_hold_the_same(tmp_path: Path) -> None:
    for form in ("jsonl", "parquet"):
        rows = open_rows(tmp_path, form)
        rows.write(1, [ROW], "base")
        rows.write(0, [FAILED, ROW], None)
        rows.close()
        rows.close()
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert lines == pyarrow.parquet.read_table(tmp_path / "records.parquet").to_pylist()
    assert [(line["worker"], line["outcome"], line["model"]) for line in lines] == [
        (1, "completed", "base"),
        (0, "failed:reset", "adapter"),
        (0, "completed", None),
    ]
    assert list(lines[0]) == ["worker", *StreamRow.__struct_fields__]


def test_parquet_is_written_in_groups_as_the_run_goes(tmp_path: Path) -> None:
    rows = ParquetRows(tmp_path)
    for _ in range(11):
        rows.write(0, [ROW] * 1_000, None)
    assert len(rows._waiting) == 1_000
    rows.close()
    file = pyarrow.parquet.ParquetFile(tmp_path / "records.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(3)] == [5_000, 5_000, 1_000]


def test_a_run_without_a_stream_leaves_an_empty_table(tmp_path: Path) -> None:
    ParquetRows(tmp_path).close()
    assert pyarrow.parquet.read_table(tmp_path / "records.parquet").num_rows == 0


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_full_disk(tmp_path: Path, form: RowsFormat) -> None:
    with pytest.raises(ResultError, match=r"the rows of streams cannot be written: .*No such file"):
        open_rows(tmp_path / "nowhere", form)
    rows = open_rows(tmp_path, form)
    with (
        no_room(tmp_path / f"records.{form}"),
        pytest.raises(ResultError, match=r"the rows of streams cannot be written: .*(No space left|File too large)"),
    ):
        rows.write(0, [ROW] * 5_000, None)
        rows.close()
    rows.close()


def test_jsonl_leaves_no_half_of_a_row(tmp_path: Path) -> None:
    rows = JsonlRows(tmp_path)
    rows.write(0, [ROW], None)
    assert json.loads(rows.path.read_text())["request"] == 7
    rows.close()


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ResultError, match=r"pip install '\.\[parquet\]'"):
        require_format("parquet")
    require_format("jsonl")
    require_format(None)
