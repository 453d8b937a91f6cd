"""The keys on a real run: the cockpit, a run, its workers and the simulated engine, from start to result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from loadgen.profile.document import load_profile
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings
from loadgen.schema.snapshot import Snapshot
from loadgen.server.process.records import forget, record_path
from loadgen.server.process.tree import lives
from tests.run.driving import left_behind
from tests.server.fakes import sleeping, write_record
from tests.tui.cockpit import rows_of
from tui.app import Cockpit
from tui.screens.cockpit import CockpitScreen
from tui.screens.dialogs import AskOrphans

PROFILE = Path(__file__).parents[2] / "profiles" / "simulator.toml"
SLOTS = {"wide": 64, "narrow": 8}


@pytest.fixture
def run() -> Run:
    words = ["server.args.startup-s=0.1", "load.duration=60s", "load.workers=1", "load.osl=32"]
    return Run(RunSettings(load_profile(PROFILE, words), where=str(PROFILE), hold_open=True))


async def until(pilot: Pilot[None], condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot drawn that fulfils a condition."""
    screen = pilot.app.screen_stack[0]
    assert isinstance(screen, CockpitScreen)
    while screen.snapshot is None or not condition(screen.snapshot):
        await pilot.pause(0.05)
    return screen.snapshot


async def test_a_run_in_the_operators_hand(run: Run) -> None:
    app = Cockpit(CockpitScreen(run))
    async with app.run_test(size=(160, 45)) as pilot:
        await until(pilot, lambda now: now.phase == "running" and now.load.held == 8)
        await pilot.press("]")
        assert "conc 16" in rows_of(app)[0]
        await until(pilot, lambda now: now.load.concurrency == 16 and now.load.held == 16)
        assert "conc 16  " in rows_of(app)[0]
        await pilot.press("space")
        await until(pilot, lambda now: now.phase == "paused")
        await pilot.press("space")
        await until(pilot, lambda now: now.phase == "running")
        await pilot.press("n", *"24", "enter")
        await until(pilot, lambda now: now.load.concurrency == 24)
        await pilot.press("m", *"fan", "enter")
        now = await until(pilot, lambda now: any(event.kind == "note" for event in now.events))
        assert [stage.target.concurrency for stage in now.stages] == [8, 16, 16, 24]
        await pilot.press(".")
        await until(pilot, lambda now: now.load.concurrency == 32)
        await pilot.press("q", "f")
        while not app._exit:
            await pilot.pause(0.05)
    assert app.failure is None
    assert run.result is not None and run.result.state == "stopped"
    assert [event.kind for event in run.result.events if event.kind != "server"] == [
        "load", "pause", "resume", "load", "note", "load",
    ]  # fmt: skip
    assert run.result_paths[0].exists()


async def typed(pilot: Pilot[None], key: str, text: str) -> None:
    """Ask by a key, and answer in the dialog in place of what is there."""
    await pilot.press(key)
    pilot.app.screen.query_one(Input).value = text
    await pilot.press("enter")


def texts(run: Run, kind: str) -> list[str]:
    assert run.result is not None
    return [event.text for event in run.result.events if event.kind == kind]


