"""`python -m loadgen.simulator`: the simulator's command line and lifecycle, from the first log line to the exit.

A start logs what vLLM logs: the milestones on stderr, spread over its duration, or one of the ways in which a start
fails. Code that watches servers reads these lines, so the wording is vLLM's; the figures are the simulator's own.
"""

import argparse
import asyncio
import gc
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from typing import NoReturn

import uvloop

from loadgen.errors import ProfileError, ServerError
from loadgen.simulator.api import Api
from loadgen.simulator.faults import KINDS, parse_fault
from loadgen.simulator.http import HttpServer
from loadgen.simulator.physics import PRESETS, Physics
from loadgen.simulator.service import Service, log_throughput
from loadgen.system import map_large_blocks, raise_open_files
from loadgen.until import until

SHARDS = 4
_LEAK_EVERY_S = 0.2
# Children that stand for the engine's processes exit after ten minutes at the latest.
_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def log(text: str, *, level: str = "INFO", source: str = "simulator.py:1") -> None:
    """Log one line in vLLM's format."""
    now = time.strftime("%m-%d %H:%M:%S")
    print(f"(APIServer pid={os.getpid()}) {level} {now} [{source}] {text}", file=sys.stderr, flush=True)


def uvicorn_log(text: str) -> None:
    """Log one line in uvicorn's format."""
    print(f"INFO:     {text}", file=sys.stderr, flush=True)


def milestones(physics: Physics, model: str) -> list[str]:
    """The log lines of a start in order, from after the banner until the port listens."""
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
    """Log the milestones over `startup_s` seconds; half way, `hang` stops forever and `fail` ends the process."""
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
    """Log what vLLM logs when the engine cannot start, and raise."""
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
    """Start idle processes in separate sessions that ignore SIGTERM, like engine processes that outlive a server."""
    # Blocked while they start: they inherit the mask, so a SIGTERM never finds them unprepared.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        argv = [sys.executable, "-S", "-c", _CHILD]
        names = ["VLLM::EngineCore", *(f"VLLM::Worker_TP{rank}" for rank in range(count - 1))][:count]
        return [subprocess.Popen([*argv, name], start_new_session=True, stdin=subprocess.DEVNULL) for name in names]
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def main_parser() -> argparse.ArgumentParser:
    """Flags like those of `vllm serve`, one per field of `Physics`, and faults; each switch has its `--no-`."""
    flags = argparse.ArgumentParser(prog="vramp simulate", allow_abbrev=False)
    flags.add_argument("model", nargs="?", default="simulator", help="a name; nothing is loaded")
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, default=8000, help="0: any, see the log")
    flags.add_argument("--served-model-name", nargs="+", help="all but the first are listed as adapters")
    flags.add_argument("--api-key")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--preset", choices=PRESETS, default="default")
    flags.add_argument("--keep-alive-s", type=_finite, default=5.0, help="close idle connections after this")
    flags.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND:key=value,...",
        help=f"requests that go wrong, such as kernel:nth=30, http_500:share=0.1; kinds: {', '.join(KINDS)}; what "
        "each does and takes is at the top of loadgen/simulator/faults.py",
    )
    flags.add_argument("--enable-prefix-caching", dest="prefix_caching", action=argparse.BooleanOptionalAction)
    flags.add_argument(
        "--enable-prompt-tokens-details",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="cached tokens in usage",
    )
    flags.add_argument(
        "--session-tokens",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="answers carry x-session-token, as a router's do",
    )
    flags.add_argument("--enable-mfu-metrics", dest="mfu_metrics", action=argparse.BooleanOptionalAction)
    # So that a recipe can be tried without its GPUs: `--set server.engine="simulator"`.
    for flag in ("--dtype", "--kv-cache-dtype", "--gpu-memory-utilization"):
        flags.add_argument(flag, help="accepted and ignored")
    flags.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, help="accepted and ignored")
    for field in fields(Physics):
        if field.name not in ("prefix_caching", "mfu_metrics"):
            flag = "--" + field.name.replace("_", "-")
            kind = _finite if isinstance(field.default, float) else type(field.default)
            flags.add_argument(flag, type=kind, help=f"of the preset if not given ({field.default})")
    flags.add_argument("--fail-startup", metavar="MESSAGE", help="die half way through the start")
    flags.add_argument(
        "--hang-startup", action=argparse.BooleanOptionalAction, default=False, help="never become ready"
    )
    flags.add_argument("--spawn-children", type=int, default=0, metavar="N", help="processes that outlive a SIGTERM")
    flags.add_argument("--die-after-s", type=_finite, metavar="S", help="crash S seconds after the start")
    flags.add_argument("--leak-mib-per-s", type=_finite, default=0.0, metavar="MIB", help="memory that is never freed")
    flags.add_argument("--ignore-sigterm", action=argparse.BooleanOptionalAction, default=False)
    return flags


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text}: expected a finite number")
    return number


