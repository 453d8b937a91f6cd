"""A stage that is long over takes less memory, and none of its figures change."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.soak import Onlooker, lines
from loadgen.record.record import Record
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineStage
from loadgen.schema.journal import Ticked
from tests.journal import STARTED
from tests.metrics.served import result_of, served


def test_thinning_changes_no_figure() -> None:
    stage, same = served(1), served(1)
    for each in (stage, same):
        each.engine = EngineStage(requests=240, finished={"length": 240})
        each.add_client(ClientDelta(cpu_ns=10**9, reads=7), span_s=30.0, workers=2)
        each.add_answers(StageDelta(answers=4, degenerate={"blank": 1}), 0.0)
    stage.thin()
    assert result_of(stage) == result_of(same)


def test_what_comes_late_is_added_to_a_thin_stage() -> None:
    stage, same = served(1), served(1)
    stage.thin()
    for each in (stage, same):
        each.metrics.add(StageDelta(sent=1, failed=1, errors={"http-503": 1}))
    assert result_of(stage) == result_of(same)
    assert stage.metrics.errors == {"http-503": 1}


def played(stage_s: float) -> Iterator[Record]:
    """The record of 216 seconds with stages of this length, whenever it has been looked at."""
    record, onlooker = Record(), Onlooker()
    record.apply(STARTED)
    for line in lines(0.06, stage_s):
        record.apply(line)
        if isinstance(line, Ticked) and line.t_s % 15 == 0:
            onlooker.look(record, line.t_s)
            yield record
    yield record


def summarised(record: Record) -> list[bool]:
    return [stage.hardware_figures is not None for stage in record.stages.values()]


def test_all_but_the_last_two_stages_keep_no_samples() -> None:
    *_, record = played(stage_s=36.0)
    assert summarised(record) == [True] * 4 + [False] * 2
    first = next(iter(record.stages.values()))
    assert first.hardware_samples.by_gpu == {}
    assert record.result().stages[0].gpu == record.stage_result(first).gpu != []


def test_the_two_that_are_shown_keep_theirs_however_long_they_last() -> None:
    for record in played(stage_s=54.0):
        assert not any(summarised(record)[-2:])
    assert summarised(record) == [True, True, False, False]
