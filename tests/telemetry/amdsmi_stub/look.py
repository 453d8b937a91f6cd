"""Opens amdsmi and samples on request: `python -m tests.telemetry.amdsmi_stub.look`.

The lines on stdout are those of a telemetry child. Each line on stdin is one look: any of the words "slow" and
"processes", or nothing. It ends at the end of stdin, so that a test changes the scenario between looks without waiting.
"""

import sys
import time

from loadgen.errors import TelemetryError
from loadgen.telemetry.amd.amdsmi import open_amdsmi
from loadgen.telemetry.protocol import Backend, Refused, Sampled, TelemetryLine, encode_line


def write(line: TelemetryLine) -> None:
    sys.stdout.buffer.write(encode_line(line) + b"\n")
    sys.stdout.buffer.flush()


def serve(backend: Backend) -> None:
    write(backend.opened)
    for words in sys.stdin:
        started = time.monotonic()
        gpus = backend.sample("slow" in words, "processes" in words)
        write(Sampled(started, (time.monotonic() - started) * 1e3, gpus))
    backend.close()


def main() -> int:
    try:
        serve(open_amdsmi())
    except TelemetryError as error:
        write(Refused("amdsmi", str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
