"""`vramp monitor` on a real vLLM: while another vramp that drives it, and over a restart of it."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.run.operations import Note, Stop
from loadgen.run.run import Run
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from loadgen.server.supervisor import ManagedServer
from tests.run.driving import in_turn, outcome, run_of
from tests.vllm.engine import attach, finish, here

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

REQUESTS = 800  # about half a minute, of which the second by which marks and readings are apart is little


def quiet(url: str) -> Profile:
    server = {"engine": "attach", "url": url}
    return build_profile({"server": server, "load": {"concurrency": 0}, "telemetry": "off"}, where="test")


def at_stage(number: int) -> Callable[[Snapshot], bool]:
    return lambda snapshot: len(snapshot.stages) == number


def alongside(
    tasks: "list[asyncio.Task[Any]]", work: "Callable[[Run], Coroutine[Any, Any, Any]]"
) -> Callable[[Run], None]:
    """Do something while the monitor goes on; where that fails, the monitor ends."""

    def ended(run: Run, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            run.apply(Stop())

    def begin(run: Run) -> None:
        tasks.append(asyncio.create_task(work(run)))
        tasks[-1].add_done_callback(partial(ended, run))

    return begin


async def drive(url: str, monitor: Run) -> Result:
    """The load of another run: the monitor has a mark where it begins and where it ends."""
    run = run_of(attach(url, canaries=True, concurrency=[8], requests=REQUESTS, first_wave="counted"))
    marks = [("running", "driven"), ("stopping", "over")]
    async for snapshot in run.snapshots():
        if marks and snapshot.phase == marks[0][0]:
            monitor.apply(Note(marks.pop(0)[1]))
    assert run.error is None and run.result is not None
    monitor.apply(Stop())
    return run.result


def sent_in_all(driver: Result) -> int:
    """Its load, its first request, by which it learns of the server, and its canaries."""
    assert driver.canary is not None
    return sum(stage.requests.sent for stage in driver.stages) + 1 + driver.canary.requests.sent


async def test_traffic_of_another_run_is_its_own_count(url: str) -> None:
    tasks: list[asyncio.Task[Result]] = []
    monitor, error = await outcome(quiet(url), in_turn((at_stage(1), alongside(tasks, partial(drive, url)))))
    driver = await tasks[0]
    assert (error, monitor.kind) == (None, "monitor")
    assert [stage.label for stage in monitor.stages] == ["no load", "driven", "over"]
    parts = [stage.engine for stage in monitor.stages if stage.engine is not None]
    assert len(parts) == 3
    assert sum(part.requests or 0 for part in parts) == sent_in_all(driver)

    (ours,), seen = driver.stages, parts[1]
    assert ours.engine is not None and ours.others is not None and not ours.others.seen
    reported, read = ours.engine.latency_ms["ttft"], seen.latency_ms["ttft"]
    print(
        f"tok/s {ours.throughput.output_tokens_per_s}, seen {seen.generation_tokens_per_s}; "
        f"TTFT {reported}, seen {read}"
    )
    # The canaries that the driver sent while it was idle may fall between the marks.
    assert driver.canary is not None
    assert reported.count <= read.count <= reported.count + driver.canary.requests.sent
    assert read.mean == pytest.approx(reported.mean, rel=0.1)
    (low, high), (told_low, told_high) = read.within["p50"], reported.within["p50"]
    assert low < (told_high or math.inf) and told_low < (high or math.inf)
    assert seen.generation_tokens_per_s == pytest.approx(ours.throughput.output_tokens_per_s, rel=0.1)


async def test_counters_add_up_over_a_restart(server: ManagedServer, tmp_path: Path) -> None:
    url, drivers = server.base_url, list[Result]()
    tasks: list[asyncio.Task[None]] = []

    async def send(run: Run) -> None:
        drivers.append(await finish(attach(url, canaries=True, concurrency=[2], requests=4)))
        run.apply(Note("sent"))

    async def start_again(run: Run) -> None:
        await server.stop()
        async with ManagedServer(here(f"server.port={server.port}").server, log_path=tmp_path / "again.log") as again:
            await again.wait_ready()
            await send(run)
            run.apply(Stop())
            while run.result is None:  # noqa: ASYNC110 - its last reading is of this server
                await asyncio.sleep(0.1)

    act = in_turn((at_stage(1), alongside(tasks, send)), (at_stage(2), alongside(tasks, start_again)))
    monitor, error = await outcome(quiet(url), act)
    await asyncio.gather(*tasks)
    assert (error, monitor.kind) == (None, "monitor")
    assert [stage.label for stage in monitor.stages] == ["no load", "sent", "sent"]
    first, second = (stage.engine for stage in monitor.stages[:2])
    assert first is not None and second is not None
    assert (first.restarts, second.restarts) == (0, 1)
    assert [first.requests, second.requests] == [sent_in_all(driver) for driver in drivers]
    reported = [event.text for event in monitor.events]
    assert any("no engine metrics" in text for text in reported) and any(
        "counters started from zero again" in text for text in reported
    )
