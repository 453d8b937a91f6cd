"""Every key of the cockpit, and what it sends to the run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.widgets import Input, OptionList, Static

from loadgen.run.operations import (
    Abort,
    NextStage,
    Note,
    Operation,
    Pause,
    Resume,
    SetConcurrency,
    SetRate,
    ShowProcesses,
    Stop,
)
from loadgen.schema.snapshot import Phase
from tests.tui.cockpit import seated
from tests.tui.scenes import watching
from tests.tui.scripted import running, starting
from tui import keys
from tui.config import Config
from tui.screens.dialogs import AskLeave, AskText, Help


async def test_every_load_key_reaches_the_run() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("+", "=", "up", "-", "down", "]", "[", "space", "space", ".")
        targets = [65, 66, 67, 66, 65, 130, 65]
        steered = [SetConcurrency(target) for target in targets]
        assert seat.calls == [*steered, Pause(), Resume(), NextStage()]
    async with seated((80, 24)) as seat:
        await seat.show(running(load=msgspec.structs.replace(running().load, concurrency=None, rate=2.5)))
        assert "rate 2.50/s" in seat.rows[1]
        await seat.press("+", "]")
        assert seat.calls == [SetRate(2.75), SetRate(5.5)]


async def test_wanted_number_changes_before_it_is_confirmed() -> None:
    async with seated() as seat:
        await seat.show(running(phase="holding"))
        await seat.press("]")
        assert "conc 128 ?" in seat.rows[0]
        await seat.press("+")
        assert "conc 129 ?" in seat.rows[0]
        assert seat.calls == [SetConcurrency(128), SetConcurrency(129)]


async def test_0_ends_the_load_of_either_loop_and_more_begins_it_again() -> None:
    async with seated((80, 24)) as seat:
        open_loop = msgspec.structs.replace(running().load, concurrency=None, rate=2.5)
        for load in (running().load, open_loop):
            await seat.show(running(load=load))
            await seat.press("0")
            assert "conc 0 ?" in seat.rows[1]
            await seat.show(watching(200.0))
            assert "no load" in seat.rows[1]
            await seat.press("+")
        assert seat.calls == [SetConcurrency(0), SetConcurrency(1)] * 2


async def test_the_load_cannot_be_changed_before_the_run_and_after() -> None:
    async with seated((80, 24)) as seat:
        for snapshot in (starting(), running(phase="stopping"), running(phase="done")):
            await seat.show(snapshot)
            seat.app.clear_notifications()
            await seat.press("+", "n", ".")
            assert seat.calls == [] and seat.dialog is None
            notes = [note.message for note in seat.app._notifications]
            assert len(notes) == 1 and notes[0].startswith("The load cannot be changed")


async def test_a_number_is_checked_and_set() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("n")
        assert isinstance(seat.dialog, AskText)
        await seat.press("minus", "1", "enter")
        assert "! a whole number from 0 up to 100,000" in seat.text
        await seat.press("backspace", "backspace", "2", "5", "x", "enter")
        assert seat.calls == []
        await seat.press("backspace", "6", "enter")
        assert seat.calls == [SetConcurrency(256)]
        assert seat.dialog is None


async def test_a_note_is_typed_and_sent() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("m")
        assert isinstance(seat.dialog, AskText)
        seat.app.screen.query_one(Input).value = "fan [bold]swapped[/]"
        await seat.press("enter")
        assert seat.calls == [Note("fan [bold]swapped[/]")]


LEAVING: list[tuple[dict[str, Any], int, list[str], bool]] = [
    # Our own server under load; left running at the end; before its load.
    ({"is_own": True}, 8, ["end the load, stop the server, write", "cut streams, kill the server, write"], False),
    ({"is_own": True, "stays": True}, 8, ["end the load, write", "cut streams, kill the server, write"], True),
    ({"is_own": True, "state": "starting"}, 0, ["stop the server, write", "kill the server, write"], False),
    # Somebody else's, with our load and without.
    ({"engine": "attach"}, 8, ["end the load, write", "cut streams, write"], True),
    ({"engine": "attach"}, 0, ["write the result"], True),
    # None: blocked before its start, dead, or a box without one.
    ({"state": "starting"}, 0, ["write the result"], False),
    ({"state": "died"}, 0, ["write the result"], False),
    ({"engine": "none", "state": "stopped"}, 0, ["write the result"], False),
]
"""A server, the streams held, what is offered, and whether it is said that the server goes on."""


async def test_leaving_offers_only_what_can_happen() -> None:
    async with seated((120, 30)) as seat:
        now = running()
        for server, held, offered, goes_on in LEAVING:
            load = msgspec.structs.replace(now.load, held=held)
            shown = msgspec.structs.replace(now.server, **server)
            await seat.show(msgspec.structs.replace(now, server=shown, load=load))
            await seat.press("q")
            choices = [str(option.prompt) for option in seat.app.screen.query_one(OptionList).options]
            assert choices[-1] == "g  go on"
            assert [words in choice for words, choice in zip(offered, choices[:-1], strict=True)] == [True] * len(
                offered
            )
            question = str(seat.app.screen.query_one(".question", Static).render())
            assert ("goes on when vramp has left" in question) is goes_on
            await seat.press("escape")


async def test_leaving_names_the_keys_as_they_are_bound() -> None:
    async with seated((120, 30), config=Config(keys={"leave.stop": "f5"})) as seat:
        await seat.show(running())
        await seat.press("q")
        choices = [str(option.prompt) for option in seat.app.screen.query_one(OptionList).options]
        assert choices[0].startswith("f5  finish") and choices[-1] == "g  go on"


async def test_esc_goes_back_and_changes_nothing() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        for key, dialog in (("n", AskText), ("ctrl+q", AskLeave)):
            await seat.press(key)
            assert isinstance(seat.dialog, dialog)
            await seat.press("escape")
            assert seat.dialog is None
        await seat.press("q", "g", "escape", "escape")
        assert not seat.has_left() and seat.calls == []


async def test_help_names_every_key() -> None:
    async with seated((160, 80)) as seat:
        await seat.show(running())
        await seat.press("?")
        assert isinstance(seat.dialog, Help)
        for binding in (*keys.COCKPIT, *keys.LOG):
            assert binding.tooltip and binding.id
            assert binding.tooltip[:30] in seat.text
        assert "ctrl+c" in seat.text and "escape" in seat.text


async def test_hints_name_the_keys_that_were_moved() -> None:
    moved = {binding.id or "": chr(place) for place, binding in enumerate(keys.COCKPIT, start=0x100)}
    phases: tuple[Phase, ...] = ("running", "holding", "failed", "blocked")
    for size in ((80, 24), (240, 60)):
        async with seated(size, config=Config(keys=moved)) as seat:
            for phase in phases:
                await seat.show(running(phase=phase))
                bar = seat.rows[-1]
                assert f" {moved['cockpit.more']}{moved['cockpit.less']} one" in bar
                assert f" {moved['cockpit.leave']} quit  {moved['cockpit.help']} help" in bar
                if phase == "holding":
                    assert f"{moved['cockpit.number']} set a new load, {moved['cockpit.leave']} finishes" in seat.text
                if phase == "failed":
                    assert f"there is no server: {moved['cockpit.restart']} restarts it" in seat.text
                if phase == "blocked":
                    assert f"the start would fail: {moved['cockpit.start_anyway']} starts anyway" in seat.text


async def test_views_come_and_go_and_grow() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running(1.0))
        await seat.show(running())
        for key, shown in (("2", "by streams held"), ("3", "by percentile"), ("5", "KV cache %"), ("6", "server log")):
            await seat.press(key)
            assert shown in seat.text and "held    64" in seat.text and "throughput tok/s" not in seat.text
            await seat.press(key)
            assert shown in seat.rows[2] and "held    64" not in seat.text
            await seat.press("escape")
            assert shown in seat.text and "held    64" in seat.text
        await seat.press("escape")
        assert "throughput tok/s" in seat.text and "p99.9" in seat.text
        await seat.press("z")
        assert "throughput tok/s" in seat.rows[2]
        await seat.press("z", "w")
        assert "└2:20" in seat.text


async def test_processes_are_requested_only_in_the_view_of_the_gpus() -> None:
    async with seated() as seat:
        await seat.show(running())
        assert seat.calls == []
        await seat.press("4")
        await seat.show(running(101.0))
        await seat.show(running(102.0))
        assert seat.calls == [ShowProcesses()]


@pytest.mark.parametrize(("key", "requested"), [("f", Stop()), ("a", Abort())])
async def test_q_asks_once_ends_the_run_and_leaves_when_it_is_over(key: str, requested: Operation) -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("q")
        assert "A run is live" in seat.text
        await seat.press(key)
        assert seat.calls == [requested]
        assert ("finishing" if requested == Stop() else "aborting") in seat.text and not seat.has_left()
        await seat.show(running(phase="stopping"))
        assert not seat.has_left()
        seat.run.show(running(phase="done", result_path="x"))
        seat.run.finish()
        await seat.until_left()


async def test_ctrl_c_finishes_then_aborts_then_leaves_over_a_dialog_too() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("n", "ctrl+c")
        assert seat.calls == [Stop()] and seat.dialog is None
        assert "ctrl+c again aborts" in seat.text and not seat.has_left()
        await seat.press("ctrl+c")
        assert seat.calls == [Stop(), Abort()] and not seat.has_left()
        await seat.press("ctrl+c")
        assert seat.has_left()


async def test_palette_has_the_same_actions() -> None:
    async with seated() as seat:
        await seat.show(running())
        commands = {command.title: command for command in seat.app.get_system_commands(seat.screen)}
        assert {"one more (+)", "double (])", "pause (space)", "note (m)", "quit (q)", "theme"} <= set(commands)
        assert "Quit" not in commands
        await seat.press("ctrl+p", *"double")
        found = seat.app.screen.query_one(OptionList)
        while not found.option_count:
            await seat.pilot.pause(0.01)
        await seat.press("down", "enter")
        while not seat.calls:
            await seat.pilot.pause(0.01)
        assert seat.calls == [SetConcurrency(128)]


async def test_a_click_on_a_key_is_that_key() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        row = seat.rows[-1]
        assert row.rstrip().endswith("? help")
        for offset in (row.index("+"), row.index("]"), row.index("space") + 2, row.index("one")):
            await seat.pilot.click("#keys", offset=(offset, 0))
        assert seat.calls == [SetConcurrency(65), SetConcurrency(130), Pause()]
