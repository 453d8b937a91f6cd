"""The memory that a server held has to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from loadgen.errors import ServerError, TelemetryError
from loadgen.profile.schema import Server
from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic
from loadgen.server.gpus import memory
from loadgen.server.gpus.memory import TOLERANCE_BYTES, level_now, still_held, used_indices, wait_back
from loadgen.telemetry.gpus_now import GpusNow
from loadgen.vendors import Vendor
from tests.server.gpu_trees import GIB

OLD = GpuProcess(1, "display", 5)
NEW = GpuProcess(2, "VLLM::Worker", 60 * GIB)


def gpus(*used: int, processes: tuple[GpuProcess, ...] = ()) -> GpusNow:
    statics = tuple(GpuStatic(n, "amd", "MI300X", engine_index=n) for n in range(len(used)))
    samples = {n: GpuSample(n, 0.0, hbm_used_bytes=each, processes=processes) for n, each in enumerate(used)}
    return GpusNow(statics, samples)


def held(before: Mapping[int, GpuSample], now: GpusNow) -> list[str]:
    return still_held(before, now, [gpu.index for gpu in now.gpus])


def test_still_held_with_memory_back() -> None:
    assert held(gpus(10, 0).samples, gpus(10, TOLERANCE_BYTES)) == []


def test_still_held_names_new_and_grown_processes() -> None:
    before = gpus(0, processes=(OLD,)).samples
    assert held(before, gpus(60 * GIB, processes=(OLD, NEW))) == [
        "GPU 0 (MI300X): 60.0 GiB more, held by pid 2 (VLLM::Worker)"
    ]
    (grown,) = held(before, gpus(GIB, processes=(GpuProcess(1, "", GIB),)))
    assert grown.endswith("1.0 GiB more, held by pid 1")
    (nobody,) = held({}, gpus(GIB))
    assert nobody.endswith("1.0 GiB more, held by no visible process")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RELEASE_POLL_S", 0.001)


def reader(*answers: str) -> Callable[[], Awaitable[str]]:
    """Gives these answers, the last for ever."""
    left = list(answers)

    async def read() -> str:
        return left.pop(0) if len(left) > 1 else left[0]

    return read


async def test_wait_back_until_memory_is_back() -> None:
    held = reader("GPU 0: 3 GiB by pid 7", "GPU 0: 1 GiB", "")
    assert await wait_back(held, asyncio.Event()) == "back at its level before the start"


async def test_wait_back_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RELEASE_WAIT_S", 0.01)
    words = await wait_back(reader("GPU 0: 3 GiB by pid 7"), asyncio.Event())
    assert words.endswith("s after the end of the processes still held: GPU 0: 3 GiB by pid 7")


async def test_wait_back_hurried() -> None:
    hurried = asyncio.Event()
    waiting = asyncio.create_task(wait_back(reader("GPU 0: 3 GiB"), hurried))
    await asyncio.sleep(0)
    hurried.set()
    assert "still held: GPU 0: 3 GiB" in await waiting


async def test_memory_that_cannot_be_read_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreadable(_: Vendor) -> GpusNow:
        raise TelemetryError("no GPU can be read here: no driver")

    monkeypatch.setattr(memory, "read_gpus", unreadable)
    level = await level_now(Server(engine="vllm", model="m", platform="cuda"))
    assert level == "not checked: no GPU can be read here: no driver"
    assert await wait_back(level, asyncio.Event()) == level

    async def unread() -> str:
        raise ServerError("no GPU can be read")

    assert await wait_back(unread, asyncio.Event()) == "not checked: no GPU can be read"


@pytest.mark.parametrize("server", [{"engine": "simulator"}, {"engine": "vllm", "model": "m", "platform": "cpu"}])
async def test_a_server_without_gpus_is_not_checked(server: dict[str, str]) -> None:
    assert await level_now(Server.model_validate(server)) == "not checked"


async def test_the_level_is_that_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [gpus(GIB, 0), gpus(61 * GIB, 60 * GIB)]

    async def read(_: Vendor) -> GpusNow:
        return readings.pop(0)

    monkeypatch.setattr(memory, "read_gpus", read)
    level = await level_now(Server(engine="vllm", model="m", platform="rocm"))
    assert not isinstance(level, str)
    assert await level() == "GPU 0 (MI300X): 60.0 GiB more, held by no visible process"  # GPU 1 is not the server's


@pytest.mark.parametrize(
    ("server", "indices"),
    [
        ({}, {0}),
        ({"env": {"HIP_VISIBLE_DEVICES": "1"}}, {1}),
        ({"args": {"tensor-parallel-size": 2}, "instances": 2, "platform": "rocm"}, {0, 1, 2, 3}),
        ({"env": {"HIP_VISIBLE_DEVICES": "GPU-1a2b"}}, {0, 1, 2, 3, 4}),  # unknown: all are waited for
    ],
)
def test_used_indices(server: dict[str, Any], indices: set[int]) -> None:
    assert used_indices(Server(engine="vllm", model="m", **server), gpus(0, 0, 0, 0, 0)) == indices
