"""Nothing vanishes in a whole run: random plans, keys, faults and ends, checked live and in the result."""

import random
from collections.abc import Callable

import pytest

from loadgen.run.operations import (
    Abort,
    Extend,
    Hold,
    NextStage,
    Operation,
    Pause,
    Redo,
    Resume,
    SetConcurrency,
    SetRate,
    SetShape,
    Stop,
)
from loadgen.run.run import Run
from loadgen.schema.deltas import OUTCOMES
from loadgen.schema.result import StageResult
from loadgen.schema.snapshot import Snapshot
from tests.engines import Simulator, attach
from tests.run.driving import finish, left_behind, run_of

KEYS: list[Callable[[random.Random], Operation]] = [
    lambda chance: SetConcurrency(chance.randint(1, 24)),
    lambda chance: SetRate(chance.choice([5.0, 40.0, 200.0])),
    lambda chance: SetShape(16, chance.choice([4, 60, 400])),
    lambda _: Pause(),
    lambda _: Resume(),
    lambda _: Hold(),
    lambda _: Extend(),
    lambda _: Redo(),
    lambda _: NextStage(),
]
ENDS: list[Operation] = [Stop(), Abort()]


def adds_up(stage: StageResult) -> bool:
    requests = stage.requests
    return requests.scheduled == requests.sent + (requests.unsent or 0) and requests.sent == sum(
        getattr(requests, name) for name in OUTCOMES
    ) + (requests.open or 0)


@pytest.mark.parametrize("seed", range(3))
async def test_every_request_is_accounted_for(engine: Simulator, seed: int) -> None:
    chance = random.Random(seed)
    engine.faults(*chance.sample(["http_500:every=7", "reset:after=3,every=5", "http_429:every=9"], 2))
    await drive(engine, chance)
    assert left_behind() == []


async def drive(engine: Simulator, chance: random.Random) -> None:
    stages = [random_stage(chance) for _ in range(3)]
    load = {"osl": 40, "isl": 16, "workers": chance.choice([1, 2]), "max_concurrency": 10, "requests": None}
    run = run_of(attach(engine, load=load | {"duration": "600ms"}, stages=stages))
    seen: list[Snapshot] = []

    def press(run: Run, snapshot: Snapshot) -> None:
        seen.append(snapshot)
        if snapshot.phase in ("running", "paused") and chance.random() < 0.4:
            run.apply(chance.choice(KEYS)(chance))
        if len(seen) > 20:
            run.apply(chance.choice(ENDS))

    result = await finish(run, press)
    assert [stage for snapshot in seen for stage in snapshot.stages if not adds_up(stage)] == []
    assert [verdict for stage in result.stages for verdict in stage.verdicts if verdict.id == "accounting"] == []
    for stage in result.stages:
        requests = stage.requests
        assert requests.scheduled == requests.sent + (requests.unsent or 0)
        assert requests.sent == sum(getattr(requests, name) for name in OUTCOMES)
        assert sum(requests.errors.values()) == requests.failed + (requests.carried_failed or 0)
        # A stage has numbers, or says why not.
        has_numbers = stage.measured_s > 0
        assert has_numbers or stage.inconclusive or stage.stop_reason, stage.label


def random_stage(chance: random.Random) -> dict[str, object]:
    load: dict[str, object] = chance.choice([{"concurrency": chance.randint(1, 16)}, {"rate": 60.0}])
    return load | chance.choice([{"duration": "10ms"}, {"duration": "700ms"}, {"requests": 30}])
