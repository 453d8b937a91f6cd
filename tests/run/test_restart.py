"""The server restarted by the operator: as it was or as a variant, alive or dead."""

from collections.abc import Callable
from typing import Any

from loadgen.errors import LoadError
from loadgen.profile.schema import Profile
from loadgen.run.operations import NextStage, Pause, Restart, Resume, SetConcurrency, Stop
from loadgen.run.run import Run
from loadgen.schema.snapshot import Snapshot
from tests.engines import profile
from tests.run.driving import finish, flowing, in_turn, left_behind, noted, processes_of_ours, run_of, texts

ENDLESS = {"requests": None, "duration": "60s", "concurrency": [2, 4]}


def managed(**args: object) -> Profile:
    return profile({"engine": "simulator", "args": {"preset": "fast", **args}}, load=ENDLESS)


VARIANTS = {"base": managed(), "small": managed(**{"max-num-seqs": 7})}


def opened(parts: Profile, **options: Any) -> Run:
    return run_of(parts, hold_open=True, variants=VARIANTS, **options)


def at(phase: str) -> Callable[[Snapshot], bool]:
    return lambda snapshot: snapshot.phase == phase


def flowing_on(variant: str) -> Callable[[Snapshot], bool]:
    return lambda snapshot: flowing(snapshot) and snapshot.server.variant == variant


def kill_server(_: Run) -> None:
    processes_of_ours("loadgen.simulator")[0].kill()


async def test_a_ramp_comes_back_at_the_load_it_had_reached() -> None:
    ramp = {"start": 1, "end": 5, "over": "1s", "steps": 2}
    parts = profile({"engine": "simulator", "args": {"preset": "fast"}}, plan={"ramp": ramp}, load={"requests": None})
    act = in_turn(
        (lambda snapshot: flowing(snapshot) and snapshot.load.concurrency == 5, Restart(None)),
        (lambda snapshot: len(snapshot.stages) == 2 and flowing(snapshot), Stop()),
    )
    result = await finish(run_of(parts, hold_open=True), act)
    assert [stage.target.concurrency for stage in result.stages] == [1, 5]


async def test_a_restart_with_a_variant_and_back() -> None:
    seen: list[Snapshot] = []
    run = opened(VARIANTS["base"], variant="base")
    steps = in_turn(
        (flowing_on("base"), Restart("huge")),
        (flowing_on("base"), Restart("small")),
        (flowing_on("small"), Restart(None)),
        (at("restarting"), SetConcurrency(3)),
        (flowing_on("small"), NextStage()),
        (lambda snapshot: len(snapshot.stages) == 4 and flowing(snapshot), Stop()),
        (at("stopping"), Restart("base")),
    )
    result = await finish(run, noted(seen, steps))
    assert (result.state, run.error) == ("stopped", None)
    assert seen[0].variants == ("base", "small")
    # What ran goes on by hand; then the plan, which is not told of what was broken off.
    assert [(stage.variant, stage.target.concurrency) for stage in result.stages] == [
        ("base", 2),
        ("small", 2),
        ("small", 3),
        ("small", 4),
    ]
    assert result.stages[0].stop_reason == "the server was restarted by the operator"
    assert all(stage.requests.completed and stage.engine is not None for stage in result.stages[:3])
    assert [stage.first_wave and stage.first_wave.streams for stage in result.stages[:2]] == [2, 2]
    assert [event for event in texts(result, "server") if event.startswith("restart")] == [
        "restart by the operator, variant small",
        "restart by the operator",
    ]
    assert texts(result, "error") == [
        "restart refused: no variant 'huge'; there are: base, small",
        "restart refused: the run is ending",
    ]
    starts = result.environment["server_starts"]
    assert [start["variant"] for start in starts] == ["base", "small", "small"]
    assert ["--max-num-seqs" in start["server_command"] for start in starts] == [False, True, True]
    assert result.environment["server_command"] == starts[-1]["server_command"]
    assert left_behind() == []


async def test_a_server_that_dies_under_an_operator_is_started_again() -> None:
    run = opened(VARIANTS["base"])
    act = in_turn(
        (flowing, kill_server),
        (at("failed"), Restart(None)),
        (flowing, Stop()),
    )
    result = await finish(run, act)
    assert (result.state, run.error) == ("stopped", None)
    assert [stage.target.concurrency for stage in result.stages] == [2, 2]
    assert result.stages[0].stop_reason.startswith("the server was killed by SIGKILL")
    assert any("SIGKILL" in text for text in texts(result, "error"))
    # Of the start that counts.
    assert result.diagnosis is None
    assert left_behind() == []


async def test_a_dead_server_that_the_operator_leaves_at_that() -> None:
    run, uptimes = opened(VARIANTS["base"]), set[float | None]()
    steps = in_turn((flowing, kill_server), *[(at("failed"), lambda _: None)] * 3, (at("failed"), Stop()))

    def act(run: Run, snapshot: Snapshot) -> None:
        if snapshot.server.state == "died":
            uptimes.add(snapshot.server.uptime_s)
        steps(run, snapshot)

    result = await finish(run, act)
    assert len(uptimes) == 1
    assert isinstance(run.error, LoadError)
    assert (result.state, result.reason) == ("server_died", str(run.error))
    assert result.diagnosis is not None
    assert left_behind() == []


async def test_what_is_blocked_or_does_not_start_gives_way_to_a_variant_that_does() -> None:
    seen: list[Snapshot] = []
    blocked = profile({"engine": "vllm", "model": "m", "command": "/nothing/vllm"}, load=ENDLESS)
    broken = managed(**{"fail-startup": "RuntimeError: no such kernel"})
    run = run_of(blocked, hold_open=True, variants=VARIANTS | {"broken": broken})
    act = in_turn((at("blocked"), Restart("broken")), (at("failed"), Restart("small")), (flowing, Stop()))
    result = await finish(run, noted(seen, act))
    (failed, *_) = [snapshot for snapshot in seen if snapshot.phase == "failed"]
    assert failed.server.state == "died" and not failed.healthy
    assert "exit code 1" in failed.headline
    assert (result.state, run.error) == ("stopped", None)
    assert [stage.variant for stage in result.stages] == ["small"]
    # Nothing had begun: the plan does.
    assert result.stages[0].target.concurrency == 2 and result.stages[0].duration_s > 0


async def test_a_paused_load_stays_paused_over_a_restart() -> None:
    run = opened(VARIANTS["base"], variant="base")
    act = in_turn(
        (flowing, Pause()),
        (at("paused"), Restart("base")),
        # A second thought while the server stops.
        (at("restarting"), Restart("small")),
        (lambda snapshot: snapshot.phase == "paused" and snapshot.server.variant == "small", Resume()),
        (flowing, Stop()),
    )
    result = await finish(run, act)
    assert [stage.variant for stage in result.stages] == ["base", "small"]
    assert texts(result, "resume") == ["resumed"]
