"""A replay shows what the run showed, at any speed."""

from pathlib import Path

import msgspec
import pytest

from loadgen.errors import ResultError
from loadgen.run.operations import NextStage, Note, Pause, Resume, Stop
from loadgen.run.replay import Replay
from loadgen.run.run import Run
from loadgen.schema.deltas import ClientDelta
from loadgen.schema.journal import Line, RunFinished, ServerChanged, Ticked, encode_line
from loadgen.schema.shared import Diagnosis
from loadgen.schema.snapshot import Snapshot
from tests.engines import MANAGED, profile
from tests.journal import STARTED
from tests.run.driving import finish, in_turn, noted, run_of


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Snapshot]:
    """The journal of a run with a pause and a note in it, and the last that it showed."""
    import asyncio

    shown: list[Snapshot] = []
    steps = in_turn(
        (lambda now: now.phase == "running" and now.load.held > 0, Note("the fan is loud")),
        (lambda now: bool(now.events), Pause()),
        (lambda now: now.phase == "paused", Resume()),
    )

    async def record() -> Run:
        run = run_of(profile(MANAGED, load={"requests": 250}))
        await finish(run, noted(shown, steps))
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("replay"))
        run = asyncio.run(record())
        return run.folder.absolute() / "journal.jsonl", shown[-1]


async def played(replay: Replay) -> list[Snapshot]:
    return [snapshot async for snapshot in replay.snapshots()]


async def test_it_ends_where_the_run_ended(recorded: tuple[Path, Snapshot]) -> None:
    journal, last = recorded
    shown = await played(Replay(journal, speed=100))
    end = shown[-1]
    assert (end.phase, end.headline) == ("done", last.headline)
    assert end.stages == last.stages
    assert (end.requests, end.latency_ms) == (last.requests, last.latency_ms)
    assert end.events == last.events
    assert end.replay is not None
    assert end.replay.position_s == end.replay.length_s
    assert {snapshot.phase for snapshot in shown} <= {
        *("checking", "starting", "probing", "running", "paused", "draining", "holding", "stopping", "done")
    }


async def test_every_point_is_reported_once(recorded: tuple[Path, Snapshot]) -> None:
    journal, _ = recorded
    slow, fast = await played_in_steps(Replay(journal)), await played(Replay(journal, speed=100))
    assert _points(fast) == _points(slow)
    assert len(_points(fast)) > 4


async def test_a_step_is_one_tick_and_stands_still(recorded: tuple[Path, Snapshot]) -> None:
    journal, _ = recorded
    replay = Replay(journal)
    feed = replay.snapshots()
    first = await anext(feed)
    replay.apply(NextStage())
    stepped = await anext(feed)
    replay.set_speed(1000)
    again = await anext(feed)
    assert first.replay is not None and stepped.replay is not None and again.replay is not None
    assert stepped.replay.position_s > first.replay.position_s
    assert stepped.replay.paused
    assert again.replay.position_s == stepped.replay.position_s
    assert again.replay.speed == 100
    replay.apply(Stop())
    assert [snapshot async for snapshot in feed] == []


async def test_a_torn_journal_is_played_as_far_as_it_goes(recorded: tuple[Path, Snapshot], tmp_path: Path) -> None:
    torn = tmp_path / "journal.jsonl"
    whole = recorded[0].read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    shown = await played(Replay(torn, speed=100))
    assert shown[-1].phase != "done"
    assert shown[-1].replay is not None
    assert shown[-1].replay.position_s <= shown[-1].replay.length_s


