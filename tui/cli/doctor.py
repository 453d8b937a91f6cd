"""`vramp doctor`: what this box and this installation can measure, and why not. It reads, and changes nothing."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from loadgen.errors import ProfileError, TelemetryError
from loadgen.format import harmless
from loadgen.vendors import BackendName

if TYPE_CHECKING:
    from loadgen.metrics.samples import Examination
    from loadgen.telemetry.doctor import BackendTrial

_INTERRUPTED = 130


def doctor(words: list[str]) -> int:
    """Print what was found; 1 if there are GPUs, or some were asked for, and nothing measures them."""
    options = _parser().parse_args(words)
    import asyncio

    from loadgen.report.doctor import doctor_json, doctor_text
    from loadgen.telemetry.doctor import DUMP_PACE, Pace, examine

    if options.dump is not None:
        _require_writable(options.dump)
    pace = Pace() if options.dump is None else DUMP_PACE
    try:
        with tempfile.TemporaryDirectory(prefix="vramp-doctor-") as folder:
            found, visits = asyncio.run(examine(options.telemetry, folder=Path(folder), pace=pace))
    except KeyboardInterrupt:
        return _INTERRUPTED
    print(harmless(doctor_json(found) if options.json else doctor_text(found)))
    if options.dump is not None:
        _dump(options.dump, found, visits)
    return TelemetryError.exit_code if found.unmeasured else 0


def _dump(path: Path, found: Examination, visits: list[BackendTrial]) -> None:
    from loadgen.server.process.masking import masked_environment
    from loadgen.telemetry.capture import write_capture
    from loadgen.telemetry.doctor import header_of, part_of

    header = header_of(found, masked_environment(os.environ), datetime.now(UTC).isoformat(timespec="seconds"))
    write_capture(path, header, [part_of(visit) for visit in visits])
    print(harmless(f"capture: {path}"), file=sys.stderr)


def _require_writable(path: Path) -> None:
    """Ten seconds of looking should not be lost to a misspelt folder."""
    if path.is_dir():
        raise ProfileError(f"--dump {path}: is a folder; --dump takes the name of a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ProfileError(f"--dump {path}: cannot be written there; name a file in a folder that exists and is yours")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp doctor",
        description="What this box and this installation can measure, and why not. It reads, and changes nothing.",
        epilog="exit codes: 0 GPUs are measured, or there are none; 1 nothing measures those of a vendor; 2 usage",
    )
    parser.add_argument(
        "--telemetry",
        choices=("auto", *get_args(BackendName)),
        default="auto",
        help="try only this one (default: auto)",
    )
    parser.add_argument("--json", action="store_true", help="everything, of each GPU, as one JSON object")
    parser.add_argument(
        "--dump", metavar="FILE", type=Path, help="look for 10 s, and leave what was seen for --replay-telemetry"
    )
    return parser
