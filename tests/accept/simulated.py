"""Short acceptances on the simulator: a profile, and how to carry one out in this process or in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.run.accept.acceptance import Acceptance, AcceptSettings
from loadgen.run.accept.phases import views
from loadgen.schema.accept_view import AcceptView
from loadgen.store.acceptance import demands_of, read_lines

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
EXACT = {"figure": "exact_match_percent", "at_least": 50.0, "source": "a test"}


def document(*phases: str, args: Mapping[str, Any] = MappingProxyType({}), **accept: Any) -> dict[str, Any]:
    """A profile of a server that starts in a second, with as little load as can be judged."""
    return {
        "name": "box",
        "telemetry": "off",
        "server": {"engine": "simulator", "args": {"preset": "fast", **args}},
        "load": {"isl": 16, "osl": 8, "concurrency": [2], "duration": "0.5s", "workers": 1, "seed": 1},
        "canary": {"interval_s": 0.02},
        "slo": {"ttft_p99": "10s"},
        "accept": {
            "phases": list(phases),
            "starts": 2,
            "burn_in": "0.5s",
            "question_count": 6,
            "criteria": [EXACT] if "output" in phases else [],
            **accept,
        },
    }


def toml(document: dict[str, Any]) -> str:
    """A document as TOML, with a line for each of its keys."""
    return "".join(f"{key} = {_inline(value)}\n" for key, value in document.items())


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(part)}" for key, part in value.items()) + "}"
    return "[" + ", ".join(map(_inline, value)) + "]" if isinstance(value, list) else json.dumps(value)


def profile(*phases: str, **changes: Any) -> Profile:
    return build_profile(document(*phases, **changes), where="box.toml")


def acceptance(parts: Profile, folder: Path | None = None, *, repeats: bool = False) -> Acceptance:
    demands, not_tested, _ = demands_of(parts)
    return Acceptance(
        AcceptSettings(profile=parts, where="box.toml", repeats=repeats, demands=demands, not_tested=not_tested), folder
    )


async def carried_out(one: Acceptance, act: Callable[[AcceptView], None] = lambda view: None) -> AcceptView:
    """Carry an acceptance out; `act` sees every state."""
    async for view in views(one):
        act(view)
    return view


def lines_of(folder: Path, kind: type[Any]) -> list[Any]:
    return [line for line in read_lines(folder) if isinstance(line, kind)]


def command(*words: str, wrapper: Sequence[str] = ()) -> subprocess.Popen[str]:
    """`vramp accept` in a process of its own, in the current folder."""
    arguments = [*wrapper, sys.executable, "-m", "tui.cli", "accept", "--headless", *words]
    return subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
