"""Telemetry children of tests: the real one, asked directly, and stand-ins that misbehave."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadgen.telemetry.backends import PROGRAM, BackendOption
from loadgen.telemetry.protocol import Opened, Refused, Sampled, decode_line


@dataclass
class Heard:
    """What a child said and how it ended."""

    opened: Opened | None
    refused: Refused | None
    samples: list[Sampled]
    status: int
    stderr: str


def listen(*arguments: str, env: Mapping[str, str] | None = None, samples: int = 2, orders: bytes = b"") -> Heard:
    """Run the real child until it has sent so many samples, or has ended."""
    child = subprocess.Popen(
        [*PROGRAM, "--interval-s", "0.05", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    heard = Heard(None, None, [], 0, "")
    child.stdin.write(orders)
    child.stdin.flush()
    with child:
        while len(heard.samples) < samples and (line := child.stdout.readline()):
            match decode_line.decode(line):
                case Opened() as opened:
                    heard.opened = opened
                case Refused() as refused:
                    heard.refused = refused
                case sampled:
                    heard.samples.append(sampled)
        _, errors = child.communicate()
    heard.status, heard.stderr = child.returncode, errors.decode()
    return heard


def simulated_gpus(count: int) -> dict[str, list[BackendOption]]:
    """The options of the real child for so many simulated GPUs."""
    return {"sim": [BackendOption("sim", "sim", ("--gpus", str(count)))]}


def stand_in(folder: Path, name: str, body: str) -> BackendOption:
    """An attempt whose child is a Python script; it may use `say(line)`, `opened()`, `sampled()` and `wait()`."""
    script = folder / f"{name}.py"
    script.write_text(_PRELUDE + body)
    return BackendOption(name, "sim", program=(sys.executable, str(script)))


_PRELUDE = """
import os, signal, sys, time
def say(line):
    os.write(1, line.encode() + b"\\n")
def opened(gpus=1):
    names = ",".join(f'{{"index":{n},"vendor":"sim","name":"GPU {n}"}}' for n in range(gpus))
    say(f'{{"type":"Opened","backend":"sim","meta":{{"pid":{os.getpid()}}},"gpus":[{names}]}}')
def sampled(power_w=100, gpus=1, extra=""):
    t_s = time.monotonic()
    each = ",".join(f'{{"index":{n},"t_s":{t_s},"power_w":{power_w}{extra}}}' for n in range(gpus))
    say(f'{{"type":"Sampled","t_s":{t_s},"took_ms":1,"gpus":[{each}]}}')
def wait():
    while sys.stdin.buffer.readline():
        pass
"""