async def test_a_damaged_line_is_passed_over_and_reported(recorded: tuple[Path, Snapshot], tmp_path: Path) -> None:
    damaged = tmp_path / "journal.jsonl"
    lines = recorded[0].read_bytes().splitlines(keepends=True)
    lines[len(lines) // 2] = b"\xff\xfe\n"
    damaged.write_bytes(b"".join(lines))
    end = (await played(Replay(damaged, speed=100)))[-1]
    assert end.phase == "done"
    (reported,) = [event.text for event in end.events if event.kind == "error"]
    assert reported.startswith(f"left out: {damaged}:{len(lines) // 2 + 1}: not a line of a journal")


async def test_a_run_that_goes_on_is_played_to_where_it_was(recorded: tuple[Path, Snapshot], tmp_path: Path) -> None:
    growing = tmp_path / "journal.jsonl"
    lines = recorded[0].read_bytes().splitlines(keepends=True)
    growing.write_bytes(b"".join(lines[:-20]))
    replay = Replay(growing, speed=100)
    growing.write_bytes(b"".join(lines))
    end = (await played(replay))[-1]
    assert end.replay is not None and end.replay.position_s == end.replay.length_s
    assert end.phase != "done"


def server(t_s: float, state: str, variant: str, diagnosis: Diagnosis | None = None) -> ServerChanged:
    fields = {"t_s": t_s, "state": state, "engine": "vllm", "url": "", "variant": variant, "diagnosis": diagnosis}
    return msgspec.convert(fields, ServerChanged)


def tick(t_s: float) -> Ticked:
    return Ticked(t_s=t_s, span_s=0.25, stages={}, client=ClientDelta(), held=0)


async def test_a_death_and_another_start_are_reported_as_they_were(tmp_path: Path) -> None:
    cause = Diagnosis("killed", "something killed it", (), "look for who did")
    lines: list[Line] = [
        msgspec.structs.replace(STARTED, profile={"name": "mine+small"}),
        *(tick(1.0), server(2.0, "starting", "small"), tick(3.0), server(4.0, "ready", "small"), tick(5.0)),
        *(server(6.0, "died", "small", cause), tick(7.0), server(8.0, "died", "small", cause), tick(9.0)),
        *(server(10.0, "starting", "large"), server(11.0, "ready", "large"), tick(12.0)),
        *(server(13.0, "stopped", "large"), tick(14.0), server(15.0, "starting", "base"), tick(17.0)),
        RunFinished(t_s=18.0, unix_s=1.7e9, state="stopped", reason="stopped by the operator"),
    ]
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"".join(encode_line(line) + b"\n" for line in lines))
    shown = await played_in_steps(Replay(journal))
    assert [(one.phase, one.headline) for one in shown[4:8]] == [
        ("failed", "the server died: something killed it"),
        ("failed", "the server died: something killed it"),
        ("probing", "server ready: asking what it serves"),
        ("stopping", "stopping: the server"),
    ]
    assert [one.healthy for one in shown[4:8]] == [False, False, True, True]
    assert [one.server.uptime_s for one in shown[1:9]] == [None, 1.0, 3.0, 4.0, 4.0, 2.0, 4.0, 2.0]
    names = ["mine+small"] * 6 + ["mine+large"] * 2 + ["mine"] * 2
    assert [one.profile for one in shown] == names
    assert shown[-1].headline == "stopped: stopped by the operator"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"{}\n", "not a line of a journal|does not begin|not one of"),
        (b"\xff\xfe\n", "its last line is not one"),
        (b'{"type": "Happened", "t_s": 1, "kind": "note", "text": "x"}\n', "does not begin with its start"),
    ],
)
async def test_what_is_no_journal_is_named(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=words):
        Replay(path)


async def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="No such file"):
        Replay(tmp_path / "journal.jsonl")


async def played_in_steps(replay: Replay) -> list[Snapshot]:
    shown = []
    replay.apply(NextStage())
    async for snapshot in replay.snapshots():
        shown.append(snapshot)
        replay.apply(NextStage())
    return shown


def _points(shown: list[Snapshot]) -> list[float]:
    """The times of all points, each once."""
    times = [point.t_s for snapshot in shown for point in (*snapshot.past, snapshot.point)]
    return sorted(set(times) - {0.0})
