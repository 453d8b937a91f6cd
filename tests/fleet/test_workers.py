"""Runs whose workers die or hang: the rest goes on, and the result says what was lost."""

import os
import signal

import pytest

from loadgen.errors import WorkerError
from loadgen.run.operations import Abort
from loadgen.run.run import Run
from loadgen.schema.result import Result
from tests.engines import Simulator, attach
from tests.run.driving import finish, flowing, left_behind, once, processes_of_ours, run_of

pytestmark = pytest.mark.usefixtures("little_patience")


def stop_one(_: Run) -> None:
    os.kill(processes_of_ours("loadgen.worker")[0].pid, signal.SIGSTOP)


def adds_up(result: Result) -> bool:
    return not any(verdict.id == "accounting" for stage in result.stages for verdict in stage.verdicts)


async def test_a_stopped_worker_is_ended_and_the_run_goes_on(engine: Simulator) -> None:
    run = run_of(attach(engine, load={"workers": 2, "osl": 50, "requests": 60}))
    result = await finish(run, once(flowing, stop_one))
    assert (result.state, run.error, result.client.workers) == ("complete", None, 1)
    (reported,) = [event.text for event in result.events if event.kind == "error"]
    assert reported.endswith("sent no tick for 1.5 s and was killed; 2 streams are lost with it")
    assert adds_up(result)
    assert result.stages[0].requests.unfinished == 2
    assert result.stages[0].stop_reason == "all requests were answered but those of 1 of 2 workers, which died"
    assert result.client.limited
    assert "worker" in (result.client.why or "")
    assert left_behind() == []


async def test_only_worker_stopped_gives_a_partial_result(engine: Simulator) -> None:
    run = run_of(attach(engine, load={"requests": None, "duration": "60s", "osl": 50}))
    result = await finish(run, once(flowing, stop_one))
    assert isinstance(run.error, WorkerError)
    assert result.state == "failed" and result.stages[0].requests.completed > 0
    assert result.reason.startswith("all workers are gone: worker 0 sent no tick for 1.5 s and was killed")
    assert adds_up(result)
    assert left_behind() == []


async def test_an_abort_does_not_wait_for_a_stopped_worker(engine: Simulator) -> None:
    run = run_of(attach(engine, load={"requests": None, "duration": "60s", "workers": 2, "osl": 50}))

    def stop_and_abort(run: Run) -> None:
        stop_one(run)
        run.apply(Abort())

    result = await finish(run, once(flowing, stop_and_abort))
    assert result.state == "stopped"
    assert adds_up(result)
    assert result.stages[0].requests.unfinished == 4
    assert left_behind() == []
