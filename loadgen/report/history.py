"""What is kept of each run, and the trend of a figure over runs and versions of the engine.

A trend has the runs of one profile, model, box and load, oldest first. A run's interval is that of its own measurement.
How much runs of one version differ is known only from several of them: a version's mean has an interval from two runs
on, and without one on both sides a difference between versions is not judged. Runs in doubt are shown but not counted,
and so are copies: runs that began in the same millisecond.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import msgspec
from packaging.version import InvalidVersion, Version

from loadgen.errors import UNDECODABLE, ResultError
from loadgen.format import signed_percent
from loadgen.masking import masked
from loadgen.metrics.difference import CONFIDENCE, Estimate, difference, student_t
from loadgen.places import read_whole
from loadgen.record.figures import FIGURES, figures_of, sound_stage, stages_by_load
from loadgen.record.subject import engine_of, hardware_of, known_time, model_of
from loadgen.report.assessment import best_of, first_line
from loadgen.report.configuration import settings_of
from loadgen.schema.certificate import Certificate
from loadgen.schema.comparison import Difference
from loadgen.schema.result import RESULT, Result
from loadgen.store.index import CERTIFICATE, IndexEntry, Read, runs_below
from loadgen.store.journal import JOURNAL, journal_is_held
from loadgen.store.runs import profile_of, read_result, started_of

State = Literal["complete", "stopped", "failed", "server_died", "goes on", "killed", "unreadable"]
_UNKNOWN = "unknown"


class ListedRun(msgspec.Struct, frozen=True):
    """A run in a list: what it was, how it ended, and its best stage."""

    kind: Literal["load", "monitor", "acceptance"]
    state: str  # a `State`; of an acceptance, its verdict
    reason: str
    profile: str
    model: str = ""
    box: str = ""
    engine: str = ""  # with its version
    version: str = ""  # of vLLM; empty if unknown
    started_at: str = ""
    load: str = ""  # of the stage with the most output tokens a second among those that met their limits
    output_tokens_per_s: float | None = None
    settings: str = ""  # a digest of those of server and load, without versions


class StageFigures(msgspec.Struct, frozen=True):
    load: str
    doubt: str | None
    figures: dict[str, Estimate]


class TrendPoint(msgspec.Struct, frozen=True):
    """A run in a trend; an end that is null is unknown."""

    run: str
    started_at: str
    version: str
    value: float
    low: float | None
    high: float | None
    at_least: bool  # the value is only a lower bound
    doubt: str | None  # why it does not count
    settings: str

    @property
    def counts(self) -> bool:
        return self.doubt is None and not self.at_least


class VersionMean(msgspec.Struct, frozen=True):
    """The runs of one version, or of a range of versions."""

    version: str
    runs: int  # that count
    value: float | None
    low: float | None
    high: float | None
    difference: Difference | None  # from the version before
    note: str  # why it is not judged, or what else may explain it

    @property
    def difference_words(self) -> str:
        """The difference from the version before, with its interval; empty for the first."""
        found = self.difference
        if found is None:
            return ""
        if found.low_percent is None or found.high_percent is None:
            return signed_percent(found.percent)
        return f"{signed_percent(found.percent)} ({found.low_percent:+.1f} to {found.high_percent:+.1f})"


class Trend(msgspec.Struct, frozen=True):
    figure: str
    unit: str
    confidence: float
    profile: str
    model: str
    box: str
    load: str
    points: tuple[TrendPoint, ...]  # oldest first
    versions: tuple[VersionMean, ...]  # lowest first

    @property
    def title(self) -> str:
        """The figure with its unit."""
        figure = FIGURES[self.figure]
        return f"{figure.title}, {figure.unit}" if figure.unit != "tok/s" else figure.title

    @property
    def why_not_counted(self) -> str:
        """Why some runs are not counted, each reason once; empty if all are."""
        bound = "the figure is only a lower bound"
        return "; ".join(dict.fromkeys(point.doubt or bound for point in self.points if not point.counts))


# What is kept of a run.


def read_run(folder: Path) -> IndexEntry | None:
    """The run or the acceptance in a folder, whatever its state; None if the folder is gone."""
    try:
        if (folder / RESULT).is_file():
            return _of_result(folder, read_result(folder / RESULT))
        if (folder / CERTIFICATE).is_file():
            certificate = msgspec.json.decode(read_whole(folder / CERTIFICATE), type=Certificate)
            return IndexEntry(_packed(_of_certificate(certificate)), _NO_STAGES)
    except (ResultError, OSError, *UNDECODABLE) as error:
        return _unread(folder, str(error)) if folder.is_dir() else None
    return _unread(folder, "") if folder.is_dir() else None


def state_without_result(folder: Path) -> State:
    """The state of a run whose result is missing, damaged or not final."""
    journal = folder / JOURNAL
    if not journal.is_file():
        return "unreadable"
    return "goes on" if journal_is_held(journal) else "killed"


def _unread(folder: Path, reason: str) -> IndexEntry:
    state, started = state_without_result(folder), started_of(folder.name)
    started_at = started.isoformat() if started is not None else ""
    summary = ListedRun("load", state, reason, profile_of(folder.name), started_at=started_at)
    return IndexEntry(_packed(summary), _NO_STAGES, ended=state != "goes on")


def _of_result(folder: Path, result: Result) -> IndexEntry:
    state: str = result.state if result.finished_at is not None else state_without_result(folder)
    best = best_of([stage for stage in result.stages if stage.requests.completed])
    summary = ListedRun(
        kind=result.kind,
        state=state,
        reason=first_line(result.reason),
        profile=str(result.profile.get("name") or folder.name),
        model=model_of(result),
        box=hardware_of(result),
        engine=engine_of(result),
        version=str(result.environment.get("vllm_version") or ""),
        started_at=known_time(result.started_at) or "",
        load=best.load_words if best is not None else "",
        output_tokens_per_s=best.throughput.output_tokens_per_s if best is not None else None,
        settings=hashlib.sha256(msgspec.json.encode(settings_of(result), order="sorted")).hexdigest()[:12],
    )
    details = []
    for load, stages in stages_by_load(result).items():
        stage = sound_stage(stages)
        words = load.words if stage.variant is None else f"{load.words}, {stage.variant}"
        details.append(StageFigures(words, stage.doubt, figures_of(stage)))
    return IndexEntry(_packed(summary), msgspec.msgpack.encode(details), ended=state != "goes on")


def _of_certificate(one: Certificate) -> ListedRun:
    box = one.box
    gpus = [gpu.name for gpu in box.gpus] if box is not None else []
    names = (f"{gpus.count(name)} \N{MULTIPLICATION SIGN} {name}" for name in dict.fromkeys(gpus))
    reason = one.reasons[0] if one.reasons else ""
    return ListedRun(
        "acceptance", one.verdict, reason, one.profile, one.model or "", ", ".join(names), started_at=one.started_at
    )


def _packed(summary: ListedRun) -> bytes:
    return msgspec.msgpack.encode(masked(summary))


def runs_listed(
    root: Path, *, details: bool = False, note: Callable[[str], None] = lambda _: None, read: Read = read_run
) -> list[Run]:
    """Every run below a folder, newest first; see `loadgen.store.index.runs_below`."""
    below, cut = runs_below(root, read, _LAYOUT, details=details, note=note), len(str(root.resolve()))
    found = [(f"{root}{path[cut:]}", _SUMMARY.decode(entry.summary), entry) for path, entry in below.items()]
    return sorted(found, key=lambda run: (run[1].started_at, run[0]), reverse=True)


def summary_of(entry: IndexEntry) -> ListedRun:
    return _SUMMARY.decode(entry.summary)


Run = tuple[str, ListedRun, IndexEntry]
"""A run by its path, as its root was given."""
_LAYOUT = zlib.crc32(repr([msgspec.json.schema(part) for part in (ListedRun, StageFigures)]).encode()) >> 2 | 1
_SUMMARY = msgspec.msgpack.Decoder(ListedRun)
_STAGES = msgspec.msgpack.Decoder(list[StageFigures])
_NO_STAGES = msgspec.msgpack.encode([])


# Trends.


def trends(runs: Sequence[Run], figure: str, since: str | None = None, load: str | None = None) -> list[Trend]:
    """The trend of a figure at each load that two runs or more have; `since` splits the versions in two."""
    found: dict[tuple[str, str, str, str], list[TrendPoint]] = {}
    for name, summary, entry in sorted(runs, key=lambda run: run[1].started_at):
        for stage in _STAGES.decode(entry.details):
            if figure in stage.figures and load in (None, stage.load, stage.load.split(",")[0].removeprefix("conc ")):
                group = (summary.profile, summary.model, summary.box, stage.load)
                points, point = found.setdefault(group, []), _point(name, summary, stage, stage.figures[figure])
                is_copy = summary.started_at and any(
                    (before.started_at, before.value) == (summary.started_at, point.value) for before in points
                )
                points.append(msgspec.structs.replace(point, doubt="a copy of another run") if is_copy else point)
    label = _side_of(since) if since is not None else lambda point: point.version or _UNKNOWN
    return [
        Trend(figure, FIGURES[figure].unit, CONFIDENCE, *group, tuple(points), tuple(_means(points, figure, label)))
        for group, points in sorted(found.items())
        if len(points) > 1
    ]


def best_load(entry: IndexEntry) -> str | None:
    """The load at which a run had the most output tokens a second; None if nothing was measured."""
    stages = [stage for stage in _STAGES.decode(entry.details) if "output_tok_s" in stage.figures]
    best = max(stages, key=lambda stage: stage.figures["output_tok_s"].value, default=None)
    return best.load if best is not None else None


def _point(name: str, summary: ListedRun, stage: StageFigures, found: Estimate) -> TrendPoint:
    return TrendPoint(
        run=name,
        started_at=summary.started_at,
        version=summary.version,
        value=found.value,
        low=_finite(found.low),
        high=_finite(found.high),
        at_least=found.at_least,
        doubt=stage.doubt if summary.state == "complete" else stage.doubt or f"the run: {summary.state}",
        settings=summary.settings,
    )


def _side_of(since: str) -> Callable[[TrendPoint], str]:
    """Whether a point's version is at least this one, in words; raises `InvalidVersion`."""
    least = Version(since)

    def side(point: TrendPoint) -> str:
        version = parsed_version(point.version)
        return _UNKNOWN if version is None else f"since {since}" if version >= least else f"before {since}"

    return side


