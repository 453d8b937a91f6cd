"""A load that changes faster than it can be measured: each change is an event, each stage has numbers or a reason."""

from loadgen.run.operations import SetConcurrency, Stop
from loadgen.run.run import Run
from loadgen.schema.deltas import OUTCOMES
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from tests.engines import Simulator, attach
from tests.run.driving import finish, run_of


def require_numbers_or_reasons(result: Result) -> None:
    for stage in result.stages:
        requests = stage.requests
        assert requests.sent == sum(getattr(requests, name) for name in OUTCOMES)
        if stage.measured_s:
            assert stage.throughput.output_tokens_per_s is not None
        else:
            assert stage.inconclusive is not None and stage.inconclusive.startswith("it ended before")


async def test_a_key_that_repeats(engine: Simulator) -> None:
    load = {"requests": None, "duration": "60s", "concurrency": 4, "osl": 64}
    run = run_of(attach(engine, load=load))
    wanted = 4

    def repeat(run: Run, snapshot: Snapshot) -> None:
        nonlocal wanted
        if snapshot.phase != "running" or not snapshot.stages:
            return
        for _ in range(8):
            wanted += 1
            run.apply(SetConcurrency(wanted))
        if wanted > 60:
            run.apply(Stop())

    result = await finish(run, repeat)
    assert len(result.stages) == 1 + wanted - 4
    changes = [event for event in result.events if event.kind == "load"]
    assert len(changes) == wanted - 4
    require_numbers_or_reasons(result)


async def test_many_stages_of_ten_milliseconds(engine: Simulator) -> None:
    stages = [{"concurrency": 4, "duration": "10ms"}] * 30
    run = run_of(attach(engine, load={"requests": None, "osl": 16}, stages=stages))
    result = await finish(run)
    assert result.state == "complete"
    assert len(result.stages) == 30
    require_numbers_or_reasons(result)
    # The streams go on from stage to stage, so that stages in which none was answered have gaps and tokens, too.
    assert sum(stage.latency_ms["itl"].count > 0 for stage in result.stages) > 5
