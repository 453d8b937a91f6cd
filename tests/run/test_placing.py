"""Workers of real runs stay off the CPUs that their server was given, and the result says so."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ProfileError
from loadgen.report.text import text_report
from loadgen.run.operations import Stop
from loadgen.run.run import Run
from loadgen.schema.shared import Placement
from loadgen.system import parse_cpus
from tests.engines import Simulator, attach, profile, simulator
from tests.run.driving import finish, flowing, in_turn, left_behind, processes_of_ours, run_of

USABLE = frozenset(os.sched_getaffinity(0))
FIRST = min(USABLE)
ENDLESS: dict[str, Any] = {"requests": None, "duration": "60s"}
several_cpus = pytest.mark.skipif(len(USABLE) < 2, reason="there is nothing to choose from on one CPU")


async def placed(run: Run) -> tuple[Placement, set[frozenset[int]]]:
    """What the result of a run says, and on which CPUs the kernel let the workers run."""
    allowed: set[frozenset[int]] = set()

    def look(_: Run) -> None:
        for worker in processes_of_ours("loadgen.worker"):
            lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
            (words,) = [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")]
            allowed.add(parse_cpus(words))

    result = await finish(run, in_turn((flowing, look), (flowing, Stop())))
    assert run.error is None
    assert result.client.placement is not None
    assert (result.client.placement.words in text_report(result)) == result.client.placement.pinned
    return result.client.placement, allowed


@pytest.fixture(scope="module")
def pinned() -> Iterator[Simulator]:
    """A server on one CPU."""
    with simulator(before=("taskset", "-c", str(FIRST))) as running:
        yield running


@several_cpus
async def test_workers_avoid_the_cpus_of_an_attached_server(pinned: Simulator) -> None:
    where, allowed = await placed(run_of(attach(pinned, load={"workers": None, **ENDLESS})))
    assert where.pinned
    assert FIRST in parse_cpus(where.avoided)
    assert FIRST not in parse_cpus(where.cpus)
    assert allowed == {parse_cpus(where.cpus)}
    assert where.why.startswith("off the server's CPUs")


@several_cpus
async def test_workers_avoid_the_cpus_of_a_server_of_ours(tmp_path: Path) -> None:
    vllm = tmp_path / "vllm"
    words = f'taskset -c {FIRST} {sys.executable} -m loadgen.simulator --preset fast "$@"'
    vllm.write_text(f'#!/bin/sh\n[ "$1" = serve ] || exit 1\nshift 2\nexec {words}\n')
    vllm.chmod(0o755)
    server = {"engine": "vllm", "command": str(vllm), "model": "some/model"}
    run = run_of(profile(server, load={**ENDLESS}), force=True)
    where, allowed = await placed(run)
    assert where.pinned
    assert FIRST not in parse_cpus(where.cpus)
    assert allowed == {parse_cpus(where.cpus)}
    assert left_behind() == []


async def test_a_server_that_may_use_every_cpu_leaves_workers_unpinned(engine: Simulator) -> None:
    where, allowed = await placed(run_of(attach(engine, load={**ENDLESS})))
    assert (where.pinned, where.why) == (False, "the server may use every CPU that vramp may use")
    assert allowed == {USABLE}


async def test_cpus_can_be_named(engine: Simulator) -> None:
    run = run_of(attach(engine, load={**ENDLESS, "workers": 2, "cpus": str(FIRST)}))
    where, allowed = await placed(run)
    assert (where.pinned, where.why, where.cpus) == (True, "named in load.cpus", str(FIRST))
    assert allowed == {frozenset({FIRST})}


@several_cpus
async def test_placement_can_be_turned_off(pinned: Simulator) -> None:
    where, allowed = await placed(run_of(attach(pinned, load={**ENDLESS, "cpus": "all"})))
    assert (where.pinned, allowed) == (False, {USABLE})


async def test_a_cpu_that_is_not_there_is_an_error_before_anything_is_sent(engine: Simulator) -> None:
    run = run_of(attach(engine, load={"cpus": "8000"}))
    result = await finish(run)
    assert isinstance(run.error, ProfileError)
    assert result.reason.startswith("load.cpus: vramp may not use 8000; its CPUs are ")
    assert result.stages == []
    assert left_behind() == []