def parsed_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _means(points: Iterable[TrendPoint], figure: str, label: Callable[[TrendPoint], str]) -> Iterator[VersionMean]:
    by_version = sorted(points, key=lambda point: (parsed_version(point.version) or Version("0"), label(point)))
    before: tuple[VersionMean, list[TrendPoint]] | None = None
    for version, members in groupby(by_version, label):
        counted = [point for point in members if point.counts]
        one = _mean(version, counted, before, figure)
        yield one
        if counted and version != _UNKNOWN:
            before = one, counted


def _mean(
    version: str, points: list[TrendPoint], before: tuple[VersionMean, list[TrendPoint]] | None, figure: str
) -> VersionMean:
    if not points:
        return VersionMean(version, 0, None, None, None, None, "no run of it counts")
    here = _mean_of(points)
    found, note = None, ""
    if before is not None and version != _UNKNOWN:
        earlier = _mean_of(before[1])
        found = difference(earlier, here, lower_is_better=FIGURES[figure].lower_is_better)
        if min(len(points), len(before[1])) < 2:
            note = "not judged: how much runs differ is known only from two of each version on"
        elif {point.settings for point in points} != {point.settings for point in before[1]}:
            note = "settings of server or load changed as well: `vramp compare` lists them"
    return VersionMean(version, len(points), here.value, _finite(here.low), _finite(here.high), found, note)


def _mean_of(points: Sequence[TrendPoint]) -> Estimate:
    """The mean of runs, with the interval that their spread gives it."""
    values = [point.value for point in points]
    mean = fmean(values)
    if len(values) < 2:
        return Estimate(mean)
    half = student_t(len(values) - 1, CONFIDENCE) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
