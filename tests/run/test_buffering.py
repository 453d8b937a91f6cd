"""Whole loads on an engine whose output is held back on its way, and on the same engine where it is not."""

from collections.abc import Iterator

import pytest

from loadgen.record import hardware
from loadgen.schema.result import StageResult
from tests.engines import Simulator, attach, simulator
from tests.run.driving import outcome

LOAD = {"isl": 16, "osl": 60, "concurrency": 4, "requests": 24}
STEP_MS = 10


@pytest.fixture(scope="module")
def paced() -> Iterator[Simulator]:
    """An engine with a token each 10 ms a stream: ten times as long as the client needs for it on a busy machine."""
    with simulator("--step-ms", str(STEP_MS)) as running:
        yield running


def verdicts(stage: StageResult) -> set[str]:
    return {verdict.id for verdict in stage.verdicts}


async def test_output_that_is_held_back_is_put_down_to_the_path(
    paced: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other tests leave this host no core to spare, where the verdict is silent.
    monkeypatch.setattr(hardware, "_full_percent", lambda cores: 101.0)
    paced.faults("hold:seconds=0.2")
    try:
        result, error = await outcome(attach(paced, load=LOAD | {"requests": 12}))
    finally:
        paced.forget()
    (stage,) = result.stages
    assert (error, stage.requests.completed) == (None, 12)
    assert "stream-buffered" in verdicts(stage)
    assert "client-limited" not in verdicts(stage)
    assert stage.bursts is not None
    assert stage.bursts.held_back
    assert stage.doubt is not None
    assert stage.doubt.startswith("stream-buffered")


async def test_output_that_comes_as_it_is_made_is_not(paced: Simulator) -> None:
    result, error = await outcome(attach(paced, load=LOAD))
    (stage,) = result.stages
    assert (error, stage.requests.completed) == (None, 24)
    assert "stream-buffered" not in verdicts(stage)
    assert stage.bursts is None or not stage.bursts.held_back
