"""Work that an event ends."""

import asyncio

import pytest

from loadgen.until import until


async def test_work_that_an_event_ends_has_come_to_rest() -> None:
    stop, rested = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        stop.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            rested.set()

    await until(stop, work())
    assert rested.is_set()


async def test_work_ends_by_itself_and_its_error_is_told() -> None:
    async def work() -> None:
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        await until(asyncio.Event(), work())
