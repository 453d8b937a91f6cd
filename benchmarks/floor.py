"""The least that a token costs: `floor.c`, built with the machine's compiler, as one of the clients that are compared.

A ratio to the floor means something on any machine; microseconds alone do not.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from loadgen.places import cache_folder
from loadgen.stream.request import common_fields, request_template
from loadgen.workload.prompts import token_prompts

_SOURCE = Path(__file__).with_name("floor.c")
_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "ignore_eos": True}


def build() -> Path | str:
    """Build the program; return its path, or why there is none."""
    compiler, program = shutil.which("cc"), cache_folder("peers") / "floor"
    if compiler is None:
        return "no cc on this machine"
    built = subprocess.run([compiler, "-O2", "-o", program, _SOURCE], capture_output=True, text=True, check=False)
    return f"cc failed: {built.stderr.strip()[:200]}" if built.returncode else program


def request(url: str, isl: int, osl: int) -> bytes:
    """Return the request that it sends again and again, which it reads from stdin."""
    fields = common_fields("completions", model=None, temperature=0.0, options=_USAGE, extra={})
    template = request_template(url, "completions", fields, osl=osl, api_key=None)
    return template.fill(token_prompts(range(1000, 2000), seed=1)(0, 0, isl))


def mean_ttft_ms(printed: str) -> float:
    """Return the mean TTFT that it saw, of what it prints: tokens, CPU seconds, wall seconds, TTFT."""
    return float(printed.split()[3])
