"""Answers and what they leave."""

import asyncio
import gc

import pytest

from loadgen.simulator.answers import OVER, BaseAnswer, Exchange
from loadgen.simulator.api import Api
from loadgen.simulator.http import HttpServer
from loadgen.simulator.physics import PRESETS
from loadgen.simulator.service import Service
from tests.simulator.conftest import request


@pytest.mark.parametrize("fields", [{}, {"stream": False}], ids=["streamed", "whole"])
async def test_an_answer_that_is_over_leaves_nothing_for_the_collector(fields: dict[str, bool]) -> None:
    """The simulator collects rarely, and may serve for days."""
    loop = asyncio.get_running_loop()
    service = Service(loop, PRESETS["fast"], model="simulated", seed=1, faults=[])
    server = HttpServer(loop, Api(service).handle)
    port = server.listen("127.0.0.1", 0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(4, close=True, **fields))
            assert b" 200 OK" in await reader.read()
            writer.close()
            await writer.wait_closed()
        assert service.truth.requests["completed"] == 3
        left = [one for one in gc.get_objects() if isinstance(one, Exchange | BaseAnswer) and one is not OVER]
        assert left == []
    finally:
        gc.enable()
        server.close()
