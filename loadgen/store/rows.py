"""Reads the rows of streams that a run kept with `--records`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import UNDECODABLE, ResultError
from loadgen.places import open_file
from loadgen.store.files import require_format

_ROWS_AT_ONCE = 10_000


class KeptRow(msgspec.Struct, frozen=True):
    """What is read of a row; see `StreamRow`."""

    stage: int
    outcome: str
    warmup: bool
    sent_unix_s: float | None
    input_tokens: int | None
    output_tokens: int
    ttft_ms: float | None
    e2e_ms: float | None
    first_wave: bool = False


def read_rows(folder: Path) -> Iterator[KeptRow]:
    """The rows in a run's folder, in the order in which streams ended; raises `ResultError`."""
    if (folder / "records.parquet").is_file():
        yield from _of_parquet(folder / "records.parquet")
        return
    path = folder / "records.jsonl"
    try:
        with open_file(path) as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):  # the last line of a killed run may be torn
                    yield _row(msgspec.json.decode, line, path, number)
    except FileNotFoundError:
        raise ResultError(f"{folder}: no records of streams: a run keeps them with --records") from None
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from error


def _row(decode: Any, row: object, path: Path, number: int) -> KeptRow:  # noqa: ANN401 - of JSON or of a mapping
    try:
        return decode(row, type=KeptRow)  # type: ignore[no-any-return]
    except UNDECODABLE as error:
        raise ResultError(f"{path}: row {number}: {error}") from error


def _of_parquet(path: Path) -> Iterator[KeptRow]:
    require_format("parquet")
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                number += 1
                yield _row(msgspec.convert, row, path, number)
    except (OSError, pyarrow.ArrowException) as error:
        raise ResultError(f"{path}: cannot be read: {error}") from error
