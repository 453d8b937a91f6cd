"""Work that an event ends."""

import asyncio
import gc

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


async def test_work_ends_by_itself_and_its_error_is_reported() -> None:
    async def work() -> None:
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        await until(asyncio.Event(), work())


async def test_failure_during_cancellation_is_not_printed() -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def fail_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("too late for anybody")

    outer = asyncio.create_task(until(asyncio.Event(), fail_at_the_end()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    outer.cancel()
    await asyncio.wait({outer})
    assert outer.cancelled()
    del outer
    gc.collect()
    assert complaints == []
