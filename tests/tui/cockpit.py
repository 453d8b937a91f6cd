"""A cockpit over a scripted run, and what it takes to look at it without sleeping."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from textual.pilot import Pilot

from loadgen.metrics.snapshot import Snapshot
from tests.tui.scripted import ScriptedRun
from tui.app import Cockpit
from tui.screen import CockpitScreen

DESIGN = (160, 45)


@dataclass
class Seat:
    """The operator's seat: eyes and hands."""

    app: Cockpit
    run: ScriptedRun
    pilot: Pilot[None]

    @property
    def screen(self) -> CockpitScreen:
        screen = self.app.screen_stack[0]
        assert isinstance(screen, CockpitScreen)
        return screen

    async def show(self, snapshot: Snapshot) -> None:
        """Publish a snapshot and wait until it is drawn."""
        self.run.show(snapshot)
        while self.screen.snapshot is not snapshot:
            await self.pilot.pause()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    @property
    def rows(self) -> list[str]:
        """The text of the screen."""
        return rows_of(self.app)

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        return self.run.calls


def rows_of(app: Cockpit) -> list[str]:
    """The text of the screen, a dialog over it included."""
    width, height = app.size
    strips = app.screen._compositor.render_strips(app.size)
    rows = [strip.text for strip in strips]
    assert len(rows) == height and all(len(row) <= width for row in rows)
    return rows


@asynccontextmanager
async def seated(size: tuple[int, int] = DESIGN) -> AsyncIterator[Seat]:
    """A cockpit on a scripted run."""
    run = ScriptedRun()
    app = Cockpit(run)
    async with app.run_test(size=size) as pilot:
        yield Seat(app, run, pilot)
