"""`make screenshot`: the README's picture, taken from a real run on the simulator with an operator at the keys."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from loadgen.profile import load_profile
from loadgen.run import Run
from tui.app import Cockpit

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "tui/cockpit.svg"
KEYS = ("]", "]", "]", "[")


async def take() -> None:
    """Double the load a few times, halve it once, keep the screen, stop."""
    run = Run(load_profile(ROOT / "profiles/simulator.toml", ["load.seed=1"]), where="screenshot", hold_open=True)
    cockpit = Cockpit(run)
    async with cockpit.run_test(size=(160, 45)) as pilot:
        for key in KEYS:
            await asyncio.sleep(6)
            await pilot.press(key)
        await asyncio.sleep(6)
        PICTURE.write_text(cockpit.export_screenshot(title="vramp"), encoding="utf-8")
        run.stop()
        await run.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        asyncio.run(take())
