"""Every stream of a run as a row, for those who want to look behind the percentiles: JSON lines or Parquet.

Only written when asked for, and nothing reads it back: a result does not depend on it. JSON lines survive a run that is
killed; a Parquet file is readable once it has its end.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from loadgen.errors import ResultError
from loadgen.metrics.journal import append_whole

RowsFormat = Literal["jsonl", "parquet"]
_ROWS_A_GROUP = 5_000


class StreamRow(msgspec.Struct, frozen=True, array_like=True):
    """One stream; None is not known. Times are CLOCK_REALTIME, seconds since 1970, to the microsecond."""

    stage: int  # `index` of the stage in the result: the one in which the stream was sent
    request: int  # number in the stage, over all workers; of the conversation, where requests are its turns
    turn: int
    outcome: str  # `completed`, `failed:` and the kind of failure, `cancelled`, `unfinished`
    warmup: bool  # sent before the measurement began: in no latency of the result
    intended_unix_s: float  # when the schedule wanted it; in closed loop when its place became free
    sent_unix_s: float | None
    first_unix_s: float | None  # when the first output arrived
    last_unix_s: float | None  # when the last output arrived
    input_tokens: int | None
    output_tokens: int  # those that arrived, if it did not complete
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None
    model: str | None = None
    first_wave: bool = False  # one of those that began all at once: its times are told apart from those of its stage


class JsonlRows:
    """Appends rows to `records.jsonl`, an object a line."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records.jsonl"
        try:
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise _problem(self.path, error) from error

    def write(self, worker: int, rows: Iterable[StreamRow], model: str | None) -> None:
        """Append what a worker brought, `model` where a row names none; raises `ResultError`."""
        try:
            append_whole(self._file, b"".join(_encode(_named(worker, row, model)) + b"\n" for row in rows))
        except OSError as error:
            raise _problem(self.path, error) from error

    def close(self) -> None:
        self._file.close()


class ParquetRows:
    """Collects rows into `records.parquet`, some thousand at a time."""

    def __init__(self, folder: Path) -> None:
        """Begin the file; raises `ResultError`, also without the extra `parquet`."""
        require_format("parquet")
        import pyarrow
        import pyarrow.parquet

        self.path = folder / "records.parquet"
        self._waiting: list[dict[str, Any]] = []
        self._pyarrow = pyarrow
        try:
            self._writer = pyarrow.parquet.ParquetWriter(self.path, _arrow_schema(pyarrow), compression="zstd")
        except OSError as error:
            raise _problem(self.path, error) from error

    def write(self, worker: int, rows: Iterable[StreamRow], model: str | None) -> None:
        """Take what a worker brought, `model` where a row names none; raises `ResultError`."""
        self._waiting += [_named(worker, row, model) for row in rows]
        if len(self._waiting) >= _ROWS_A_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        rows, self._waiting = self._waiting, []
        try:
            self._writer.write_table(self._pyarrow.Table.from_pylist(rows, schema=self._writer.schema))
        except OSError as error:
            # Its destructor would try again.
            self._writer.is_open = False
            raise _problem(self.path, error) from error

    def close(self) -> None:
        """Write what is left and the end of the file; raises `ResultError`."""
        if self._waiting:
            self._write_group()
        if not self._writer.is_open:
            return
        try:
            self._writer.close()
        except OSError as error:
            self._writer.is_open = False
            raise _problem(self.path, error) from error


StreamRows = JsonlRows | ParquetRows


def open_rows(folder: Path, form: RowsFormat) -> StreamRows:
    """Begin the file of a run's rows; raises `ResultError`."""
    return ParquetRows(folder) if form == "parquet" else JsonlRows(folder)


def require_format(form: RowsFormat | None) -> None:
    """Raises `ResultError` for a format that needs what is not installed."""
    if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ResultError(
            "--records parquet: needs pyarrow, which the extra `parquet` brings: pip install 'vramp[parquet]'; "
            "--records jsonl needs nothing"
        )


_encode = msgspec.json.Encoder().encode


def _named(worker: int, row: StreamRow, model: str | None) -> dict[str, Any]:
    named = {"worker": worker, **msgspec.structs.asdict(row)}
    named["model"] = row.model or model
    return named


def _arrow_schema(pyarrow: Any) -> Any:  # noqa: ANN401 - a module without types
    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
    hints = {"worker": int, **get_type_hints(StreamRow)}
    return pyarrow.schema([(name, kinds[(get_args(hint) or (hint,))[0]]) for name, hint in hints.items()])


def _problem(path: Path, error: OSError) -> ResultError:
    return ResultError(f"{path}: the rows of streams cannot be written: {error.strerror or error}")
