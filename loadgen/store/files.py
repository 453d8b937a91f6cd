"""The files that grow during a run: its journal, its histograms over time and, if wanted, a row per stream.

Each line reaches the kernel whole, so that only a crash of the machine can lose one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from loadgen.errors import ResultError
from loadgen.format import harmless
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import StageMetrics
from loadgen.places import open_private
from loadgen.schema.deltas import LATENCIES, StreamRow
from loadgen.schema.journal import Line, RunFinished, RunStarted, StageStarted, Ticked
from loadgen.store.growing import GrowingFile, writing
from loadgen.store.journal import JOURNAL, Journal, OldParts

HISTOGRAMS = "histograms.hlog"
_MIN_S = 1.0
_SHARE_OF_RUN = 0.01
_LOGGED = (*LATENCIES, "ttft_censored", "ttft_from_intended_censored")
_HEAD = """\
#[Latencies of vramp run {run_id}: one tag each; values and Interval_Max are in microseconds]
#[Histogram log format version 1.3]
#[StartTime: {unix_s:.3f} (seconds since epoch), {iso}]
#[BaseTime: {unix_s:.3f} (seconds since epoch)]
"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
"""
_ROWS_A_GROUP = 5_000
RowsFormat = Literal["jsonl", "parquet"]


@dataclass
class _Interval:
    """The latencies of one stage since the last flush."""

    start_s: float
    end_s: float
    latency: dict[str, Histogram]


class HistogramLog(GrowingFile):
    """The latencies of a run over time, in HdrHistogram's log format, which its tools in any language can read.

    Each interval has a histogram per latency, named by its tag, and belongs to the stage in the comment above it. Their
    sum over a stage is the stage's latency in the result, whose percentiles also include `*_censored`. They are folded
    from the journal's lines during the run, so no second pass is needed. An interval lasts at least a second and a
    hundredth of the run so far, so a day has some 800 of them; a new stage begins a new one. The last values of a stage
    arrive after the next one has begun.

    Format: HdrHistogram's HistogramLogWriter, version 1.3 (with tags).
    """

    def __init__(self, path: Path) -> None:
        """Create the file; raises `ResultError`."""
        super().__init__(path, "the log of histograms", "wb")
        self._started_s: dict[int, float] = {}
        self._intervals: dict[int, _Interval] = {}
        self._until_s = 0.0
        self._heading: int | None = None
        self._uneven: set[int] = set()  # stages whose ITL is unknown: no more of it is written

    def apply(self, line: Line) -> None:
        """Apply the next line; raises `ResultError` when the disk fails."""
        match line:
            case Ticked():
                self._tick(line)
            case StageStarted():
                self.flush()
                self._started_s[line.index] = line.t_s
            case RunFinished():
                self.flush()
            case RunStarted():
                iso = datetime.fromtimestamp(line.unix_s, UTC).isoformat(timespec="milliseconds")
                run_id = " ".join(harmless(line.run_id).split())
                self.append(_HEAD.format(run_id=run_id, unix_s=line.unix_s, iso=iso).encode("ascii", "replace"))

    def flush(self) -> None:
        """End the intervals here, so that the file holds everything so far."""
        lines: list[str] = []
        for index, interval in sorted(self._intervals.items()):
            if index != self._heading:
                lines.append(f"#[Stage {index + 1} from {self._started_s[index]:.3f}]\n")
                self._heading = index
            times = f"{interval.start_s:.3f},{interval.end_s - interval.start_s:.3f}"
            for name, latency in interval.latency.items():
                lines.append(f"Tag={name},{times},{latency.max_us}.000,{latency.hdr()}\n")
        self._intervals = {}
        if lines:
            self.append("".join(lines).encode())

    def _tick(self, line: Ticked) -> None:
        start_s = max(0.0, self._until_s, line.t_s - line.span_s)
        self._until_s = line.t_s
        for index in line.stages.keys() & self._started_s.keys():
            metrics = StageMetrics.of(line.stages[index])
            if metrics.counters["uneven_streams"]:
                self._uneven.add(index)
            seen = metrics.latency
            if index in self._uneven:
                seen.pop("itl", None)
            for name in (name for name in _LOGGED if name in seen):
                new = _Interval(max(start_s, self._started_s[index]), line.t_s, {})
                interval = self._intervals.setdefault(index, new)
                interval.end_s = line.t_s
                interval.latency.setdefault(name, Histogram()).add(seen[name])
        oldest_s = min((interval.start_s for interval in self._intervals.values()), default=line.t_s)
        if line.t_s - oldest_s >= max(_MIN_S, _SHARE_OF_RUN * line.t_s):
            self.flush()


class JsonlRows(GrowingFile):
    """One row per stream of a run in `records.jsonl`, an object per line; survives a killed run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "records.jsonl", "the rows of streams", "wb")

    def write(self, worker: int, rows: Iterable[StreamRow], model: str | None) -> None:
        """Append a worker's rows, with `model` where a row names none; raises `ResultError`."""
        self.append(b"".join(_encode(_named(worker, row, model)) + b"\n" for row in rows))


