"""`python -m loadgen.telemetry`: one vendor's library in its own process, writing lines to stdout.

Nothing else is written there: whatever a library prints goes to fd 2, which the parent has connected to a log file.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

from loadgen.errors import VrampError
from loadgen.system import signal_when_parent_dies
from loadgen.telemetry.child import Orders, Output, serve
from loadgen.telemetry.protocol import Backend, Refused
from loadgen.vendors import VENDORS, BackendName, VendorName

_LOG_LIMIT_BYTES = 16 << 20


def parser() -> argparse.ArgumentParser:
    """Flags for the backend, its interval, the simulated one's behaviour, and a capture to play instead."""
    flags = argparse.ArgumentParser(prog="python -m loadgen.telemetry", allow_abbrev=False)
    flags.add_argument("--backend", choices=get_args(BackendName), required=True)
    flags.add_argument("--interval-s", type=float, default=1.0)
    flags.add_argument("--once", action="store_true", help="one sample, with the processes, and the end")
    flags.add_argument("--url", help="sim: the simulator whose load the GPUs carry; exporter: its page")
    flags.add_argument("--gpus", type=int, default=8, help="sim: how many")
    flags.add_argument("--replay", metavar="FILE", type=Path, help="play this capture, at its own pace")
    flags.add_argument("--vendor", choices=get_args(VendorName), help="whose part of it (default: the first)")
    return flags


def opener(options: argparse.Namespace) -> Callable[[], Backend]:
    """The function that opens the backend; nothing of another vendor is imported."""
    openers = {entry.name: entry.opener for vendor in VENDORS for entry in vendor.backends}
    if options.backend in openers:
        open_backend: Callable[[], Backend] = pkgutil.resolve_name(openers[options.backend])
        return open_backend
    if options.backend == "exporter":
        from loadgen.telemetry.exporter import open_exporter

        return partial(open_exporter, options.url)
    from loadgen.telemetry.sim import open_sim

    return partial(open_sim, url=options.url, gpus=options.gpus)


def main() -> int:
    """Serve until stdin ends; 1 if the backend does not work here, or the file is not a capture."""
    options = parser().parse_args()
    signal_when_parent_dies(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports its end; no traceback is needed
    output = Output(os.dup(1))
    os.dup2(2, 1)
    os.nice(5)
    # A library that prints in a loop must not fill the disk; output beyond this is lost.
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = _LOG_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(_LOG_LIMIT_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    orders = Orders()
    orders.follow(0)
    if options.replay is None:
        interval_s = None if options.once else options.interval_s
        return serve(options.backend, opener(options), output, orders, interval_s=interval_s)
    from loadgen.telemetry.capture import play

    try:
        play(options.replay, options.vendor, output, orders)
    except VrampError as error:
        output.offer(Refused(backend=options.backend, reason=str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
