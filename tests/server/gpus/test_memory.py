"""The memory that a server held has to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.profile.schema import Server
from loadgen.server.gpus import memory
from loadgen.server.gpus.gpu import Gpu, Holder
from loadgen.server.gpus.memory import TOLERANCE_BYTES, gpu_level, level_now, still_held, wait_back
from tests.server.gpu_trees import GIB


def gpu(used: int, *holders: Holder, id: str = "a", index: int = 0) -> Gpu:
    return Gpu(id=id, index=index, name="MI300X", used_bytes=used, hbm_bytes=192 * GIB, holders=holders)


OLD = Holder(1, "display", 5)
NEW = Holder(2, "VLLM::Worker", 60 * GIB)


def test_what_came_back_is_not_held() -> None:
    assert still_held([gpu(10)], [gpu(10), gpu(3, id="b")], tolerance_bytes=5) == []


def test_what_did_not_come_back_names_the_new_holders() -> None:
    now = gpu(60 * GIB, OLD, NEW)
    (held,) = still_held([gpu(0, OLD)], [now], tolerance_bytes=GIB)
    assert held == "GPU 0 (MI300X): 60.0 GiB more, held by pid 2 (VLLM::Worker)"


def test_a_holder_that_grew_is_named_and_an_invisible_one_is_reported() -> None:
    (grown,) = still_held([gpu(5, OLD)], [gpu(99, Holder(1, "", 99))], tolerance_bytes=10)
    assert grown.endswith("0.0 GiB more, held by pid 1")
    (nobody,) = still_held([], [gpu(GIB)], tolerance_bytes=0)
    assert nobody.endswith("1.0 GiB more, held by no visible process")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_RELEASE_POLL_S", 0.001)


def reader(*answers: str) -> Callable[[], str]:
    """Gives these answers, the last for ever."""
    left = list(answers)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def unreadable() -> Callable[[], str]:
    raise ServerError("no GPU can be read")


async def test_memory_that_comes_back_is_waited_for() -> None:
    held = reader("GPU 0: 3 GiB by pid 7", "GPU 0: 1 GiB", "")
    assert await wait_back(held, asyncio.Event()) == "back at its level before the start"


async def test_memory_that_stays_away_is_told_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RELEASE_WAIT_S", 0.01)
    words = await wait_back(reader("GPU 0: 3 GiB by pid 7"), asyncio.Event())
    assert words.endswith("s after the end of the processes still held: GPU 0: 3 GiB by pid 7")


async def test_a_hurried_stop_looks_once() -> None:
    hurried = asyncio.Event()
    waiting = asyncio.create_task(wait_back(reader("GPU 0: 3 GiB"), hurried))
    await asyncio.sleep(0)
    hurried.set()
    assert "still held: GPU 0: 3 GiB" in await waiting


async def test_what_cannot_be_read_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    held = await level_now(Server(engine="vllm", model="m", platform="cuda"))
    assert held == "not checked: no GPU can be read here: nvidia-smi is not on PATH"
    assert await wait_back(held, asyncio.Event()) == held
    assert await wait_back(lambda: str(unreadable()), asyncio.Event()) == "not checked: no GPU can be read"


@pytest.mark.parametrize("server", [{"engine": "simulator"}, {"engine": "vllm", "model": "m", "platform": "cpu"}])
async def test_a_server_without_gpus_holds_none(server: dict[str, str]) -> None:
    assert await level_now(Server.model_validate(server)) == "not checked"


def held_by(server: dict[str, Any], *amounts: int) -> str:
    """What is said of GPUs that were empty at the start, and of which so much is in use now."""
    looks = [[gpu(used, id=str(n), index=n) for n, used in enumerate(look)] for look in ([0] * len(amounts), amounts)]
    held = gpu_level(Server(engine="vllm", model="m", **server), "rocm", lambda: looks.pop(0))
    return held()


def test_the_level_of_the_gpus_is_that_before_the_start() -> None:
    assert held_by({}, 58 * GIB) == "GPU 0 (MI300X): 58.0 GiB more, held by no visible process"
    assert held_by({}, TOLERANCE_BYTES) == ""


def test_what_neighbours_take_on_other_gpus_is_not_waited_for() -> None:
    assert held_by({}, 0, 60 * GIB) == ""
    assert held_by({"env": {"HIP_VISIBLE_DEVICES": "1"}}, 0, 60 * GIB).startswith("GPU 1 (MI300X): 60.0 GiB more")
    pair = {"args": {"tensor-parallel-size": 2}, "instances": 2, "platform": "rocm"}
    assert held_by(pair, 0, 0, 0, 60 * GIB, 60 * GIB).count("more") == 1


def test_all_gpus_are_waited_for_where_the_servers_own_cannot_be_told() -> None:
    assert held_by({"env": {"HIP_VISIBLE_DEVICES": "GPU-1a2b"}}, 0, 60 * GIB).startswith("GPU 1")
