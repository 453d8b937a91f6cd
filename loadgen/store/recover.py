"""Makes the result of a killed run from the journal that it left.

The journal is folded just as during the run, so only what had not reached it is missing: at most the last quarter of a
second. Damaged lines are skipped, and the result says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, dropwhile
from pathlib import Path

import msgspec

from loadgen.errors import ResultError, reported_as
from loadgen.masking import mask_file
from loadgen.places import replacing
from loadgen.record.record import Record
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import OUTCOMES, ClientDelta, StageDelta
from loadgen.schema.journal import Happened, Line, RunFinished, RunStarted, Ticked, time_of
from loadgen.schema.result import RESULT, Result
from loadgen.store.files import HISTOGRAMS, HistogramLog
from loadgen.store.journal import JOURNAL, journal_is_held, read_journal
from loadgen.store.runs import has_result, write_result, write_summary

_DAMAGES_REPORTED = 20


def recover(folder: Path, *, force: bool = False) -> Path:
    """Write a run's result, summary and `histograms.hlog` from the journal in its folder; returns the result's path.

    Masks secrets in the servers' logs, as at the end of any run. `force` overwrites a complete result. Raises
    `ResultError` for a run that is still running, and for a journal without a run.
    """
    journal = folder / JOURNAL
    if journal_is_held(journal):
        raise ResultError(f"{folder}: this run is still running; it writes its result when it ends")
    if has_result(folder) and not force:
        raise ResultError(f"{folder / RESULT}: is the result of the whole run; --force rebuilds it from the journal")
    with reported_as(f"{folder}: cannot be written to"), replacing(folder / HISTOGRAMS) as histograms:
        problems = []
        # Anything but a regular file, such as a link, is not a log of the run.
        for log in (log for log in folder.glob("server*.log") if log.is_file() and not log.is_symlink()):
            try:
                mask_file(log)
            except OSError as error:
                problems.append(f"{log}: may hold secrets, which could not be masked: {error.strerror}")
        result = _fold(journal, histograms, problems)
    write_result(result, folder / RESULT)
    write_summary(result, folder)
    return folder / RESULT


def folded(journal: Path) -> Result:
    """The result that a journal makes, without writing it; raises `ResultError`."""
    with tempfile.TemporaryDirectory(prefix="vramp-fold-") as folder:
        return _fold(journal, Path(folder) / HISTOGRAMS, ())


def _fold(journal: Path, histograms: Path, problems: Iterable[str]) -> Result:
    damaged: list[str] = []
    lines = dropwhile(lambda line: not isinstance(line, RunStarted), read_journal(journal, skipped=damaged))
    first = next(lines, None)
    if first is None:
        raise ResultError(f"{journal}: holds no run: it was killed before it began, or the first line is damaged")
    record, until_s = Record(), 0.0
    with closing(HistogramLog(histograms)) as log:
        for line in chain([first], lines):
            record.apply(line)
            log.apply(line)
            until_s = time_of(line)
        reported = [Happened(t_s=until_s, kind="error", text=problem) for problem in problems]
        for line in (*reported, *_end(record, until_s, damaged)):
            record.apply(line)
            log.apply(line)
    return record.result()


def _cut_off(record: Record, last: Ticked, t_s: float) -> Ticked:
    """A final tick, in which the streams that were open at the last one end."""
    stages = [record.stages[index] for index in last.open_sent if index in record.stages]
    hosts = (
        msgspec.structs.replace(
            host, stages=_unfinished(stage.host_part(number) for stage in stages), client=ClientDelta(), held=0
        )
        for number, host in enumerate(last.hosts)
    )
    return Ticked(
        t_s=t_s,
        span_s=0.0,
        stages={index: StageDelta(unfinished=count) for index, count in last.open_sent.items()},
        client=ClientDelta(),
        held=0,
        workers=last.workers,
        sharing=last.sharing,
        instances=tuple(_unfinished(stage.part(number) for stage in stages) for number in range(len(last.instances))),
        hosts=tuple(hosts),
    )


def _unfinished(parts: Iterable[StageRecord]) -> dict[int, StageDelta]:
    """The open streams of parts of stages, as unfinished; ticks report them only for whole stages."""
    open_sent = {
        part.started.index: part.counters["sent"] - sum(part.counters[name] for name in OUTCOMES) for part in parts
    }
    return {index: StageDelta(unfinished=max(0, count)) for index, count in open_sent.items()}


def _end(record: Record, t_s: float, damaged: Sequence[str]) -> Iterator[Line]:
    """The lines that a killed run could not write."""
    for problem in damaged[:_DAMAGES_REPORTED]:
        yield Happened(t_s=t_s, kind="error", text=f"left out: {problem}")
    if len(damaged) > _DAMAGES_REPORTED:
        yield Happened(t_s=t_s, kind="error", text=f"left out: {len(damaged) - _DAMAGES_REPORTED} more damaged lines")
    run, tick = record.run, record.last_tick
    if record.finished is not None or run is None:
        return
    if tick is not None and tick.open_sent:
        yield _cut_off(record, tick, t_s)
    without = f", without {len(damaged)} damaged lines" if damaged else ""
    reason = f"the run was killed after {t_s:.1f} s; this is what its journal holds{without}"
    yield RunFinished(t_s=t_s, unix_s=run.unix_s + t_s, state="failed", reason=reason)
