"""A finished run: made once by the real command, and copied to wherever a test needs one."""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = "20260102T030405Z-mine"
TOML = (
    '[server]\nengine = "simulator"\nserved_model_name = "tiny"\nargs = {preset = "fast"}\n'
    "[load]\nisl = 16\nosl = 8\nworkers = 1\nconcurrency = [1, 4]\nrequests = 20\n"
)


@cache
def _made() -> tempfile.TemporaryDirectory[str]:
    folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory(prefix="vramp-past-")
    (Path(folder.name) / "mine.toml").write_text(TOML)
    subprocess.run(
        [sys.executable, "-m", "tui.cli", "run", "mine.toml"],
        cwd=folder.name,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=True,
    )
    return folder


def leave_run(folder: Path, name: str = RUN) -> Path:
    """A copy of it in the `runs/` of a folder."""
    made = next((Path(_made().name) / "runs").iterdir())
    return Path(shutil.copytree(made, folder / "runs" / name))
