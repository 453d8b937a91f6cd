"""The operations that keys send, and the load that they show before and after the run confirms it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loadgen.run.operations import Pause, Resume, SetConcurrency, SetRate, SetShape
from loadgen.schema.snapshot import Snapshot
from tests.tui.scripted import ScriptedRun, running
from tui.screens.pending_load import PATIENCE, PendingLoad

Act = Callable[[PendingLoad], None]


def at(phase: Any = "running", **load: Any) -> Snapshot:
    snapshot = running(phase=phase)
    fields = {"concurrency": None, "rate": None, "paused": False} | load
    return msgspec.structs.replace(snapshot, load=msgspec.structs.replace(snapshot.load, **fields))


def pending_at(**load: Any) -> tuple[PendingLoad, ScriptedRun]:
    run = ScriptedRun()
    pending = PendingLoad(run)
    pending.update(at(**load))
    return pending, run


@pytest.mark.parametrize(
    ("before", "act", "sent"),
    [
        (64, lambda load: load.step(1), [65]),
        (64, lambda load: load.step(-1), [63]),
        (1, lambda load: load.step(-1), []),
        (64, lambda load: load.scale(2), [128]),
        (5, lambda load: load.scale(0.5), [2]),
        (1, lambda load: load.scale(0.5), []),
        (64, lambda load: load.request(256), [256]),
        (64, lambda load: load.request(64), []),
        (64, lambda load: load.request(1e9), [100_000]),
        (None, lambda load: load.step(1), [65]),  # from the last stage
    ],
)
def test_keys_in_closed_loop(before: int | None, act: Act, sent: list[int]) -> None:
    pending, run = pending_at(concurrency=before)
    act(pending)
    assert run.calls == [SetConcurrency(value) for value in sent]


@pytest.mark.parametrize(
    ("before", "act", "sent"),
    [
        (10.0, lambda load: load.step(1), [11.0]),
        (11.0, lambda load: load.step(-1), [10.0]),
        (2.5, lambda load: load.scale(2), [5.0]),
        (0.01, lambda load: load.scale(0.5), []),
        (3.0, lambda load: load.request(0.123456), [0.123]),
    ],
)
def test_keys_in_open_loop(before: float, act: Act, sent: list[float]) -> None:
    pending, run = pending_at(rate=before)
    act(pending)
    assert run.calls == [SetRate(value) for value in sent]


def test_other_kind_of_loop_shows_before_it_is_confirmed() -> None:
    pending, run = pending_at(concurrency=64)
    pending.request(2.5, open_loop=True)
    pending.scale(2)
    assert (pending.wanted.value, pending.wanted.open_loop, pending.wanted.unconfirmed) == (5.0, True, True)
    pending.update(at(rate=2.5))
    assert (pending.wanted.value, pending.wanted.unconfirmed) == (5.0, True)
    pending.update(at(rate=5.0))
    assert not pending.wanted.unconfirmed
    pending.request(5, open_loop=False)
    assert run.calls == [SetRate(2.5), SetRate(5.0), SetConcurrency(5)]


def test_a_second_key_builds_on_the_first_until_both_are_confirmed() -> None:
    pending, run = pending_at(concurrency=64)
    pending.step(1)
    pending.step(1)
    assert run.calls == [SetConcurrency(65), SetConcurrency(66)]
    pending.update(at(concurrency=65))
    assert pending.wanted.value == 66 and pending.wanted.unconfirmed
    pending.update(at(concurrency=66))
    assert pending.wanted.value == 66 and not pending.wanted.unconfirmed


def test_a_request_that_is_never_confirmed_is_dropped() -> None:
    pending, run = pending_at(concurrency=64)
    pending.request(100)
    pending.request_shape(4096, 1024)
    pending.request_shape(1000, 100)
    assert run.calls == [SetConcurrency(100), SetShape(1000, 100)]
    assert (pending.wanted.value, pending.wanted.shape, pending.wanted.unconfirmed) == (100, (1000, 100), True)
    for _ in range(PATIENCE + 1):
        pending.update(at(concurrency=64))
    assert (pending.wanted.value, pending.wanted.shape, pending.wanted.unconfirmed) == (64, (4096, 1024), False)


def test_pause_twice_resumes() -> None:
    pending, run = pending_at(concurrency=64)
    pending.toggle_pause()
    assert pending.wanted.paused
    pending.toggle_pause()
    assert run.calls == [Pause(), Resume()]


def test_same_load_begins_again_after_the_plan() -> None:
    pending, run = pending_at(phase="holding", concurrency=64)
    pending.request(64)
    pending.toggle_pause()
    assert not pending.wanted.paused
    assert run.calls == [SetConcurrency(64), Pause()]
