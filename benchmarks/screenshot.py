"""`make screenshot`: the README's pictures, taken from a real run on the simulator with an operator at the keys."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from loadgen.profile.document import load_profile
from loadgen.run.operations import Stop
from loadgen.run.run import Run
from tui.app import Cockpit

ROOT = Path(__file__).parents[1]
KEYS = ("]", "]", "m", "]", "[")
NOTE = "fans at full speed"
PICTURES = {"cockpit": (), "latency": ("3",), "curve": ("2",)}
"""File to the keys of its view, from the overview."""
_STAGE_S = 8


async def take() -> None:
    """Double the load a few times, halve it once, look at the views, stop."""
    overrides = ["load.seed=1", 'slo.ttft_p99="250ms"']
    run = Run(load_profile(ROOT / "profiles/simulator.toml", overrides), where="screenshot", hold_open=True)
    cockpit = Cockpit(run)
    async with cockpit.run_test(size=(160, 45)) as pilot:
        for key in KEYS:
            await asyncio.sleep(_STAGE_S)
            await pilot.press(key)
            if key == "m":
                await pilot.press(*(character if character != " " else "space" for character in NOTE), "enter")
        await asyncio.sleep(_STAGE_S)
        for name, keys in PICTURES.items():
            await _picture(pilot, cockpit, name, keys)
        run.apply(Stop())
        await run.close()


async def _picture(pilot: Pilot[None], cockpit: Cockpit, name: str, keys: tuple[str, ...]) -> None:
    await pilot.press("escape", "escape", *keys)
    await pilot.pause(1)
    (ROOT / f"docs/images/{name}.svg").write_text(cockpit.export_screenshot(title="vramp"), encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        asyncio.run(take())
