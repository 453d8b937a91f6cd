"""What becomes a mark, and that there are never too many."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loadgen.schema.engine import EngineView
from loadgen.schema.result import RunEvent
from loadgen.schema.snapshot import Snapshot
from tests.tui.scenes import afternoon
from tests.tui.scripted import running, with_gpus
from tui.charts.timeline import KINDS, MAX_MARKS, Mark, Marks


def seen(*snapshots: Snapshot) -> list[Mark]:
    marks = Marks()
    for snapshot in snapshots:
        marks.add(snapshot)
    return marks.all


def test_an_afternoon_has_each_of_its_marks_once() -> None:
    found = seen(*afternoon())
    assert [(round(mark.t_s), mark.kind, mark.label) for mark in sorted(found, key=lambda mark: mark.t_s)] == [
        (-40, "server", ""),
        (-1, "server", ""),
        (0, "load", "8"),
        (60, "load", "16"),
        (60, "throttle", ""),
        (75, "note", "fan of node 3 swapped"),
        (95, "pause", ""),
        (99, "resume", ""),
        (120, "load", "32"),
        (130, "error", ""),
        (180, "load", "64"),
        (191, "preemption", ""),
    ]


def test_who_looks_late_finds_the_stages_where_they_began() -> None:
    stages = [mark for mark in seen(running(200.0)) if mark.kind == "load"]
    assert [(mark.t_s, mark.label) for mark in stages] == [(0.0, "8"), (60.0, "16"), (120.0, "32"), (180.0, "64")]


def test_failures_that_no_snapshot_had_are_found_in_the_past() -> None:
    past = tuple(msgspec.structs.replace(running(t_s).point, errors=int(t_s in (3.0, 4.0, 40.0))) for t_s in range(50))
    found = [mark.t_s for mark in seen(running(50.0, past=past), running(51.0, past=past)) if mark.kind == "error"]
    assert found == [3.0, 40.0]


def test_one_mark_for_a_burst_and_one_for_gpus_that_throttle_together() -> None:
    calm, hot = with_gpus(), with_gpus()
    flagged = tuple(msgspec.structs.replace(gpu, flags=("THROTTLED thermal 9%",)) for gpu in hot.gpus)
    times = [0.0, 1.0, 2.0, 30.0]
    shots = [msgspec.structs.replace(calm, t_s=t_s, gpus=flagged if t_s else calm.gpus[:1]) for t_s in times]
    found = [mark for mark in seen(*shots) if mark.kind == "throttle"]
    assert [mark.t_s for mark in found] == [1.0, 30.0] and found[0].text == "gpu 0 THROTTLED thermal 9%, and 7 more"
    engine = [running(t_s, engine=EngineView(preemptions=n)) for t_s, n in ((0.0, 5), (1.0, 6), (2.0, 7), (20.0, 8))]
    assert [mark.t_s for mark in seen(*engine) if mark.kind == "preemption"] == [1.0, 20.0]


@given(st.lists(st.tuples(st.floats(0, 1e5), st.sampled_from([*KINDS, "odd"])), max_size=MAX_MARKS * 2))
def test_there_are_never_too_many_and_the_important_ones_stay(found: list[tuple[float, str]]) -> None:
    events = tuple(RunEvent(t_s, kind, "x") for t_s, kind in sorted(found))
    marks = seen(running(stages=(), events=events[:200]), running(stages=(), events=events))
    assert len(marks) <= MAX_MARKS
    kept = [mark for mark in marks if mark.kind == "note"]
    assert len(kept) == min(MAX_MARKS, sum(event.kind == "note" for event in events if event.kind != "load")) or (
        len(marks) == MAX_MARKS and all(mark.how.rank <= KINDS["note"].rank for mark in marks)
    )


def test_events_that_were_thinned_do_not_come_again() -> None:
    events = tuple(RunEvent(float(n), "note", str(n)) for n in range(9))
    assert len(seen(running(events=events, stages=()), running(events=events[3:], stages=()))) == 9
