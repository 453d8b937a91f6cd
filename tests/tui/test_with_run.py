"""The keys on a real run: the cockpit, a run, its workers and the simulated engine, from start to result."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from loadgen.metrics.snapshot import Snapshot
from loadgen.profile import load_profile
from loadgen.run import Run
from tests.tui.cockpit import rows_of
from tui.app import Cockpit
from tui.screen import CockpitScreen

PROFILE = Path(__file__).parents[2] / "profiles" / "simulator.toml"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    profile = load_profile(PROFILE, ["server.args.startup-s=0.1", "load.duration=60s", "load.workers=1"])
    return Run(profile, where=str(PROFILE), hold_open=True)


async def until(pilot: Pilot[None], condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot drawn that fulfils a condition."""
    screen = pilot.app.screen_stack[0]
    assert isinstance(screen, CockpitScreen)
    while screen.snapshot is None or not condition(screen.snapshot):
        await pilot.pause(0.05)
    return screen.snapshot


async def test_a_run_in_the_operators_hand(run: Run) -> None:
    app = Cockpit(run)
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
        assert [stage.concurrency for stage in now.stages] == [8, 16, 16, 24]
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


async def test_ctrl_c_twice_aborts_and_the_partial_result_is_named(run: Run) -> None:
    app = Cockpit(run)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda now: now.phase == "running" and now.load.held == 8)
        await pilot.press("ctrl+c", "ctrl+c")
        await until(pilot, lambda now: now.phase == "done")
        await pilot.pause(0.05)
        assert re.search(r"run done  runs/\S+/result.json", "\n".join(rows_of(app)))
        await pilot.press("q")
        assert app._exit
    assert run.result is not None and run.result.state == "stopped"
