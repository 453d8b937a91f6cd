"""A ramp on several workers: each step has the time that it lasted, however many share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadgen.record.record import Record
from loadgen.schema.deltas import ClientDelta, LoadBin, StageDelta
from loadgen.schema.journal import StageEnded, StageStarted, Ticked, decode_line, encode_line
from loadgen.schema.result import CurvePoint
from tests.journal import STARTED

SECOND_NS = 1_000_000_000


def ramped(*loads: float) -> Record:
    """A record in which a ramp through these loads has begun, each for a second."""
    record = Record()
    record.apply(STARTED)
    steps = tuple((float(second), load) for second, load in enumerate(loads))
    record.apply(StageStarted(t_s=0.0, index=0, concurrency=int(loads[0]), rate=None, isl=16, osl=16, steps=steps))
    return record


def tick(record: Record, step: int, reporting: int, **changes: Any) -> None:
    """A second of a step, reported by so many workers, each of which holds two streams and gets ten tokens."""
    part = LoadBin(span_ns=reporting * SECOND_NS, held_area_ns=reporting * 2 * SECOND_NS, output_tokens=reporting * 10)
    stages = {0: StageDelta(bins={step: part})}
    record.apply(Ticked(t_s=step + 1.0, span_s=1.0, stages=stages, client=ClientDelta(), held=0, **changes))


def measured(points: Sequence[CurvePoint]) -> list[tuple[float, float, float | None]]:
    return [(point.measured_s, point.held, point.output_tokens_per_s) for point in points]


def test_workers_that_come_while_it_runs_take_no_part_in_it() -> None:
    record = ramped(2, 2)
    tick(record, 0, 1, workers=1, sharing=1)
    tick(record, 1, 1, workers=5, sharing=1)
    assert measured(record.result().curve) == [(2.0, 2.0, 10.0)]


def test_a_worker_that_is_lost_is_missing_from_the_steps_after_it_only() -> None:
    record = ramped(4, 3)
    tick(record, 0, 2, workers=2, sharing=2)
    tick(record, 1, 1, workers=1, sharing=1)
    assert measured(record.result().curve) == [(1.0, 2.0, 10.0), (1.0, 4.0, 20.0)]


def test_what_its_workers_tell_after_its_end_is_shared_as_it_was() -> None:
    record = ramped(8)
    tick(record, 0, 4, workers=4, sharing=4)
    record.apply(StageEnded(1.0, 0, "its time was up"))
    record.apply(StageStarted(t_s=1.0, index=1, concurrency=1, rate=None, isl=16, osl=16))
    tick(record, 0, 4, workers=4, sharing=1)
    assert measured(record.result().curve) == [(2.0, 8.0, 40.0)]


def test_a_journal_that_does_not_tell_who_shares_is_read_by_who_was_there() -> None:
    record = ramped(8)
    tick(record, 0, 4, workers=4)
    assert record.last_tick is not None
    assert b"sharing" not in encode_line(record.last_tick)
    assert decode_line(encode_line(record.last_tick)) == record.last_tick
    assert measured(record.result().curve) == [(1.0, 8.0, 40.0)]


def test_workers_that_take_no_part_do_not_hide_that_the_others_are_busy() -> None:
    record = ramped(2)
    busy = ClientDelta(cpu_ns=int(9.9 * SECOND_NS))
    record.apply(Ticked(t_s=10.0, span_s=10.0, stages={}, client=busy, held=2, workers=5, sharing=1))
    assert record.stages[0].limit() == "workers used 99% of their cores; give them more with --workers"