class ParquetRows:
    """One row per stream in `records.parquet`, written some thousand rows at a time; not readable before `close`."""

    def __init__(self, folder: Path) -> None:
        """Create the file; raises `ResultError`, also if the extra `parquet` is missing."""
        require_format("parquet")
        import pyarrow
        import pyarrow.parquet

        self.path = folder / "records.parquet"
        self._waiting: list[dict[str, Any]] = []
        self._pyarrow = pyarrow
        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
        hints = {"worker": int, **get_type_hints(StreamRow)}
        schema = pyarrow.schema([(name, kinds[(get_args(hint) or (hint,))[0]]) for name, hint in hints.items()])
        with writing(self.path, "the rows of streams"):
            os.close(open_private(str(self.path), os.O_WRONLY | os.O_CREAT))  # pyarrow cannot set file modes
            self._writer = pyarrow.parquet.ParquetWriter(self.path, schema, compression="zstd")

    def write(self, worker: int, rows: Iterable[StreamRow], model: str | None) -> None:
        """Take a worker's rows, with `model` where a row names none; raises `ResultError`."""
        self._waiting += [_named(worker, row, model) for row in rows]
        if len(self._waiting) >= _ROWS_A_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        rows, self._waiting = self._waiting, []
        with self._finishing():
            self._writer.write_table(self._pyarrow.Table.from_pylist(rows, schema=self._writer.schema))

    def close(self) -> None:
        """Write the remaining rows and the footer; raises `ResultError`."""
        if self._waiting:
            self._write_group()
        if self._writer.is_open:
            with self._finishing():
                self._writer.close()

    @contextlib.contextmanager
    def _finishing(self) -> Iterator[None]:
        with writing(self.path, "the rows of streams"):
            try:
                yield
            except OSError:
                self._writer.is_open = False  # its destructor would try again
                raise


StreamRows = JsonlRows | ParquetRows
_File = Journal | OldParts | HistogramLog | StreamRows
Event = tuple[Literal["error", "note"], str]
_encode = msgspec.json.Encoder().encode


def _named(worker: int, row: StreamRow, model: str | None) -> dict[str, Any]:
    return {"worker": worker, **msgspec.structs.asdict(row), "model": row.model or model}


def open_rows(folder: Path, form: RowsFormat) -> StreamRows:
    """Create the file for a run's rows; raises `ResultError`."""
    return ParquetRows(folder) if form == "parquet" else JsonlRows(folder)


def require_format(form: RowsFormat | None) -> None:
    """Raise `ResultError` if the format needs a package that is not installed."""
    if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ResultError(
            "--records parquet: needs pyarrow, of the extra `parquet`: pip install '.[parquet]' in a checkout; "
            "--records jsonl needs nothing"
        )


class SafeFiles:
    """The files that grow during a run.

    A file that cannot be written is given up, which is reported once; the journal resumes once the disk has room again.
    """

    def __init__(self, folder: Path, records: RowsFormat | None = None) -> None:
        """Create them, including stream rows in the format `records`; raises `ResultError`."""
        self._journal = Journal(folder / JOURNAL)
        self._old_parts = OldParts(folder / JOURNAL)
        self._histograms = HistogramLog(folder / HISTOGRAMS)
        self._rows = open_rows(folder, records) if records is not None else None
        self._given_up: set[_File] = set()

    @property
    def keeps_rows(self) -> bool:
        return self._rows is not None

    def write(self, line: Line) -> list[Event]:
        """Write a line to the files; returns what happened to them."""
        events = self._write_journal(line)
        if isinstance(line, Ticked):
            events += self._attempt(self._old_parts, partial(self._old_parts.work, self._journal.parts))
        events += self._attempt(self._histograms, partial(self._histograms.apply, line))
        if isinstance(line, RunFinished) and self._rows is not None:
            events += self._attempt(self._rows, self._rows.close)
        return events

    def _write_journal(self, line: Line) -> list[Event]:
        journal = self._journal
        was_behind = journal.is_behind
        if journal in self._given_up:
            return []
        try:
            journal.write(line)
        except ResultError as error:
            if journal.is_lost:
                self._given_up.add(journal)
                return [("error", f"{error}; it is given up, and the run would not survive a crash")]
            waits = "the run goes on, and its lines wait in memory, where they would not survive a crash"
            return [] if was_behind else [("error", f"{error}; {waits}")]
        if was_behind:
            return [("note", f"{journal.path}: the journal is written again, and nothing of it is lost")]
        return []

    def write_rows(self, rows: Mapping[int, Sequence[StreamRow]], model: str | None) -> list[Event]:
        """Write rows by worker, with `model` where a row names none; returns events as `write` does."""
        kept = self._rows
        if kept is None:
            return []
        return [
            event
            for worker, its_rows in rows.items()
            for event in self._attempt(kept, partial(kept.write, worker, its_rows, model))
        ]

    def flush(self) -> list[Event]:
        """Write all histograms so far to disk; returns events as `write` does."""
        return self._attempt(self._histograms, self._histograms.flush)

    def close(self) -> None:
        """Close the files; later writes are ignored."""
        for file in (self._journal, self._old_parts, self._histograms, self._rows):
            if file is not None:
                file.close()
                self._given_up.add(file)

    def _attempt(self, file: _File, write: Callable[[], None]) -> list[Event]:
        if file in self._given_up:
            return []
        try:
            write()
        except ResultError as error:
            self._given_up.add(file)
            return [("error", f"{error}; the run goes on without it")]
        return []
