"""What `vramp doctor` prints of the described boxes, in doctor.txt: what the kernel's files alone tell of AMD's GPUs,
and of NVIDIA's what their publications say.

`python -m tests.server.preflight.test_doctor` rewrites the file; read each line that changes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest

from loadgen.report.examination import doctor_text
from loadgen.schema.samples import Examination, GpuSample, GpuStatic, HostExam, HostSample
from loadgen.server.preflight.facts import Box
from loadgen.telemetry.amd.sysfs import open_amd_sysfs
from loadgen.telemetry.capture import Candidate, CapturedPart
from loadgen.telemetry.examine import device_files, tried
from loadgen.telemetry.protocol import Opened, Sampled
from tests.server.preflight.boxes import DESCRIBED, described_box

FILE = Path(__file__).with_name("doctor.txt")
HOST = HostExam(
    HostSample(0.0, cores=192, memory_used_bytes=64 << 30, memory_total_bytes=1536 << 30, load_1min=1.0), {}, {}
)


def part_of(box: Box) -> CapturedPart:
    """What a telemetry child reports of a described box."""
    if not (box.root / "nvidia.json").exists():
        backend = open_amd_sysfs(box.sys, box.proc)
        opened, samples = backend.opened, tuple(backend.sample(True, True))
        return CapturedPart(Candidate("amd", "amd-sysfs", "the kernel's files"), opened, [Sampled(0.0, 0.0, samples)])
    text = (box.root / "nvidia.json").read_bytes()
    gpus, samples = msgspec.json.decode(text, type=tuple[tuple[GpuStatic, ...], tuple[GpuSample, ...]])
    return CapturedPart(
        Candidate("nvidia", "nvml", "a library"), Opened("nvml", {}, gpus), [Sampled(0.0, 0.0, samples)]
    )


def doctor_on(name: str, folder: Path) -> str:
    box = described_box(folder, name)
    found = Examination(
        versions={"vramp": "1"},
        user="root (uid 0)",
        groups=("root",),
        devices=tuple(msgspec.structs.replace(file, owner="") for file in device_files(box.root)),
        tried=(tried(part_of(box)),),
        host=HOST,
    )
    return f"# {name}\n\n{doctor_text(found)}\n"


@pytest.mark.parametrize("name", DESCRIBED)
def test_doctor_says_what_was_reviewed_of_each_described_box(name: str, tmp_path: Path) -> None:
    assert doctor_on(name, tmp_path) in FILE.read_text(encoding="utf-8")


def main() -> None:
    texts = []
    for name in DESCRIBED:
        with tempfile.TemporaryDirectory() as folder:
            texts.append(doctor_on(name, Path(folder)))
    FILE.write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