def physics_of(options: argparse.Namespace) -> Physics:
    given = {field.name: getattr(options, field.name) for field in fields(Physics)}
    return replace(PRESETS[options.preset], **{name: value for name, value in given.items() if value is not None})


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    children = spawn_children(options.spawn_children)
    try:
        await until(stop, _run(options, loop))
    finally:
        for child in children:
            child.kill()
            child.wait()


async def _run(options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> None:
    physics, (name, *adapters) = physics_of(options), options.served_model_name or [options.model]
    given = {key: value for key, value in vars(options).items() if value != main_parser().get_default(key)}
    given.pop("api_key", None)
    await start(physics, options.model, given, fail=options.fail_startup, hang=options.hang_startup)
    faults = [parse_fault(text) for text in options.fault]
    service = Service(loop, physics, model=name, seed=options.seed, faults=faults)
    service.log = log
    api = Api(
        service,
        api_key=options.api_key,
        adapters=adapters,
        prompt_tokens_details=options.enable_prompt_tokens_details,
        session_tokens=options.session_tokens,
    )
    server = HttpServer(loop, api.handle, keep_alive_s=options.keep_alive_s)
    port = server.listen(options.host, options.port)
    log(f"Starting vLLM server on http://{options.host}:{port}", source="api_server.py:1034")
    uvicorn_log(f"Started server process [{os.getpid()}]")
    uvicorn_log("Waiting for application startup.")
    uvicorn_log("Application startup complete.")

    def crash() -> None:
        log("EngineCore encountered a fatal error: simulated by --die-after-s", level="ERROR", source="core.py:710")
        os._exit(1)

    lost: list[bytes] = []

    def leak() -> None:
        lost.append(os.urandom(int(options.leak_mib_per_s * 2**20 * _LEAK_EVERY_S)))  # zeros would take no memory
        loop.call_later(_LEAK_EVERY_S, leak)

    if options.die_after_s is not None:
        loop.call_later(options.die_after_s, crash)
    if options.leak_mib_per_s:
        leak()
    try:
        await log_throughput(service, log)
    finally:
        uvicorn_log("Shutting down")
        server.close()
        uvicorn_log("Waiting for application shutdown.")
        uvicorn_log("Application shutdown complete.")
        uvicorn_log(f"Finished server process [{os.getpid()}]")


def main(options: argparse.Namespace | None = None) -> None:
    """Run the simulator; a wrong flag exits with 2, a failed start with 1, a signal with 0."""
    options = options or main_parser().parse_args()
    raise_open_files()
    map_large_blocks()
    # A full collection over thousands of open streams would take longer than a step.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        physics_of(options)
        [parse_fault(text) for text in options.fault]
    except ProfileError as error:
        main_parser().error(str(error))
    try:
        uvloop.run(serve(options))
    except (OSError, OverflowError, UnicodeError, ServerError) as error:
        kind = "RuntimeError" if isinstance(error, ServerError) else "OSError"
        print(f"{kind}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
