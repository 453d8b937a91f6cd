"""The latencies of a run over time, in HdrHistogram's log format, which its tools read in any language.

One interval after the other, each with a histogram for every latency, named by its tag; all of them together are what
the result says of all its stages. Written as the run goes, from the lines of its journal, so that it needs neither
memory nor a second pass over a long journal. An interval lasts a second at least and a hundredth of the run so far: a
day has some 800 of them. A new stage begins a new one.

Format: HdrHistogram's HistogramLogWriter, version 1.3 (with tags).
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from loadgen.errors import ResultError
from loadgen.format import harmless
from loadgen.metrics.deltas import LATENCIES
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.journal import Line, RunFinished, RunStarted, StageStarted, Ticked
from loadgen.metrics.stage import StageMetrics
from loadgen.store.files import append_whole

_SHORTEST_S = 1.0
_SHARE_OF_RUN = 0.01
_HEAD = """\
#[Latencies of vramp run {run_id}: one tag each; values and Interval_Max are in microseconds]
#[Histogram log format version 1.3]
#[StartTime: {unix_s:.3f} (seconds since epoch), {iso}]
#[BaseTime: {unix_s:.3f} (seconds since epoch)]
"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"
"""


class HistogramLog:
    """Folds the lines of a run into intervals and writes each when it is over."""

    def __init__(self, path: Path) -> None:
        """Begin the file anew; raises `ResultError`."""
        self.path = path
        self._latency: dict[str, Histogram] = {}
        self._from_s: float | None = None
        self._until_s = 0.0
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise self._problem(error) from error

    def apply(self, line: Line) -> None:
        """Take in the next line; raises `ResultError` when the disk does not take an interval."""
        match line:
            case Ticked():
                self._tick(line)
            case StageStarted():
                self.flush()
                self._write(f"#[Stage {line.index + 1} from {line.t_s:.3f}]\n")
            case RunFinished():
                self.flush()
            case RunStarted():
                iso = datetime.fromtimestamp(line.unix_s, UTC).isoformat(timespec="milliseconds")
                run_id = " ".join(harmless(line.run_id).split())
                self._write(_HEAD.format(run_id=run_id, unix_s=line.unix_s, iso=iso))

    def flush(self) -> None:
        """End the interval here: the file now holds all that has been seen."""
        start_s, length_s = self._from_s or 0.0, self._until_s - (self._from_s or 0.0)
        lines = [
            f"Tag={name},{start_s:.3f},{length_s:.3f},{latency.max_us}.000,{latency.hdr()}\n"
            for name, latency in self._latency.items()
        ]
        self._latency, self._from_s = {}, None
        if lines:
            self._write("".join(lines))

    def close(self) -> None:
        self._file.close()

    def _tick(self, line: Ticked) -> None:
        if self._from_s is None:
            self._from_s = max(0.0, self._until_s, line.t_s - line.span_s)
        self._until_s = line.t_s
        seen = StageMetrics.of(*line.stages.values()).latency
        for name in LATENCIES:
            if name in seen:
                self._latency.setdefault(name, Histogram()).add(seen[name])
        if line.t_s - self._from_s >= max(_SHORTEST_S, _SHARE_OF_RUN * line.t_s):
            self.flush()

    def _write(self, text: str) -> None:
        try:
            append_whole(self._file, text.encode("ascii", "replace"))
        except OSError as error:
            raise self._problem(error) from error

    def _problem(self, error: OSError) -> ResultError:
        return ResultError(f"{self.path}: the log of histograms cannot be written: {error.strerror}")
