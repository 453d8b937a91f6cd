"""The engine's numbers beside ours, when one of several servers cannot be read."""

import asyncio

from loadgen.metrics.journal import EngineMeasured, EngineStage, Happened, Line
from loadgen.run.engine_watch import EngineWatch
from loadgen.server.client import ServerClient
from tests.engines import simulator


async def test_of_several_the_whole_is_known_when_all_are() -> None:
    lines: list[Line] = []
    with simulator() as first, simulator() as second:
        async with ServerClient(first.url) as one, ServerClient(second.url) as other:
            watch = EngineWatch([one, other], lines.append, lambda: 1.0)
            await watch.start()
            idle = watch.view
            assert idle is not None and idle.running == 0
            watch.boundary(None, 0)
            second.process.kill()
            await asyncio.to_thread(second.process.wait)
            watch.boundary(0, None)
            await watch.settle()
            await watch.close()
    assert watch.view is None
    assert [view is None for view in watch.views] == [False, True]
    [event, measured] = lines
    assert isinstance(event, Happened) and event.text.startswith("no engine metrics")
    assert isinstance(measured, EngineMeasured) and measured.engine == EngineStage()
    assert [stage is None for stage in measured.instances] == [False, True]
