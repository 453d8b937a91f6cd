"""What a run has to say: line by line into its files and its record, and as a result when asked for one.

Every line goes through `log`, so screen, journal and result cannot differ; once the last one is written, nothing more
is said. A disk that does not take it costs the run nothing but a word.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from loadgen.errors import VrampError
from loadgen.metrics.baseline import Baseline, with_baseline
from loadgen.metrics.deltas import StreamRow
from loadgen.metrics.journal import Happened, Line, RunFinished, RunState
from loadgen.metrics.record import Record
from loadgen.metrics.result import Result
from loadgen.store.files import RowsFormat, SafeFiles, require_format
from loadgen.store.runs import RESULT, claim_folder, require_writable, write_result


class RunWriter:
    """The files, the record and the result of one run."""

    def __init__(
        self, name: str, *, json_path: Path | None, records: RowsFormat | None, baseline: Baseline | None
    ) -> None:
        """Claim a folder for a run of this name; raises `ResultError` when the results could not be written."""
        require_format(records)
        if json_path is not None:
            require_writable(json_path)
        self.folder = claim_folder(name, datetime.now(UTC))
        self.result_paths = [self.folder / RESULT, *([json_path] if json_path is not None else [])]
        self.record = Record()
        self.result: Result | None = None
        self.written: Path | None = None  # where the result was written last
        self.error: VrampError | None = None  # why it could not be written
        self.began_s = time.monotonic()
        self._files = SafeFiles(self.folder, records)
        self._baseline = baseline
        self._closed = False

    @property
    def keeps_rows(self) -> bool:
        """Whether every stream's row is asked for."""
        return self._files.keeps_rows

    def clock_s(self) -> float:
        return time.monotonic() - self.began_s

    def log(self, line: Line) -> None:
        if self._closed:
            return
        self.record.apply(line)
        self._tell(self._files.write(line))

    def event(self, kind: str, text: str) -> None:
        self.log(Happened(t_s=self.clock_s(), kind=kind, text=text))

    def write_rows(self, rows: Mapping[int, Sequence[StreamRow]], model: str | None) -> None:
        """Rows by worker, if they are kept; `model` where a row names none."""
        self._tell(self._files.write_rows(rows, model))

    def write(self) -> None:
        """What there is goes to disk as a result."""
        self._tell(self._files.flush())
        result = self.record.result()
        self.result = result if self._baseline is None else with_baseline(result, self._baseline)
        for path in self.result_paths:
            try:
                write_result(self.result, path)
                self.written = path
            except VrampError as error:
                self.error = self.error or error
                self.event("error", str(error))

    def finish(self, state: RunState, reason: str) -> None:
        """The last line, and the result."""
        self.log(RunFinished(t_s=self.clock_s(), unix_s=time.time(), state=state, reason=reason))
        self.write()
        self._files.close()
        self._closed = True

    def _tell(self, problems: list[str]) -> None:
        for problem in problems:
            self.event("error", problem)
