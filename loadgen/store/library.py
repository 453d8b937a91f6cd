"""What other programs may import, as names of `loadgen`: readers of a run's files, which return structs.

A run is named by its folder or by the file itself. Anything that cannot be read raises `loadgen.errors.ResultError`,
whose message names the file and what is wrong in it.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from loadgen.errors import UNDECODABLE, ResultError, reported_as
from loadgen.metrics.histogram import Histogram
from loadgen.places import read_whole
from loadgen.record.summary import summary_of
from loadgen.schema.result import Result
from loadgen.schema.summary import SUMMARY_SCHEMA, RunSummary
from loadgen.store import runs
from loadgen.store.files import HISTOGRAMS


class HistogramInterval(msgspec.Struct, frozen=True):
    """The values of one latency over a part of a stage; those of all its parts add up to the stage's."""

    stage: int  # its number, from 1
    latency: str  # `ttft`, `itl`, ...; `ttft_censored`: times still awaited when the stage ended
    start_s: float  # since the run began
    duration_s: float
    values_ms: tuple[float, ...]  # ascending; a value stands for all within a thousandth below it
    counts: tuple[int, ...]  # of each value


def read_result(path: str | os.PathLike[str]) -> Result:
    """The result of a run, or of another tool's file."""
    return runs.result_at(Path(path))


def read_summary(path: str | os.PathLike[str]) -> RunSummary:
    """The summary of a run: its `summary.json`, or made from a result or another tool's file."""
    file = _file(Path(path), runs.SUMMARY)
    if Path(path).is_dir() and not file.exists():
        return summary_of(read_result(path))
    with reported_as(f"{file}: cannot be read"):
        document = read_whole(file)
    try:
        is_summary = msgspec.json.decode(document, type=runs.Head).schema == SUMMARY_SCHEMA
    except UNDECODABLE:
        is_summary = False
    if not is_summary:
        return summary_of(runs.read_result(file))
    with reported_as(f"{file}: not a summary of vramp", UNDECODABLE):
        return msgspec.json.decode(document, type=RunSummary)


def read_histograms(path: str | os.PathLike[str]) -> list[HistogramInterval]:
    """The latencies of a run over time, in the order in which they were written."""
    file = _file(Path(path), HISTOGRAMS)
    with reported_as(f"{file}: cannot be read"):
        lines = read_whole(file).decode("utf-8", "replace").splitlines()
    if lines and not any(line.startswith("#[Histogram log format") for line in lines):
        raise ResultError(f"{file}: not a histogram log of vramp, which is {HISTOGRAMS} in the folder of a run")
    found, stage = [], 0
    for number, line in enumerate(lines, 1):
        try:
            if line.startswith("#[Stage "):
                stage = int(line.split()[1])
            elif line.startswith("Tag="):
                found.append(_interval(stage, line))
        except (ValueError, IndexError, ResultError) as error:
            raise ResultError(f"{file}: line {number}: not an interval of vramp: {error}") from error
    return found


def _interval(stage: int, line: str) -> HistogramInterval:
    tag, *numbers, encoded = line.split(",")
    start_s, duration_s, max_us = map(float, numbers)
    if not all(map(math.isfinite, (start_s, duration_s, max_us))):
        raise ValueError("a number that is not finite")
    histogram = Histogram.from_hdr(encoded)
    histogram.max_us = int(max_us)  # the encoding keeps only its bucket
    values_us, counts = histogram.values_us()
    return HistogramInterval(
        stage=stage,
        latency=tag.removeprefix("Tag="),
        start_s=start_s,
        duration_s=duration_s,
        values_ms=tuple(value / 1000 for value in values_us),
        counts=tuple(counts),
    )


def _file(path: Path, name: str) -> Path:
    return path / name if path.is_dir() else path
