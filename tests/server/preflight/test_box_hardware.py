"""How the GPUs are set, and the ways between them, on the described boxes with one thing changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadgen.schema.finding import Finding
from loadgen.server.preflight.facts import Box
from loadgen.vendors import Platform
from tests.server.gpu_trees import add_process, initial_namespace, write
from tests.server.preflight.boxes import DESCRIBED, check, described_box, only, profile_of

SEVERAL = {"tensor-parallel-size": 4}


def platform(name: str) -> Platform:
    return "cuda" if name in ("h100", "b200") else "rocm"


def found(box: Box, name: str, args: dict[str, Any] | None = None, **server: Any) -> list[Finding]:
    return check(box, profile_of(box.root, args=SEVERAL if args is None else args, **server), platform(name))


def bridge_above(box: Box, acs: int | None, *, size: int = 4096) -> None:
    """A PCI bridge above the first GPU of a described MI210 box, with this in its ACS control register."""
    config = bytearray(size)
    if size > 256 and acs is not None:
        config[0x100:0x104] = (0x0001 | 1 << 16 | 0x160 << 20).to_bytes(4, "little")  # error reporting comes first
        config[0x160:0x164] = (0x000D | 1 << 16).to_bytes(4, "little")
        config[0x166:0x168] = acs.to_bytes(2, "little")
    bridge = box.sys / "devices/pci0000:00/0000:80:01.1"
    bridge.mkdir()
    (bridge / "config").write_bytes(config)
    card = box.sys / "devices/pci0000:00/0000:83:00.0"
    card.rename(bridge / card.name)
    for link in (box.sys / "class/drm/card0/device", box.sys / "bus/pci/devices/0000:83:00.0"):
        link.unlink()
        link.symlink_to(bridge / card.name)


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_described_boxes_have_nothing_against_a_run(tmp_path: Path, name: str) -> None:
    assert found(described_box(tmp_path, name), name) == []


@pytest.mark.parametrize(
    ("server", "seen"),
    [
        ({"args": {"tensor-parallel-size": 8}}, "the server takes 8 devices, and there are 4"),
        ({"args": {"tensor-parallel-size": 2}, "instances": 3, "platform": "rocm", "port": 0}, "6 devices"),
        ({"args": SEVERAL, "env": {"HIP_VISIBLE_DEVICES": "1"}}, "the server takes 4 devices, and there is 1"),
        ({"args": SEVERAL}, None),
        ({"args": {"tensor-parallel-size": 8}, "env": {"HIP_VISIBLE_DEVICES": "GPU-1a2b"}}, None),
        ({"args": {"tensor-parallel-size": 8, "distributed-executor-backend": "ray"}}, None),
        ({"args": {"data-parallel-size": 8, "data-parallel-size-local": 4}}, None),
    ],
)
def test_more_devices_than_there_are(tmp_path: Path, server: dict[str, Any], seen: str | None) -> None:
    findings = found(described_box(tmp_path, "mi210"), "mi210", **server)
    assert [finding.id for finding in findings] == ([] if seen is None else ["too-few-gpus"])
    assert all(seen is not None and seen in finding.seen for finding in findings)


def test_partitions_are_devices_that_a_server_may_take(tmp_path: Path) -> None:
    box = described_box(tmp_path, "mi300x", {"compute_partition": "CPX"})
    assert "too-few-gpus" not in {finding.id for finding in found(box, "mi300x", {"tensor-parallel-size": 16})}
    too_many = {"tensor-parallel-size": 8, "pipeline-parallel-size": 16}
    assert "too-few-gpus" in {finding.id for finding in found(box, "mi300x", too_many)}
    # Whoever takes every partition means them.
    assert found(box, "mi300x", {}, instances=64, platform="rocm", port=0) == []


@pytest.mark.parametrize(
    ("modes", "seen", "fix"),
    [
        (("CPX", "NPS4"), "CPX and NPS4, 8 devices of 24.0 GiB each", "sudo amd-smi set --gpu all --memory"),
        (("DPX", "NPS1"), "DPX and NPS1, 2 devices of 96.0 GiB each", "sudo amd-smi set --gpu all --compute"),
    ],
)
def test_partitions_against_the_parallelism(tmp_path: Path, modes: tuple[str, str], seen: str, fix: str) -> None:
    changes = {"compute_partition": modes[0], "memory_partition": modes[1]}
    (finding,) = found(described_box(tmp_path, "mi300x", changes), "mi300x")
    assert (finding.id, finding.severity) == ("gpu-partitions", "warns")
    assert finding.seen == f"GPUs 0, 1, 2, 3, 4, 5, 6, 7: {seen}; the server takes 4 devices"
    assert finding.fix.startswith(fix)


def test_mig_is_a_part_of_a_gpu(tmp_path: Path) -> None:
    (finding,) = found(described_box(tmp_path, "b200", {"mig": "Enabled"}), "b200", {})
    assert (finding.id, finding.fix) == ("gpu-partitions", "sudo nvidia-smi -mig 0")


@pytest.mark.parametrize(
    ("name", "changes", "fix"),
    [
        ("mi300x", {"power_cap_w": 500}, "sudo rocm-smi --resetpoweroverdrive"),
        ("h100", {"power_limit_w": 500}, "sudo nvidia-smi -pl 700"),
    ],
)
def test_a_power_cap_below_its_default(tmp_path: Path, name: str, changes: dict[str, Any], fix: str) -> None:
    (finding,) = found(described_box(tmp_path, name, changes), name, {})
    assert (finding.id, finding.fix) == ("power-cap", fix)
    assert finding.seen == f"GPU 0: 500 W of {700 if name == 'h100' else 750} W"


def test_a_default_that_is_not_reported_is_no_cap(tmp_path: Path) -> None:
    assert found(described_box(tmp_path, "mi210", {"power_cap_default_w": 0}), "mi210") == []


def test_a_gpu_with_fewer_links_than_its_siblings(tmp_path: Path) -> None:
    box = described_box(tmp_path, "mi300x")
    nodes = box.sys / "class/kfd/kfd/topology/nodes"
    (nodes / "3/io_links/7/properties").write_text("type 2\nnode_to 8")
    (finding,) = found(box, "mi300x")
    assert (finding.id, finding.seen) == ("links-down", "GPU 2 has 6 of 7 XGMI links")
    assert found(box, "mi300x", {}) == []


def test_nvlinks_that_are_down(tmp_path: Path) -> None:
    (finding,) = found(described_box(tmp_path, "h100", {"nvlink_down_on": 0}), "h100")
    assert (finding.id, finding.seen) == ("links-down", "GPU 0 has 17 of 18 NVLinks")


@pytest.mark.parametrize(("name", "state"), [("h100", "In Progress"), ("b200", "Not Started")])
def test_a_fabric_that_is_not_set_up(tmp_path: Path, name: str, state: str) -> None:
    (finding,) = found(described_box(tmp_path, name, {"fabric": state}), name, {})
    assert (finding.id, finding.seen) == ("fabric-not-ready", f"GPU 0: fabric state {state}")
    assert "802" in finding.why


def test_a_driver_that_does_not_tell_of_the_fabric(tmp_path: Path) -> None:
    box = described_box(tmp_path, "h100", {"fabric": None})
    assert found(box, "h100") == []
    write(box.dev / "nvidia-nvswitchctl", "")
    assert [finding.id for finding in found(box, "h100")] == ["fabric-not-ready"]
    add_process(box.proc, 77, "nv-fabricmanager", name="nv-fabricmanage")
    assert found(box, "h100") == []
    (box.proc / "77/comm").unlink()
    (box.proc / "self/ns/pid").unlink()
    initial_namespace(box.proc, 4026532000)
    assert found(box, "h100") == []  # in a container, others' processes cannot be seen


@pytest.mark.parametrize(("kind", "speaks"), [("DMA-FQ", True), ("DMA", True), ("identity", False)])
def test_an_iommu_that_is_not_in_passthrough(tmp_path: Path, kind: str, speaks: bool) -> None:
    box = described_box(tmp_path, "mi300x")
    for device in (box.sys / "bus/pci/devices").iterdir():
        write(device / "iommu_group/type", kind)
    assert [finding.id for finding in found(box, "mi300x")] == (["iommu-translates"] if speaks else [])
    assert found(box, "mi300x", {}) == []


@pytest.mark.parametrize(("acs", "speaks"), [(0b11101, True), (0b00001, False), (None, False)])
def test_acs_between_gpus_that_have_only_pcie(tmp_path: Path, acs: int | None, speaks: bool) -> None:
    box = described_box(tmp_path, "mi210")
    bridge_above(box, acs)
    findings = found(box, "mi210")
    assert [finding.id for finding in findings] == (["acs-on"] if speaks else [])
    assert [finding.seen for finding in findings] == (["ACS is on at 0000:80:01.1"] if speaks else [])


def test_acs_that_only_root_may_see_is_not_checked(tmp_path: Path) -> None:
    box = described_box(tmp_path, "mi210")
    bridge_above(box, 0b11101, size=64)
    (finding,) = found(box, "mi210")
    assert (finding.id, finding.seen) == ("not-checked", "access-control: could not be checked")
    assert finding.why.endswith("0000:80:01.1/config: only root may read it whole")
    assert found(box, "mi210", {}) == []


@pytest.mark.parametrize(
    ("limit", "network", "expected"),
    [(8 * 1024**2, True, ["locked-memory"]), (8 * 1024**2, False, []), (None, True, []), (2**40, True, [])],
)
def test_little_locked_memory_next_to_a_network_that_needs_it(
    tmp_path: Path, limit: int | None, network: bool, expected: list[str]
) -> None:
    box = described_box(tmp_path, "mi300x", locked_memory=limit)
    if network:
        write(box.sys / "class/infiniband/mlx5_0/node_type", "1: CA")
    assert [finding.id for finding in found(box, "mi300x")] == expected


@pytest.mark.parametrize(
    ("limit", "ulimits", "speaks"),
    [
        ("8388608", [], True),
        ("unlimited", [], False),
        ("8388608", ["memlock=-1"], False),
        ("8388608", ["stack=9"], True),
    ],
)
def test_a_container_inherits_the_limit_of_the_daemon_or_has_its_own(
    tmp_path: Path, limit: str, ulimits: list[str], speaks: bool
) -> None:
    box = described_box(tmp_path, "mi300x", locked_memory=None)
    write(box.sys / "class/infiniband/mlx5_0/node_type", "1: CA")
    add_process(box.proc, 9, "dockerd", name="dockerd")
    write(box.proc / "9/limits", f"Limit  Soft Limit  Hard Limit  Units\nMax locked memory  {limit}  {limit}  bytes")
    docker = {
        "image": "i",
        "ipc": "host",
        "executable": "/bin/true",
        "devices": ["/dev/kfd", "/dev/dri"],
        "ulimits": ulimits,
    }
    profile = profile_of(tmp_path, engine="docker", docker=docker, args=SEVERAL, model="/image/model")
    if speaks:
        assert only(box, profile, "rocm").fix == 'server.docker.ulimits = ["memlock=-1"]'
    else:
        assert check(box, profile, "rocm") == []
