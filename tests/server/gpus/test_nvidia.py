"""NVIDIA's GPUs, by a stand-in for nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TelemetryError
from loadgen.server.gpus import nvidia
from loadgen.server.gpus.gpu import Gpu, Holder
from loadgen.server.gpus.nvidia import parse_gpus, parse_holders, parse_links, read_nvidia
from tests.server.gpu_trees import MIB, add_nvidia_smi, add_process, initial_namespace, write


def read(tmp_path: Path) -> list[Gpu]:
    return read_nvidia(tmp_path / "sys", tmp_path / "proc", str(tmp_path / "bin"))


GPUS = "0, GPU-a, NVIDIA H200, 14, 143771\n1, GPU-b, NVIDIA H200, 70000, 143771\n"
APPS = "900, GPU-b, 1500\n901, GPU-b, [N/A]\n902, GPU-b, 68000\n[Not Found], GPU-b, 3\n903, MIG-x, 5\n"


def test_nvidia_gpus_and_their_holders(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", GPUS, APPS)
    initial_namespace(tmp_path / "proc")
    add_process(tmp_path / "proc", 902, "x", name="VLLM::EngineCor")
    first, second = read(tmp_path)
    assert first == Gpu(
        id="GPU-a",
        index=0,
        name="NVIDIA H200",
        arch="sm_90",
        hbm_bytes=143771 * MIB,
        used_bytes=14 * MIB,
        power_cap_w=700,
        power_cap_default_w=700,
        fabric="Completed",
    )
    assert second.holders == (
        Holder(902, "VLLM::EngineCor", 68000 * MIB),
        Holder(900, "", 1500 * MIB),
        Holder(901, "", None),
    )


MEMORY = ("index", "uuid", "name", "memory.used", "memory.total")


def test_what_a_gpu_does_not_say_is_unknown() -> None:
    text = "0, GPU-a, NVIDIA GB10, [N/A], [N/A], 12.1, [N/A], [Not Supported], [N/A], N/A\nNo devices were found\n\n"
    assert parse_gpus(text) == [Gpu(id="GPU-a", name="NVIDIA GB10", arch="sm_121")]
    (gpu,) = parse_gpus("1, GPU-b, A100, 40GB, 5, 100", MEMORY)
    assert gpu == Gpu(id="GPU-b", index=1, name="A100, 40GB", used_bytes=5 * MIB, hbm_bytes=100 * MIB)


def test_a_gpu_that_is_split_and_capped() -> None:
    (gpu,) = parse_gpus("0, GPU-a, B200, 0, 183359, 10.0, 800.00, 1000.00, Enabled, In Progress")
    assert (gpu.arch, gpu.compute_partition, gpu.fabric) == ("sm_100", "MIG", "In Progress")
    assert (gpu.power_cap_w, gpu.power_cap_default_w) == (800, 1000)


def test_fields_that_an_older_program_lacks_are_not_asked_for(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", GPUS, APPS, lacks=["compute_cap", "mig.mode.current", "fabric.state"])
    csv = tmp_path / "bin/gpus.csv"
    csv.write_text("".join(f"{line}, 300.00, 350.00\n" for line in csv.read_text().splitlines()))
    first, second = read(tmp_path)
    assert (first.arch, first.power_cap_w, first.power_cap_default_w) == (None, 300, 350)
    assert [holder.pid for holder in second.holders] == [902, 900, 901]


# As `nvidia-smi nvlink --status` shows links that are up (bottlerocket-os/bottlerocket pull request 4418); the word for
# those that are down is that of the same program's manual.
LINKS = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)
         Link 0: 26.562 GB/s
         Link 1: 26.562 GB/s
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)
         Link 0: 26.562 GB/s
         Link 1: <inactive>
"""


def test_links_that_are_down_from_the_start_are_seen_beside_those_of_the_siblings(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", GPUS, links=LINKS)
    assert [(gpu.links_up, gpu.links_expected) for gpu in read(tmp_path)] == [(2, 2), (1, 2)]
    add_nvidia_smi(tmp_path / "bin", GPUS)
    assert [(gpu.links_up, gpu.links_expected) for gpu in read(tmp_path)] == [(None, None)] * 2


def test_what_nvidia_smi_says_instead_is_the_reason(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", "\nNVIDIA-SMI has failed\x1b[31m because\nmore\n", ending="exit 9")
    with pytest.raises(TelemetryError, match=r"lists no GPU: NVIDIA-SMI has failed because$"):
        read(tmp_path)


def test_nvidia_smi_that_says_nothing_or_cannot_be_run(tmp_path: Path) -> None:
    add_nvidia_smi(tmp_path / "bin", "")
    with pytest.raises(TelemetryError, match="its output is empty"):
        read(tmp_path)
    (tmp_path / "bin/nvidia-smi").write_text("#!/no/such/shell\n")
    with pytest.raises(TelemetryError, match="nvidia-smi cannot be run: No such file"):
        read(tmp_path)


def test_nvidia_smi_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "_TIMEOUT_S", 0.05)  # the time to wait is no part of what is tested
    add_nvidia_smi(tmp_path / "bin", GPUS, ending="exec /bin/sleep 1000")
    with pytest.raises(TelemetryError, match=r"did not answer within 0\.05 s"):
        read(tmp_path)


@pytest.mark.parametrize(("state", "requested"), [("suspended", False), ("active", True)])
def test_a_sleeping_gpu_is_not_woken(tmp_path: Path, state: str, requested: bool) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    write(device / "vendor", "0x10de")
    write(device / "class", "0x030200")
    write(device / "power/runtime_status", state)
    add_nvidia_smi(tmp_path / "bin", GPUS, ending=f': > "{tmp_path}/asked"')
    if requested:
        assert len(read(tmp_path)) == 2
    else:
        with pytest.raises(TelemetryError, match="suspended"):
            read(tmp_path)
    assert (tmp_path / "asked").exists() == requested


amounts = st.integers(0, 10**6)
words = st.text("abcXYZ019 -_.", min_size=1, max_size=12).map(str.strip).filter(bool)
names = st.lists(words, min_size=1, max_size=3).map(", ".join)


@given(st.lists(st.tuples(st.integers(0, 99), words, names, amounts, st.integers(1, 10**6))))
def test_what_nvidia_smi_writes_is_read_back(rows: list[tuple[int, str, str, int, int]]) -> None:
    text = "".join(", ".join(map(str, row)) + "\n" for row in rows)
    expected = [
        Gpu(id=uuid, index=index, name=name, used_bytes=used * MIB, hbm_bytes=total * MIB)
        for index, uuid, name, used, total in rows
    ]
    assert parse_gpus(text, MEMORY) == expected


@given(st.lists(st.tuples(st.integers(1, 10**7), words, st.none() | amounts)))
def test_holders_are_read_back(rows: list[tuple[int, str, int | None]]) -> None:
    text = "".join(f"{pid}, {uuid}, {'[N/A]' if used is None else used}\n" for pid, uuid, used in rows)
    found = [(pid, uuid, used) for uuid, held in parse_holders(text).items() for pid, used in held]
    assert sorted(map(repr, found)) == sorted(repr((p, u, None if n is None else n * MIB)) for p, u, n in rows)


@given(st.text() | st.text("0123456789, \n[]N/A"))
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert all(gpu.hbm_bytes != 0 for gpu in [*parse_gpus(text), *parse_gpus(text, MEMORY)])
    assert all(pid >= 0 for held in parse_holders(text).values() for pid, _ in held)
    assert all(count >= 0 for count in parse_links(text).values())
