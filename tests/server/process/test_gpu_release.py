import asyncio
from collections.abc import Callable

import pytest

from loadgen.errors import ServerError
from loadgen.server.process import gpu_release as memory_return
from loadgen.server.process.gpu_memory import GpuMemory, Holder
from loadgen.server.process.gpu_release import TOLERANCE_BYTES, gpu_level, level_now, wait_back


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_return, "_POLL_S", 0.001)


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
    monkeypatch.setattr(memory_return, "WAIT_S", 0.01)
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

    def read() -> list[GpuMemory]:
        now = used.pop(0)
        holders = (Holder(7, "VLLM::Worker", now),) if now > 50 * gib else ()
        return [GpuMemory("a", 0, "MI300X", now, 192 * gib, holders)]

    held = gpu_level(read)
    assert held() == "GPU 0 (MI300X): 58.0 GiB more, held by pid 7 (VLLM::Worker)"
    assert held() == ""
