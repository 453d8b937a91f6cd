"""`python -m loadgen.simulator`: the simulator's command line, and its life from the first log line to the exit."""

import argparse
import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields, replace

import uvloop

from loadgen.errors import ProfileError, ServerError
from loadgen.simulator import startup
from loadgen.simulator.api import Api
from loadgen.simulator.faults import parse_fault
from loadgen.simulator.http import HttpServer
from loadgen.simulator.physics import PRESETS, Physics
from loadgen.simulator.service import Service, log_throughput


def parser() -> argparse.ArgumentParser:
    """Flags like `vllm serve`'s, every number of `Physics`, and what is to go wrong."""
    flags = argparse.ArgumentParser(prog="python -m loadgen.simulator", allow_abbrev=False)
    flags.add_argument("model", nargs="?", default="simulator", help="a name; nothing is loaded")
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, default=8000, help="0: any, see the log")
    flags.add_argument("--served-model-name", nargs="+", help="all but the first are told as if they were adapters")
    flags.add_argument("--api-key")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--preset", choices=PRESETS, default="default")
    flags.add_argument("--keep-alive-s", type=float, default=5.0, help="close idle connections after this")
    flags.add_argument(
        "--fault", action="append", default=[], metavar="KIND:key=value,...", help="see simulator/faults.py"
    )
    flags.add_argument("--enable-prefix-caching", dest="prefix_caching", action=argparse.BooleanOptionalAction)
    for field in fields(Physics):
        if field.name != "prefix_caching":
            flag = "--" + field.name.replace("_", "-")
            flags.add_argument(flag, type=type(field.default), help=f"of the preset if not given ({field.default})")
    flags.add_argument("--fail-startup", metavar="MESSAGE", help="die half way through the start")
    flags.add_argument("--hang-startup", action="store_true", help="never become ready")
    flags.add_argument("--spawn-children", type=int, default=0, metavar="N", help="processes that outlive a SIGTERM")
    flags.add_argument("--die-after-s", type=float, metavar="S", help="crash S seconds after the start")
    flags.add_argument("--ignore-sigterm", action="store_true")
    return flags


def physics_of(options: argparse.Namespace) -> Physics:
    """The preset with what the flags change."""
    given = {field.name: getattr(options, field.name) for field in fields(Physics)}
    return replace(PRESETS[options.preset], **{name: value for name, value in given.items() if value is not None})


async def serve(options: argparse.Namespace) -> None:
    """Start, serve until a signal, and stop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    children = startup.spawn_children(options.spawn_children)
    try:
        running = asyncio.ensure_future(_run(options, loop))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if running.done():
            running.result()
        running.cancel()
        await asyncio.wait((running,))
    finally:
        startup.end_children(children)


async def _run(options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> None:
    physics, (name, *adapters) = physics_of(options), options.served_model_name or [options.model]
    given = {key: value for key, value in vars(options).items() if value != parser().get_default(key)}
    given.pop("api_key", None)
    await startup.start(physics, options.model, given, fail=options.fail_startup, hang=options.hang_startup)
    faults = [parse_fault(text) for text in options.fault]
    service = Service(loop, physics, model=name, seed=options.seed, faults=faults)
    server = HttpServer(
        loop, Api(service, api_key=options.api_key, adapters=adapters).handle, keep_alive_s=options.keep_alive_s
    )
    port = server.listen(options.host, options.port)
    startup.log(f"Starting vLLM server on http://{options.host}:{port}", source="api_server.py:1034")
    startup.uvicorn_log(f"Started server process [{os.getpid()}]")
    startup.uvicorn_log("Waiting for application startup.")
    startup.uvicorn_log("Application startup complete.")
    if options.die_after_s is not None:
        loop.call_later(options.die_after_s, _crash)
    try:
        await log_throughput(service, startup.log)
    finally:
        startup.uvicorn_log("Shutting down")
        server.close()
        startup.uvicorn_log("Waiting for application shutdown.")
        startup.uvicorn_log("Application shutdown complete.")
        startup.uvicorn_log(f"Finished server process [{os.getpid()}]")


def _crash() -> None:
    startup.log("EngineCore encountered a fatal error: simulated by --die-after-s", level="ERROR", source="core.py:710")
    os._exit(1)


def main(words: Sequence[str] | None = None) -> None:
    """Run the simulator; a wrong flag exits with 2, a failed start with 1, a signal with 0."""
    options = parser().parse_args(words)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection is a descriptor
    # A full collection over thousands of open streams would take longer than a step.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        physics_of(options)
        [parse_fault(text) for text in options.fault]
    except ProfileError as error:
        parser().error(str(error))
    try:
        uvloop.run(serve(options))
    except (OSError, OverflowError, ServerError) as error:
        kind = "RuntimeError" if isinstance(error, ServerError) else "OSError"
        print(f"{kind}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
