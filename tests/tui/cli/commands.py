"""`vramp` as scripts see it: its exit code and what it prints, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tui.cli.__main__ import main
from tui.cli.verbs import VERBS, Verb

ROOT = Path(__file__).parents[3]
VRAMP = [sys.executable, "-m", "tui.cli"]
SMALL = ["--isl", "16", "--osl", "8", "--workers", "1"]


def exit_code(*words: str) -> int:
    """The exit code of a command in this process: one of its own takes a second to start."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def verb(name: str) -> Verb:
    return next(verb for verb in VERBS if verb.name == name)


class Done(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


Said = Callable[..., Done]


def vramp(
    folder: Path, *words: str, shell: str = "", environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as `"$@"` of a shell's words if there are any."""
    before = ["/bin/sh", "-c", shell, "sh"] if shell else []
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.run(
        [*before, *VRAMP, *words], cwd=folder, env=env, text=True, timeout=60, check=False, **streams | options
    )


def start(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    return subprocess.Popen([*VRAMP, *words], cwd=folder, env=env, text=True, **streams | options)


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"never said {words!r}")


def on_a_full_disk(*words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command whose stdout cannot be written."""
    with Path("/dev/full").open("w") as full:
        return vramp(Path(), *words, environment=environment, stdout=full)
