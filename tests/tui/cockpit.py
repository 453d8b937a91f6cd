"""A cockpit over a scripted run, and what it takes to look at it without sleeping."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from loadgen.schema.snapshot import Snapshot
from tests.tui.scripted import ScriptedRun
from tui.app import Cockpit
from tui.config import DEFAULTS, Config
from tui.screens.cockpit import CockpitScreen

DESIGN = (160, 45)


@dataclass
class Seat:
    """The operator's seat: eyes and hands."""

    app: Cockpit
    pilot: Pilot[None]
    run: ScriptedRun = field(default_factory=ScriptedRun)

    @property
    def screen(self) -> CockpitScreen:
        screen = self.app.screen_stack[0]
        assert isinstance(screen, CockpitScreen)
        return screen

    async def show(self, snapshot: Snapshot) -> None:
        """Publish a snapshot and wait until it is drawn."""
        self.run.show(snapshot)
        while self.screen.snapshot is not snapshot:
            await self.settle()
        await self.settle()

    async def settle(self) -> None:
        """Until everything that was posted is handled and drawn."""
        await self.pilot.pause(0)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    def has_left(self) -> bool:
        """Whether the app wants to exit."""
        return self.app._exit

    async def until_left(self) -> None:
        while not self.has_left():
            await self.settle()

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"never came to be:\n{self.text}")

    async def sees(self, words: str) -> None:
        await self.until(lambda: words in self.text)
        await self.pilot.pause()  # a pane gets its words before the layout gives it all its rows

    async def on(self, screen: type) -> None:
        await self.until(lambda: isinstance(self.app.screen, screen))

    @property
    def dialog(self) -> Screen[Any] | None:
        top: Screen[Any] = self.app.screen
        return None if top is self.screen else top

    @property
    def rows(self) -> list[str]:
        return rows_of(self.app)

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def calls(self) -> list[object]:
        return self.run.calls


def rows_of(app: Cockpit) -> list[str]:
    """The text of the screen, a dialog over it included."""
    width, height = app.size
    strips = app.screen._compositor.render_strips(app.size)
    rows = [strip.text for strip in strips]
    assert len(rows) == height and all(len(row) <= width for row in rows)
    return rows


@asynccontextmanager
async def seated(
    size: tuple[int, int] = DESIGN, run: ScriptedRun | None = None, *, config: Config = DEFAULTS, **settings: Any
) -> AsyncIterator[Seat]:
    """A cockpit on a scripted run; because that does not beat by itself, what it shows never grows stale."""
    run = run or ScriptedRun()
    app = Cockpit(CockpitScreen(run, **settings), config=config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tui.panels.frame.STALE_AFTER_S", 3600.0)
        async with app.run_test(size=size) as pilot:
            yield Seat(app, pilot, run)
