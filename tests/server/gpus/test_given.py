"""The devices of a server on described boxes, by everything that can choose them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Server
from loadgen.schema.samples import GpuStatic
from loadgen.server.gpus.given import given_indices, server_gpus
from loadgen.server.vllm.command import instance_servers
from loadgen.vendors import Platform
from tests.server.preflight.boxes import described_box, gpus_of

# amdsmi lists by PCI address, HIP numbers otherwise: 0 is HIP's 3.
MI300X = [
    GpuStatic(
        index=n,
        vendor="amd",
        name="MI300X",
        engine_index=(3, 2, 1, 0)[n],
        engine_name=f"GPU-{n}f00d",
        device_file=f"/dev/dri/renderD{128 + n}",
    )
    for n in range(4)
]
H100 = [GpuStatic(index=n, vendor="nvidia", name="H100", engine_index=n, engine_name=f"GPU-{n}aa") for n in range(4)]
MIG = [
    GpuStatic(index=0, vendor="nvidia", name="H100", engine_name="GPU-0aa", socket="0"),
    GpuStatic(index=1, vendor="nvidia", name="H100 MIG 3g", engine_name="MIG-1bb", socket="0", partition=1),
    GpuStatic(index=2, vendor="nvidia", name="H100 MIG 3g", engine_name="MIG-2bb", socket="0", partition=2),
]
CPX_OF_KERNEL = [
    GpuStatic(index=n, vendor="amd", name="MI300X", engine_index=8 * n, engine_devices=8) for n in range(2)
]


def server(**settings: Any) -> Server:
    return build_profile({"server": {"engine": "vllm", "model": "m", **settings}}, where="test").server


def docker(settings: dict[str, Any], **more: Any) -> Server:
    return server(engine="docker", docker={"image": "vllm", **settings}, **more)


TP2 = {"tensor-parallel-size": 2}


@pytest.mark.parametrize(
    ("chosen", "box", "environ", "indices"),
    [
        (server(), MI300X, {}, (3,)),
        (server(args=TP2), MI300X, {}, (2, 3)),
        (server(args={"tp": 2, "pp": 2}), MI300X, {}, (0, 1, 2, 3)),
        (server(args=TP2), MI300X, {"HIP_VISIBLE_DEVICES": "3, 1"}, (0, 2)),
        (server(env={"HIP_VISIBLE_DEVICES": "0"}), MI300X, {"HIP_VISIBLE_DEVICES": "3"}, (3,)),
        (server(), MI300X, {"CUDA_VISIBLE_DEVICES": "2"}, (1,)),
        # What is left is numbered again.
        (server(), MI300X, {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, (0,)),
        (server(), MI300X, {"ROCR_VISIBLE_DEVICES": "GPU-1f"}, (1,)),
        (server(args=TP2), MI300X, {"HIP_VISIBLE_DEVICES": "1"}, None),
        (server(), MI300X, {"HIP_VISIBLE_DEVICES": "9"}, None),
        (server(), MI300X, {"ROCR_VISIBLE_DEVICES": "GPU-cafe"}, None),
        (server(args=TP2), H100, {"CUDA_VISIBLE_DEVICES": "GPU-2aa,GPU-0"}, (0, 2)),
        (server(), H100, {"CUDA_VISIBLE_DEVICES": "GPU-"}, None),
        (server(), H100, {"CUDA_VISIBLE_DEVICES": ""}, (0,)),
        # A container gets what it is given, and nothing of our environment.
        (docker({"gpus": "all"}, args=TP2), H100, {"CUDA_VISIBLE_DEVICES": "3"}, (0, 1)),
        (docker({"gpus": "2"}, args=TP2), H100, {}, (0, 1)),
        (docker({"gpus": "1"}, args=TP2), H100, {}, None),
        (docker({"gpus": '"device=3,1"'}), H100, {}, (3,)),
        (docker({"gpus": "device=GPU-2aa"}), H100, {}, (2,)),
        (docker({"gpus": '"device=3,1"'}, env={"CUDA_VISIBLE_DEVICES": "1"}), H100, {}, (1,)),
        (docker({"devices": ["/dev/kfd", "/dev/dri"]}), MI300X, {}, (3,)),
        (docker({"devices": ["/dev/kfd", "/dev/dri/renderD129:/dev/dri/renderD129"]}), MI300X, {}, (1,)),
        (docker({"devices": ["/dev/kfd", "/dev/dri"]}, env={"HIP_VISIBLE_DEVICES": "2"}), MI300X, {}, (1,)),
        # With MIG, CUDA's numbers are nobody's; a name is enough.
        (server(), MIG, {}, None),
        (server(), MIG, {"CUDA_VISIBLE_DEVICES": "0"}, None),
        (server(), MIG, {"CUDA_VISIBLE_DEVICES": "MIG-2bb"}, (2,)),
        (server(args={"tp": 8}), CPX_OF_KERNEL, {}, (0,)),
        (server(), CPX_OF_KERNEL, {"HIP_VISIBLE_DEVICES": "9"}, (1,)),
        (server(), [], {}, None),
        (server(), [*MI300X, *H100], {}, None),
        (server(platform="cuda"), [*MI300X, *H100], {}, (0,)),
        (server(platform="cpu"), H100, {}, (0,)),
    ],
)
def test_what_it_was_given(
    chosen: Server, box: list[GpuStatic], environ: dict[str, str], indices: tuple[int, ...] | None
) -> None:
    assert given_indices([chosen], box, environ) == indices


def test_instances_have_devices_of_their_own() -> None:
    both = instance_servers(server(instances=2, platform="rocm", args={"tp": 1}))
    assert given_indices(both, MI300X, {}) == (2, 3)


words = st.lists(st.sampled_from(["0", "1", "7", "GPU-0", "GPU-0f00d", "-1", "", "x"]), max_size=4).map(",".join)


@given(words, words, st.integers(1, 5))
def test_it_is_known_exactly_or_not_at_all(rocr: str, hip: str, needed: int) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": rocr, "HIP_VISIBLE_DEVICES": hip}
    found = given_indices([server(args={"tensor-parallel-size": needed})], MI300X, environ)
    assert found is None or (0 < len(found) <= needed and set(found) <= set(range(4)))


@pytest.mark.parametrize(
    ("platform", "chosen", "taken"),
    [
        ("rocm", server(), [0]),
        ("rocm", server(args={"tensor-parallel-size": 4}, instances=2, platform="rocm"), [0, 1, 2, 3, 4, 5, 6, 7]),
        ("rocm", server(env={"HIP_VISIBLE_DEVICES": "5,6", "CUDA_VISIBLE_DEVICES": "5,6"}), [5]),
        ("rocm", server(env={"ROCR_VISIBLE_DEVICES": "4,7", "HIP_VISIBLE_DEVICES": "1"}), [7]),
        ("rocm", server(env={"HIP_VISIBLE_DEVICES": "GPU-1a2b"}), None),
        ("rocm", docker({"devices": ["/dev/kfd", "/dev/dri/renderD130"]}), None),
        ("rocm", docker({"devices": ["/dev/kfd", "/dev/dri"]}), [0]),
        ("cuda", server(env={"CUDA_VISIBLE_DEVICES": "GPU-6"}), [6]),
        ("cuda", docker({"gpus": '"device=3,5"'}, args=TP2), [3, 5]),
        ("cuda", docker({"gpus": "2"}, args=TP2), [0, 1]),
    ],
)
def test_the_gpus_that_a_server_will_take(
    tmp_path: Path, platform: Platform, chosen: Server, taken: list[int] | None
) -> None:
    now = gpus_of(described_box(tmp_path, "mi300x" if platform == "rocm" else "h100"), platform)
    found = server_gpus(chosen, chosen.env, now.gpus)
    assert (None if found is None else [gpu.index for gpu in found]) == taken
