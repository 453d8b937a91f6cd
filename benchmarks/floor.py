"""The least that a token costs: `floor.c`, built with the machine's compiler, beside what all of vramp uses.

A ratio of two figures of one run means something on any machine; microseconds alone do not. The floor and vramp drive
simulators of the same kind with the same requests, one after the other.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.watched import generated_tokens, tree_cpu_s
from loadgen.stream.request import common_fields, request_template
from loadgen.workload.prompts import token_prompts

SOURCE = Path(__file__).with_name("floor.c")
_WATCHED_S, _BEFORE_S = 8.0, 2.0
_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a client used for each token, and the mean TTFT that it saw."""

    us_per_token: float
    ttft_ms: float


HEAD = (
    "\nCPU of a token in us: the floor, vramp's workers and all its processes, with their ratios to the floor;"
    " mean TTFT minus truth in ms\n"
    f"{'streams':>7} {'floor':>7} {'workers':>8} {'ratio':>6} {'all':>7} {'ratio':>6} "
    f"{'floor TTFT':>11} {'vramp TTFT':>11}"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One load, as the floor and vramp drove it one after the other."""

    streams: int
    floor: Cost
    floor_truth_ms: float
    workers: Cost
    truth_ms: float
    whole_us: float

    def __str__(self) -> str:
        floor, workers = self.floor, self.workers
        return (
            f"{self.streams:>7} {floor.us_per_token:>7.2f} "
            f"{workers.us_per_token:>8.2f} {workers.us_per_token / floor.us_per_token:>6.2f} "
            f"{self.whole_us:>7.2f} {self.whole_us / floor.us_per_token:>6.2f} "
            f"{floor.ttft_ms - self.floor_truth_ms:>+11.3f} {workers.ttft_ms - self.truth_ms:>+11.3f}"
        )


def build(folder: Path) -> Path | str:
    """Build the program; return its path, or why there is none."""
    compiler = shutil.which("cc")
    if compiler is None:
        return "no cc on this machine"
    program = folder / "floor"
    built = subprocess.run([compiler, "-O2", "-o", program, SOURCE], capture_output=True, text=True, check=False)
    return f"cc failed: {built.stderr.strip()[:200]}" if built.returncode else program


async def run_floor(program: Path, url: str, streams: int, *, requests: int, isl: int, osl: int) -> Cost:
    """Run a closed loop of the floor; raises `SystemExit` if it fails, for example for lack of descriptors."""
    process = await asyncio.create_subprocess_exec(
        *floor_command(program, url, streams, requests=requests, osl=osl),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate(floor_request(url, isl, osl))
    if process.returncode:
        raise SystemExit("bench: the floor failed")
    return parse_floor(printed.decode())


def floor_command(program: Path, url: str, streams: int, *, requests: int, osl: int) -> list[str]:
    return [str(program), url.rpartition(":")[2], str(streams), str(requests), str(osl)]


def parse_floor(printed: str) -> Cost:
    tokens, cpu_s, _, ttft_ms = map(float, printed.split())
    return Cost(cpu_s / tokens * 1e6, ttft_ms)


def floor_request(url: str, isl: int, osl: int) -> bytes:
    fields = common_fields("completions", model=None, temperature=0.0, options=_USAGE, extra={})
    template = request_template(url, "completions", fields, osl=osl, api_key=None)
    return template.fill(token_prompts(range(1000, 2000), seed=1)(0, 0, isl))


async def whole_tool_us(url: str, streams: int, *, isl: int, osl: int) -> float:
    """Return the CPU per token of all processes of a headless `vramp run`, once its load flows."""
    load = f"--concurrency {streams} --duration {_BEFORE_S + _WATCHED_S + 2:g}s --isl {isl} --osl {osl} --workers 1"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tui.cli", "run", "--url", url, "--seed", "1", *load.split()),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with httpx.AsyncClient(trust_env=False) as client:
        while await generated_tokens(client, url) < streams:  # noqa: ASYNC110 - the server does not notify
            await asyncio.sleep(0.1)
        await asyncio.sleep(_BEFORE_S)
        cpu_s, tokens = sum(tree_cpu_s(process.pid).values()), await generated_tokens(client, url)
        await asyncio.sleep(_WATCHED_S)
        cpu_s = sum(tree_cpu_s(process.pid).values()) - cpu_s
        tokens = await generated_tokens(client, url) - tokens
    await process.wait()
    return cpu_s / tokens * 1e6
