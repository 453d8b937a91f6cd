"""Every key, through a terminal's eyes."""

import pytest
from textual.widgets import Input

from tests.tui.cockpit import seated
from tests.tui.scripted import running, starting
from tui import keys
from tui.dialogs import AskLeave, AskNote, AskNumber, Help
from tui.screen import CockpitScreen


@pytest.mark.parametrize(
    ("key", "call"),
    [
        ("+", ("set_concurrency", 65)),
        ("=", ("set_concurrency", 65)),
        ("up", ("set_concurrency", 65)),
        ("-", ("set_concurrency", 63)),
        ("down", ("set_concurrency", 63)),
        ("]", ("set_concurrency", 128)),
        ("[", ("set_concurrency", 32)),
        ("space", ("pause",)),
        (".", ("next_stage",)),
    ],
)
@pytest.mark.parametrize("phase", ["running", "holding"])
async def test_a_key_steers_the_run(key, call, phase):
    async with seated((80, 24)) as seat:
        await seat.show(running(phase=phase))
        await seat.press(key)
        assert seat.calls == [call]


async def test_the_wanted_number_changes_before_the_run_confirms_it():
    async with seated() as seat:
        await seat.show(running())
        await seat.press("]")
        assert "conc 128 ?" in seat.rows[0]
        await seat.press("+")
        assert "conc 129 ?" in seat.rows[0]


@pytest.mark.parametrize("key", ["+", "-", "]", "[", "n", "space", "."])
@pytest.mark.parametrize("snapshot", [starting(), running(phase="stopping"), running(phase="done")])
async def test_the_load_cannot_be_steered_before_and_after(key, snapshot):
    async with seated((80, 24)) as seat:
        await seat.show(snapshot)
        await seat.press(key)
        assert seat.calls == []
        assert seat.app.screen is seat.screen
        assert "The load cannot be changed" in next(note.message for note in seat.app._notifications)


async def test_number_is_asked_checked_and_set():
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("n")
        assert isinstance(seat.app.screen, AskNumber)
        await seat.press("0", "enter")
        assert "! a number from 1 up to 100000" in seat.text
        await seat.press("backspace", "2", "5", "x", "6", "enter")
        assert seat.calls == [("set_concurrency", 256)]
        assert seat.app.screen is seat.screen


async def test_note_is_asked_and_put():
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("m")
        assert isinstance(seat.app.screen, AskNote)
        seat.app.screen.query_one(Input).value = "fan [bold]swapped[/]"
        await seat.press("enter")
        assert seat.calls == [("note", "fan [bold]swapped[/]")]


@pytest.mark.parametrize(("key", "dialog"), [("n", AskNumber), ("m", AskNote), ("q", AskLeave), ("?", Help)])
async def test_esc_goes_back_and_changes_nothing(key, dialog):
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press(key)
        assert isinstance(seat.app.screen, dialog)
        await seat.press("escape")
        assert seat.app.screen is seat.screen
        await seat.press("escape", "escape")
        assert seat.app.is_running and seat.calls == []


async def test_help_names_every_key():
    async with seated((160, 60)) as seat:
        await seat.show(running())
        await seat.press("?")
        for binding in keys.ACTIONS:
            assert binding.tooltip and binding.id
            assert binding.tooltip[:30] in seat.text
        assert "ctrl+c" in seat.text and "Esc" in seat.text


@pytest.mark.parametrize(
    ("number", "shown"), [(1, "throughput"), (2, "TTFT ms"), (4, "streams"), (6, "load curve"), (7, "log")]
)
async def test_a_panel_fills_the_screen_and_goes_back(number, shown):
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press(str(number))
        assert shown in seat.rows[2] and seat.screen.maximized is not None
        await seat.press("escape")
        assert seat.screen.maximized is None
        await seat.press(str(number), str(number))
        assert seat.screen.maximized is None and "p99.9" in seat.text


async def test_the_log_takes_the_charts_place_and_gives_it_back():
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("l")
        assert "server log" in seat.text and "TTFT ms  p50" not in seat.text
        await seat.press("l")
        assert "server log" not in seat.text and "TTFT ms  p50" in seat.text


async def test_window_changes_the_time_axis():
    async with seated() as seat:
        await seat.show(running(1.0))
        await seat.show(running(222.0))
        await seat.press("w")
        assert "└2:45" in seat.text


@pytest.mark.parametrize(("key", "call"), [("f", "stop"), ("a", "abort")])
async def test_q_asks_once_ends_the_run_and_leaves_when_it_is_over(key, call):
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("q")
        assert "A run is live" in seat.text
        await seat.press(key)
        assert seat.calls == [(call,)]
        assert ("finishing" if call == "stop" else "aborting") in seat.text and not seat.app._exit
        await seat.show(running(phase="stopping"))
        assert not seat.app._exit
        seat.run.show(running(phase="done", result_path="x"))
        seat.run.finish()
        while not seat.app._exit:
            await seat.pilot.pause()


async def test_q_and_go_on():
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("q", "g")
        assert seat.app.screen is seat.screen and seat.calls == []


async def test_q_leaves_at_once_when_done():
    async with seated((80, 24)) as seat:
        await seat.show(running(phase="done"))
        await seat.press("q")
        assert seat.app._exit and seat.calls == []


async def test_ctrl_q_asks_too():
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("ctrl+q")
        assert isinstance(seat.app.screen, AskLeave) and seat.calls == []


async def test_ctrl_c_finishes_twice_aborts_and_thrice_leaves():
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press("ctrl+c")
        assert seat.calls == [("stop",)]
        assert "ctrl+c again aborts" in seat.text and not seat.app._exit
        await seat.press("ctrl+c")
        assert seat.calls == [("stop",), ("abort",)] and not seat.app._exit
        await seat.press("ctrl+c")
        assert seat.app._exit


@pytest.mark.parametrize("opener", ["n", "m", "?", "q", "ctrl+p"])
async def test_ctrl_c_works_over_every_dialog(opener):
    async with seated((80, 24)) as seat:
        await seat.show(running())
        await seat.press(opener)
        assert not isinstance(seat.app.screen, CockpitScreen)
        await seat.press("ctrl+c")
        assert seat.calls == [("stop",)]


async def test_the_palette_has_the_same_actions_and_none_that_leaves_without_asking():
    async with seated() as seat:
        await seat.show(running())
        commands = {command.title: command for command in seat.app.get_system_commands(seat.screen)}
        assert {"one more (+)", "double (])", "pause (space)", "note (m)", "quit (q)", "theme"} <= set(commands)
        assert "Quit" not in commands
        await commands["double (])"].callback()
        assert seat.calls == [("set_concurrency", 128)]


async def test_the_palette_opens_and_runs():
    async with seated() as seat:
        await seat.show(running())
        await seat.press("ctrl+p")
        await seat.press(*"double")
        await seat.pilot.pause()
        await seat.app.workers.wait_for_complete([w for w in seat.app.workers if w.group != "feed"])
        await seat.press("enter")
        while not seat.calls:
            await seat.pilot.pause()
        assert seat.calls == [("set_concurrency", 128)]
