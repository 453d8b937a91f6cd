"""A start as vLLM logs it: the milestones on stderr, spread over the time it takes, and the ways a start goes wrong.

Whoever watches a server reads these lines, so their wording is vLLM's; what they say is the simulator's own numbers.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import NoReturn

from loadgen.errors import ServerError
from loadgen.simulator.physics import Physics

SHARDS = 4
CHILD_LIFE_S = 600  # children that play the engine's processes end by themselves after this, in case nobody ends them
_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(float({}))"


def log(text: str, *, level: str = "INFO", source: str = "simulator.py:1") -> None:
    """One line the way vLLM writes it."""
    now = time.strftime("%m-%d %H:%M:%S")
    print(f"(APIServer pid={os.getpid()}) {level} {now} [{source}] {text}", file=sys.stderr, flush=True)


def uvicorn_log(text: str) -> None:
    """One line the way uvicorn writes it."""
    print(f"INFO:     {text}", file=sys.stderr, flush=True)


def milestones(physics: Physics, model: str) -> list[str]:
    """What a start says, in order, from after the banner until the port listens."""
    shards = [
        f"Loading safetensors checkpoint shards: {100 * done // SHARDS:3d}% Completed | {done}/{SHARDS}"
        for done in range(SHARDS + 1)
    ]
    seconds = physics.startup_s
    concurrency = physics.kv_tokens / physics.max_model_len
    return [
        "Resolved architecture: SimulatedForCausalLM",
        f"Using max model len {physics.max_model_len}",
        f"Chunked prefill is enabled with max_num_batched_tokens={physics.max_num_batched_tokens}.",
        f"Initializing a V1 LLM engine (v0.32.0) with config: model='{model}', max_seq_len={physics.max_model_len}",
        f"Starting to load model {model}...",
        *shards,
        f"Loading weights took {seconds * 0.4:.2f} seconds",
        f"Model loading took 14.99 GiB memory and {seconds * 0.5:.6f} seconds",
        "Warming up model for the compilation",
        f"torch.compile takes {seconds * 0.2:.2f} s in total",
        f"GPU KV cache size: {physics.kv_tokens:,} tokens, "
        f"Maximum concurrency for {physics.max_model_len:,} tokens per request: {concurrency:.2f}x",
        *(f"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): {done:3d}%" for done in (0, 50, 100)),
        f"Graph capturing finished in {seconds * 0.1:.0f} secs, took 0.52 GiB",
        f"init engine (profile, create kv cache, warmup model) took {seconds * 0.8:.2f} s",
    ]


async def start(physics: Physics, model: str, arguments: dict[str, object], *, fail: str | None, hang: bool) -> None:
    """Say the milestones over `startup_s` seconds; half way `hang` stops for good, and `fail` ends the process."""
    log("vLLM API server version 0.32.0 (simulated)", source="utils.py:325")
    log(f"non-default args: {arguments}", source="utils.py:261")
    lines = milestones(physics, model)
    for index, line in enumerate(lines):
        if index == len(lines) // 2:
            if hang:
                await asyncio.Event().wait()
            if fail is not None:
                _die(fail)
        log(line)
        if physics.startup_s:
            await asyncio.sleep(physics.startup_s / len(lines))


def _die(message: str) -> NoReturn:
    """What an engine that cannot start leaves behind."""
    log("EngineCore failed to start.", level="ERROR", source="core.py:936")
    for line in (
        "Traceback (most recent call last):",
        '  File "vllm/v1/engine/core.py", line 927, in run_engine_core',
        "    engine_core = EngineCoreProc(*args, **kwargs)",
        message,
    ):
        log(line, level="ERROR", source="core.py:936")
    raise ServerError("Engine core initialization failed. See root cause above.")


def spawn_children(count: int) -> "list[subprocess.Popen[bytes]]":
    """Idle processes in sessions of their own that ignore SIGTERM, as an engine's that outlive their server."""
    # Blocked while they start: they inherit that, so there is no moment at which a SIGTERM would end one.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        argv = [sys.executable, "-S", "-c", _CHILD.format(CHILD_LIFE_S)]
        names = ["VLLM::EngineCore", *(f"VLLM::Worker_TP{rank}" for rank in range(count - 1))][:count]
        return [subprocess.Popen([*argv, name], start_new_session=True, stdin=subprocess.DEVNULL) for name in names]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_children(children: "list[subprocess.Popen[bytes]]") -> None:
    """Kill them and wait for it."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()
