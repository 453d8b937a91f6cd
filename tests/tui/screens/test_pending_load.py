"""What a key makes of the load, before and after the run confirms it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loadgen.run.operations import Pause, Resume, SetConcurrency, SetRate, SetShape
from loadgen.schema.snapshot import Snapshot
from tests.tui.scripted import ScriptedRun, running
from tui.screens.pending_load import PATIENCE, PendingLoad


def at(concurrency: int | None = None, rate: float | None = None, paused: bool = False) -> Snapshot:
    snapshot = running()
    load = msgspec.structs.replace(snapshot.load, concurrency=concurrency, rate=rate, paused=paused)
    return msgspec.structs.replace(snapshot, load=load)


def hand_at(**load: Any) -> tuple[PendingLoad, ScriptedRun]:
    run = ScriptedRun()
    hand = PendingLoad(run)
    hand.update(at(**load))
    return hand, run


@pytest.mark.parametrize(
    ("before", "act", "sent"),
    [
        (64, lambda hand: hand.step(1), [65]),
        (64, lambda hand: hand.step(-1), [63]),
        (1, lambda hand: hand.step(-1), []),
        (64, lambda hand: hand.scale(2), [128]),
        (5, lambda hand: hand.scale(0.5), [2]),
        (1, lambda hand: hand.scale(0.5), []),
        (64, lambda hand: hand.request(256), [256]),
        (64, lambda hand: hand.request(64), []),
        (64, lambda hand: hand.request(1e9), [100_000]),
    ],
)
def test_closed_loop(before: float, act: Callable[[PendingLoad], None], sent: list[float]) -> None:
    hand, run = hand_at(concurrency=before)
    act(hand)
    assert run.calls == [SetConcurrency(int(value)) for value in sent]


@pytest.mark.parametrize(
    ("before", "act", "sent"),
    [
        (10.0, lambda hand: hand.step(1), [11.0]),
        (11.0, lambda hand: hand.step(-1), [10.0]),
        (2.5, lambda hand: hand.scale(2), [5.0]),
        (0.01, lambda hand: hand.scale(0.5), []),
        (3.0, lambda hand: hand.request(0.123456), [0.123]),
    ],
)
def test_open_loop(before: float, act: Callable[[PendingLoad], None], sent: list[float]) -> None:
    hand, run = hand_at(rate=before)
    act(hand)
    assert run.calls == [SetRate(value) for value in sent]


def test_the_other_kind_of_loop_shows_before_it_is_confirmed_and_keys_build_on_it() -> None:
    hand, run = hand_at(concurrency=64)
    hand.request(2.5, open_loop=True)
    hand.scale(2)
    assert (hand.wanted.value, hand.wanted.open_loop, hand.wanted.unconfirmed) == (5.0, True, True)
    hand.update(at(rate=2.5))
    assert (hand.wanted.value, hand.wanted.unconfirmed) == (5.0, True)
    hand.update(at(rate=5.0))
    assert not hand.wanted.unconfirmed
    hand.request(5, open_loop=False)
    assert run.calls == [SetRate(2.5), SetRate(5.0), SetConcurrency(5)]


def test_a_shape_shows_until_it_is_confirmed_or_dropped() -> None:
    hand, run = hand_at(concurrency=64)
    hand.request_shape(4096, 1024)
    assert run.calls == []
    hand.request_shape(1000, 100)
    requested = hand.wanted
    assert (requested.shape, requested.unconfirmed) == ((1000, 100), True)
    for _ in range(PATIENCE + 1):
        hand.update(at(concurrency=64))
    dropped = hand.wanted
    assert (dropped.shape, dropped.unconfirmed) == ((4096, 1024), False)
    assert run.calls == [SetShape(1000, 100)]


def test_a_second_key_builds_on_the_first() -> None:
    hand, run = hand_at(concurrency=64)
    hand.step(1)
    hand.step(1)
    assert hand.wanted.value == 66 and hand.wanted.unconfirmed
    assert run.calls == [SetConcurrency(65), SetConcurrency(66)]


def test_what_is_asked_stays_until_it_is_confirmed() -> None:
    hand, _ = hand_at(concurrency=64)
    hand.step(1)
    hand.step(1)
    hand.update(at(concurrency=65))
    assert hand.wanted.value == 66
    hand.update(at(concurrency=66))
    assert hand.wanted.value == 66 and not hand.wanted.unconfirmed


def test_a_wish_that_is_never_confirmed_is_dropped() -> None:
    hand, _ = hand_at(concurrency=64)
    hand.request(100)
    for _ in range(PATIENCE + 1):
        hand.update(at(concurrency=64))
    assert hand.wanted.value == 64 and not hand.wanted.unconfirmed


def test_pause_twice_is_pause_and_go_on() -> None:
    hand, run = hand_at(concurrency=64)
    hand.toggle_pause()
    assert hand.wanted.paused
    hand.toggle_pause()
    assert run.calls == [Pause(), Resume()]


def test_once_the_plan_is_done_the_same_load_begins_anew_and_nothing_can_be_paused() -> None:
    hand, run = hand_at(concurrency=64)
    hand.update(msgspec.structs.replace(at(concurrency=64), phase="holding"))
    hand.request(64)
    hand.toggle_pause()
    assert not hand.wanted.paused
    assert run.calls == [SetConcurrency(64), Pause()]


def test_without_a_target_the_last_stage_is_the_base() -> None:
    hand, run = hand_at()
    hand.step(1)
    assert run.calls == [SetConcurrency(65)]
