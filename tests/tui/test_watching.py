"""A cockpit that watches the run of another process, and leaves it unaffected."""

from __future__ import annotations

import pytest

from loadgen.run.operations import SetConcurrency
from tests.tui.cockpit import seated
from tests.tui.scripted import running, starting
from tui import keys


async def test_no_key_of_a_read_only_watcher_reaches_the_run() -> None:
    async with seated((80, 24), watching=True, read_only=True) as seat:
        await seat.show(starting(phase="blocked"))
        await seat.press("x")
        await seat.show(running())
        for binding in keys.COCKPIT:
            if binding.action == "leave" or binding.id is None or binding.id.endswith("_too"):
                continue
            await seat.press(binding.key.split(",")[0])
            if seat.dialog is not None:
                assert binding.action in ("help", "filter"), binding
                await seat.press("escape")
        assert seat.calls == []


async def test_a_refused_key_says_why_and_no_hint_offers_one() -> None:
    async with seated((160, 45), watching=True, read_only=True) as seat:
        for phase in ("running", "blocked", "failed", "holding"):
            await seat.show(running(phase=phase))
            assert "watching, read-only" in seat.rows[0] and "quit" in seat.rows[-1]
            for words in ("double", "x2", "number", "go on with load", "starts", "finishes"):
                assert words not in seat.text
        await seat.press("]")
        assert [note.message for note in seat.app._notifications] == ["watching: the load is steered elsewhere"]


async def test_a_watcher_that_may_steer_does() -> None:
    async with seated((120, 40), watching=True, read_only=False) as seat:
        await seat.show(running())
        await seat.press("]")
        assert seat.calls == [SetConcurrency(128)]
        await seat.show(running(phase="holding"))
        assert "set a new load, q leaves" in seat.text and "watching  " in "".join(seat.rows[:2])


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_leaving_asks_nothing_and_does_not_end_the_run(key: str) -> None:
    async with seated((80, 24), watching=True, read_only=False) as seat:
        await seat.show(running())
        await seat.press(key)
        await seat.until_left()
    assert seat.calls == []
