"""The memory that a server held has to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadgen.errors import ServerError
from loadgen.server.gpus import memory
from loadgen.server.gpus.gpu import Gpu, Holder
from loadgen.server.gpus.memory import TOLERANCE_BYTES, gpu_level, level_now, still_held, wait_back
from tests.server.gpu_trees import GIB


def gpu(used: int, *holders: Holder, id: str = "a") -> Gpu:
    return Gpu(id=id, name="MI300X", used_bytes=used, hbm_bytes=192 * GIB, holders=holders)


OLD = Holder(1, "display", 5)
NEW = Holder(2, "VLLM::Worker", 60 * GIB)


def test_what_came_back_is_not_held() -> None:
    assert still_held([gpu(10)], [gpu(10), gpu(3, id="b")], tolerance_bytes=5) == []


def test_what_did_not_come_back_names_the_new_holders() -> None:
    now = gpu(60 * GIB, OLD, NEW)
    (held,) = still_held([gpu(0, OLD)], [now], tolerance_bytes=GIB)
    assert held == "GPU 0 (MI300X): 60.0 GiB more, held by pid 2 (VLLM::Worker)"


def test_a_holder_that_grew_is_named_and_nobody_is_said() -> None:
    (grown,) = still_held([gpu(5, OLD)], [gpu(99, Holder(1, "", 99))], tolerance_bytes=10)
    assert grown.endswith("0.0 GiB more, held by pid 1")
    (nobody,) = still_held([], [gpu(GIB)], tolerance_bytes=0)
    assert nobody.endswith("1.0 GiB more, held by nobody who can be seen")


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
    held = await level_now(lambda: reader("GPU 0: 3 GiB by pid 7", "GPU 0: 1 GiB", ""))
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


async def test_what_cannot_be_read_is_not_checked() -> None:
    assert await wait_back(await level_now(unreadable), asyncio.Event()) == "not checked: no GPU can be read"
    assert await wait_back(lambda: str(unreadable()), asyncio.Event()) == "not checked: no GPU can be read"


async def test_the_level_of_the_gpus_is_that_before_the_start() -> None:
    gib = 1024**3
    used = [2 * gib, 60 * gib, 2 * gib + TOLERANCE_BYTES]

    def read() -> list[Gpu]:
        now = used.pop(0)
        holders = (Holder(7, "VLLM::Worker", now),) if now > 50 * gib else ()
        return [Gpu(id="a", name="MI300X", used_bytes=now, hbm_bytes=192 * gib, holders=holders)]

    held = gpu_level(read)
    assert held() == "GPU 0 (MI300X): 58.0 GiB more, held by pid 7 (VLLM::Worker)"
    assert held() == ""
