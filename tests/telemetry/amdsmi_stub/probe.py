"""A child with the real wrapper on the stub: look when told to, change what the box says in between."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadgen.schema.samples import GpuSample
from loadgen.telemetry.protocol import Opened, Refused, Sampled, TelemetryLine, decode_line


@dataclass
class Probe:
    scenario: Path
    child: subprocess.Popen[bytes]
    first: TelemetryLine | None = None

    @property
    def opened(self) -> Opened:
        assert isinstance(self.first, Opened), self.first
        return self.first

    @property
    def refused(self) -> str:
        assert isinstance(self.first, Refused), self.first
        return self.first.reason

    def becomes(self, text: str) -> None:
        """Change the scenario; lines added win over those before."""
        new = self.scenario.with_suffix(".new")
        new.write_text(text)
        new.replace(self.scenario)

    def read(self) -> TelemetryLine | None:
        assert self.child.stdout
        line = self.child.stdout.readline()
        return decode_line.decode(line) if line else None

    def ask(self, words: str = "") -> None:
        assert self.child.stdin
        self.child.stdin.write(f"{words}\n".encode())
        self.child.stdin.flush()

    def look(self, words: str = "") -> tuple[GpuSample, ...]:
        self.ask(words)
        line = self.read()
        assert isinstance(line, Sampled), line
        return line.gpus


def environment(rocm: Path, scenario: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "ROCM_PATH": str(rocm), "AMDSMI_STUB_SCENARIO": str(scenario), **(extra or {})}


@contextmanager
def probe(rocm: Path, folder: Path, scenario: str, extra: Mapping[str, str] | None = None) -> Iterator[Probe]:
    """Start a child on this scenario, and read its first line."""
    path = folder / "scenario"
    path.write_text(scenario)
    argv = [sys.executable, "-m", "tests.telemetry.amdsmi_stub.look"]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(rocm, path, extra)
    ) as child:
        started = Probe(path, child)
        started.first = started.read()
        try:
            yield started
        finally:
            child.kill()
