"""A stage that is long over takes less memory, and none of its figures change."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from benchmarks import day
from loadgen.metrics.canary import Answers
from loadgen.metrics.deltas import ClientDelta, StageDelta
from loadgen.metrics.engine import EngineStage
from loadgen.metrics.journal import Ticked
from loadgen.metrics.record import Record
from loadgen.metrics.spill import SpillFile
from loadgen.metrics.stage_record import StageRecord
from tests.journal import STARTED
from tests.metrics.served import result_of, served, started


def test_packing_changes_nothing() -> None:
    stage, same = served(1), served(1)
    for each in (stage, same):
        each.engine = EngineStage(requests=240, finished={"length": 240})
        each.add_client(ClientDelta(cpu_ns=10**9, reads=7), span_s=30.0, workers=2)
        each.add_answers(StageDelta(answers=4, degenerate={"blank": 1}), 0.0)
    stage.pack(SpillFile())
    stage.pack(SpillFile())
    assert stage.is_packed
    assert result_of(stage) == result_of(same)
    assert not stage.is_packed


def test_what_comes_late_is_added_to_a_packed_stage() -> None:
    stage, same = served(1), served(1)
    stage.pack(SpillFile())
    for each in (stage, same):
        each.metrics.add(StageDelta(sent=1, failed=1, errors={"http-503": 1}))
    stage.pack(SpillFile())
    assert result_of(stage) == result_of(same)
    assert stage.metrics.errors == {"http-503": 1}


def test_the_parts_of_a_stage_are_packed_with_it() -> None:
    stage = StageRecord(started())
    stage.part(1).metrics.add(StageDelta(sent=3))
    stage.host_part(0).metrics.add(StageDelta(sent=5))
    stage.pack(SpillFile())
    assert [each.is_packed for each in (stage, *stage.parts, *stage.hosts)] == [True] * 4
    assert [part.counters["sent"] for part in (*stage.parts, *stage.hosts)] == [0, 3, 5]


def test_answers_are_known_without_unpacking() -> None:
    stage = StageRecord(started())
    stage.metrics.add(StageDelta(answers=9, degenerate={"blank": 2}, loops={"so on": 1}))
    stage.pack(SpillFile())
    assert stage.answers == Answers(9, {"blank": 2}, {"so on": 1})
    assert stage.is_packed


def test_what_a_stage_does_not_have_is_not_made_up() -> None:
    stage = StageRecord(started())
    stage.pack(SpillFile())
    with pytest.raises(AttributeError, match="latency"):
        getattr(stage, "latency")  # noqa: B009  # mypy knows that there is none


def played(stage_s: float) -> Iterator[Record]:
    """The record of six minutes with stages of this length, whenever it has been looked at."""
    record, onlooker = Record(), day.Onlooker()
    record.apply(STARTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(day, "STAGE_S", stage_s)
        for line in day.Day().lines(hours=0.1):
            record.apply(line)
            if isinstance(line, Ticked) and line.t_s % 5 == 0:
                onlooker.look(record, line.t_s)
                yield record
    yield record


def packed(record: Record) -> list[bool]:
    return [stage.is_packed for stage in record.stages.values()]


def test_a_run_that_goes_on_reads_nothing_of_what_is_long_over() -> None:
    *_, record = played(stage_s=40.0)
    before = packed(record)
    assert before == [True] * (len(before) - 2) + [False] * 2
    assert len(before) == 9
    # A result reads them all; should the run go on, they are spilled again, one a tick.
    record.result()
    assert not any(packed(record))
    record.apply(msgspec.structs.replace(record.stages[8].started, index=9, t_s=360.0))
    for tick in range(7):
        record.apply(Ticked(t_s=360 + tick * 0.25, span_s=0.25, stages={}, client=ClientDelta(), held=0))
    assert packed(record) == [*before, False]


def test_the_two_that_are_shown_are_not_spilled_however_long_they_last() -> None:
    for record in played(stage_s=90.0):
        assert not any(packed(record)[-2:])
    assert packed(record) == [True, True, False, False]