async def test_every_larger_change_of_the_load(run: Run) -> None:
    app = Cockpit(CockpitScreen(run))
    async with app.run_test(size=(160, 45)) as pilot:
        await until(pilot, lambda now: now.load.held == 8)
        await pilot.press("h")
        await until(pilot, lambda now: now.load.held_open)
        await pilot.pause(0)
        assert "held open" in "\n".join(rows_of(app))
        # Until it was measured for long enough to know E2E, it would go on for what is left of that.
        await until(
            pilot, lambda _: run._writer.record.current is not None and run._writer.record.current.e2e_needs_s == 0
        )
        await pilot.press("e")
        await until(pilot, lambda now: not now.load.held_open)
        await pilot.press("u")
        await until(pilot, lambda now: len(now.stages) == 2)
        await typed(pilot, "s", "64/16")
        # On a machine that is busy, the header has no room next to the words on the client.
        assert "64/16" in rows_of(app)[0] or "client-limited" in rows_of(app)[0]
        await until(pilot, lambda now: (now.load.isl, now.load.osl) == (64, 16))
        await typed(pilot, "o", "20")
        assert "rate 20/s" in rows_of(app)[0] or "client-limited" in rows_of(app)[0]
        await until(pilot, lambda now: now.load.rate == 20)
        await pilot.press("k", "enter")
        await until(pilot, lambda now: now.events[-1].kind == "error")
        await typed(pilot, "o", "5")
        await until(pilot, lambda now: now.load.concurrency == 5)
        await typed(pilot, "r", "8 16")
        assert "! 8 16: not a number" in "\n".join(rows_of(app))
        await pilot.press("escape")
        await typed(pilot, "r", "2, 3 each 200ms")
        await until(pilot, lambda now: now.phase == "holding")
        await typed(pilot, "r", "6 in 500ms")
        await until(pilot, lambda now: now.phase == "holding" and now.load.concurrency == 6)
        await pilot.press("k", "enter")
        await until(pilot, lambda now: now.phase == "running" and now.load.concurrency == 1)
        await pilot.press("q", "a")
        while not app._exit:
            await pilot.pause(0.05)
    assert texts(run, "load") == [
        "conc 8 is held",
        "conc 8 extended by 60 s",
        "conc 8 is measured again",
        "conc 8 -> shape 64/16",
        "conc 8 -> rate 20/s",
        "rate 20/s -> conc 5",
        "ladder 2, 3, 0.2 s each from here",
        "ramp to 6 in 0.5 s from here",
        "search for the knee from here",
    ]
    (refused,) = texts(run, "error")
    assert refused.startswith('plan refused: search = "knee" goes by concurrency')
    assert run.result is not None
    ladder = [stage.target.concurrency for stage in run.result.stages]
    assert ladder == [8, 8, 8, None, 5, 2, 3, 3, 1]  # a ramp is one stage, from where the load stood
    assert {(stage.isl, stage.osl) for stage in run.result.stages[2:]} == {(64, 16)}


async def test_the_server_started_anew_as_a_variant() -> None:
    words = ["load.duration=60s", "load.workers=1", "server.args.preset=fast", "server.args.startup-s=0.1"]
    variants = {name: load_profile(PROFILE, [*words, f"server.args.max-num-seqs={n}"]) for name, n in SLOTS.items()}
    run = Run(RunSettings(variants["wide"], where=str(PROFILE), hold_open=True, variant="wide", variants=variants))
    app = Cockpit(CockpitScreen(run))
    async with app.run_test(size=(160, 45)) as pilot:
        await until(pilot, lambda now: now.load.held == 8)
        # The first choice is to leave it.
        await pilot.press("R", "enter")
        await pilot.press("R")
        assert "restart it as it is, wide" in "\n".join(rows_of(app))
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda now: now.server.variant == "narrow" and now.load.held == 8)
        await pilot.press("q", "f")
        while not app._exit:
            await pilot.pause(0.05)
    assert run.result is not None
    assert [(stage.variant, stage.target.concurrency) for stage in run.result.stages] == [("wide", 8), ("narrow", 8)]
    assert [text for text in texts(run, "server") if "restart" in text] == ["restart by the operator, variant narrow"]
    assert left_behind() == []


@pytest.mark.parametrize(("key", "ended"), [("e", True), ("g", False)])
async def test_what_an_earlier_vramp_left_is_asked_about_before_anything_starts(
    run: Run, key: str, ended: bool
) -> None:
    with sleeping() as process:
        record = write_record(8000, server=process, tree=[process])
        app = Cockpit(CockpitScreen(run), orphans=[record])
        async with app.run_test(size=(160, 45)) as pilot:
            await pilot.pause()
            assert isinstance(app.screen, AskOrphans)
            assert f"left behind on port 8000, profile p: pid {process.pid} (sleep)" in "\n".join(rows_of(app))
            assert not run.folder.joinpath("server.log").exists()
            await pilot.press(key)
            await until(pilot, lambda now: now.phase == "running")
            assert lives(process) == (not ended)
            assert record_path(record.mark).exists() == (not ended)
            await pilot.press("q", "f")
            while not app._exit:
                await pilot.pause(0.05)
        await app.close_runs()
    forget(record.mark)


async def test_ctrl_c_at_that_question_leaves_it_and_ends_the_run(run: Run) -> None:
    record = write_record(8000)
    app = Cockpit(CockpitScreen(run), orphans=[record])
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen, AskOrphans)
        await pilot.press("ctrl+c")
        await app.workers.wait_for_complete()
        assert run.result is not None and run.result.reason == "stopped by the operator"
    assert not run.folder.joinpath("server.log").exists()
    forget(record.mark)
