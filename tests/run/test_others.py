"""Whose traffic it is, on a real engine: a run that drives it, one that watches, and requests of somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from loadgen.run.operations import Stop
from loadgen.run.run import Run
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from tests.engines import Simulator, attach
from tests.run.driving import finish, outcome, run_of


async def test_a_monitor_sees_all_that_another_run_sends_and_that_one_is_alone(engine: Simulator) -> None:
    begun, noticed = asyncio.Event(), asyncio.Event()

    def look(run: Run, snapshot: Snapshot) -> None:
        if snapshot.stages:
            begun.set()
        if snapshot.others is not None and snapshot.others.requests_per_s:
            noticed.set()

    watcher = run_of(attach(engine, load={"concurrency": 0, "requests": None}))

    async def drive() -> Result:
        await begun.wait()
        result, error = await outcome(attach(engine, load={"concurrency": 4, "requests": 300}))
        assert error is None
        await noticed.wait()
        watcher.apply(Stop())
        return result

    watched, driven = await asyncio.gather(finish(watcher, look), drive())
    served = engine.truth()["requests"]["received"]
    (stage,) = watched.stages
    assert stage.engine is not None and stage.others is not None and stage.engine.between_s is not None
    began_s, ended_s = stage.engine.between_s
    assert watched.kind == "monitor"
    # The first requests that the other run asks whether it can are others', too.
    assert round((stage.others.requests_per_s or 0.0) * (ended_s - began_s)) == stage.engine.requests == served
    assert served >= 300
    (load,) = driven.stages
    assert load.others is not None and load.others.requests_per_s == 0.0 and not load.others.seen
    assert "other-traffic" not in [verdict.id for verdict in load.verdicts]


@asynccontextmanager
async def somebody_else(engine: Simulator) -> AsyncIterator[None]:
    """Four of somebody else's requests at a time."""
    body = {"model": "simulator", "prompt": "once upon a time", "max_tokens": 64, "ignore_eos": True}

    async def one(client: httpx.AsyncClient) -> None:
        while True:
            await client.post(f"{engine.url}/v1/completions", json=body)

    async with httpx.AsyncClient(timeout=30) as client:
        tasks = [asyncio.create_task(one(client)) for _ in range(4)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_load_next_to_somebody_elses_says_so_and_is_not_compared(engine: Simulator) -> None:
    async with somebody_else(engine):
        result, error = await outcome(attach(engine, load={"concurrency": 1, "requests": None, "duration": "3s"}))
    (stage,) = result.stages
    assert error is None and stage.others is not None and stage.truth is not None
    assert stage.others.generation_tokens_per_s == pytest.approx(
        4 * (stage.throughput.output_tokens_per_s or 0), rel=0.6
    )
    (verdict,) = [verdict for verdict in stage.verdicts if verdict.id == "other-traffic"]
    assert verdict.text.startswith("others use this server, too: ") and not verdict.bad
    assert stage.truth.agrees is None and verdict.text in stage.truth.why
