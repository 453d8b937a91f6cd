"""The main job on a real vLLM: start, watch, load, change, stop.

`make test-vllm` installs the engine and the model. Starts are slow (a minute), so each test does much.
"""

import re

import pytest

from loadgen.run.operations import Operation, Pause, Resume, SetConcurrency, Stop
from loadgen.schema.snapshot import Snapshot
from tests.run.driving import run_of
from tests.vllm.engine import engine_processes, here

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


async def test_the_main_job_with_the_operator_at_the_keys() -> None:
    """Start, milestones, live changes of load, stop: in one go, as `vramp profiles/vllm-cpu-tiny.toml` does it."""
    profile = here("load.duration=60s", "load.warmup=0", "load.concurrency=2")
    run = run_of(profile)
    steps: list[Operation] = [SetConcurrency(4), Pause(), Resume(), SetConcurrency(1), Stop()]
    milestones: set[str] = set()
    details: dict[str, str] = {}
    changed: set[int] = set()  # stages that a step was meant for: snapshots lag behind the steps

    def ready(snapshot: Snapshot, step: Operation) -> bool:
        if isinstance(step, Resume):
            return snapshot.phase == "paused"
        if snapshot.phase != "running" or snapshot.stages[-1].number in changed:
            return False
        return snapshot.stages[-1].requests.completed >= 4

    async for snapshot in run.snapshots():
        details |= {entry.id: entry.detail for entry in snapshot.server.milestones}
        milestones |= {entry.id for entry in snapshot.server.milestones if entry.state == "done"}
        if steps and ready(snapshot, steps[0]):
            changed.add(snapshot.stages[-1].number)
            run.apply(steps.pop(0))
    assert run.error is None
    result = run.result
    assert result is not None
    assert (result.state, result.environment["vllm_version"]) == ("stopped", "0.32.0")
    assert [stage.target.concurrency for stage in result.stages] == [2, 4, 4, 1]
    assert {"import", "weights", "kv_cache", "ready"} <= milestones
    assert re.search(r"[\d,]+ tokens, [\d.]+x at 8,192 tokens", details["kv_cache"])
    assert any("no process left" in event.text for event in result.events)
    for stage in result.stages:
        assert stage.requests.completed >= 4
        assert stage.requests.failed == 0
        assert stage.latency_ms["ttft"].p99 is not None
        assert (stage.tokens.input_per_request, stage.tokens.output_per_request) == (256, 64)
    assert engine_processes() == []
