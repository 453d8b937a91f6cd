"""What the operator does to a running stage: hold it, extend it."""

from loadgen.plan.stage import Stage
from loadgen.run.running_stage import RunningStage


async def test_stage_held_and_extended_in_its_warm_up() -> None:
    now_s = 0.0
    stage = Stage(concurrency=4, rate=None, isl=8, osl=8, duration_s=10.0, warmup_s=60.0)
    running = RunningStage(
        stage,
        lambda: now_s,
        open_streams=4,
        filled=4,
        settle_time_over=lambda: None,
        time_over=lambda: None,
    )
    now_s = 5.0
    running.hold()
    assert running.extend(None) == 10.0
    assert running.stage.duration_s == 10.0
    running.end()
