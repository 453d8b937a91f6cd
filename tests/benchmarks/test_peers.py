"""The comparison from end to end on a simulator, and the table that it becomes."""

import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.clients import VRAMP, Client, Reported, vramp_command
from benchmarks.peers import Measured, NoFigures, Served, check_end, compare, table
from benchmarks.watched import Ended

TRUE = Served(55.0, 60.0, 10.1, 63.6, 6000.0)


def python(name: str, code: str) -> Client:
    return Client(
        name, lambda: Path(sys.executable), lambda program, _: [str(program), "-c", code], "", lambda _: Reported(1)
    )


def row(runs: list[Measured]) -> str:
    return table(runs).splitlines()[-1]


async def test_what_works_and_what_does_not_are_rows(capsys: pytest.CaptureFixture[str]) -> None:
    clients = [
        VRAMP,
        Client("missing", lambda: "cannot be installed: no such package", vramp_command, "vramp.json"),
        python("broken", "raise SystemExit('Error: it broke')"),
        python("idle", "pass"),
        Client("mute", lambda: Path(sys.executable), vramp_command, "none.json"),
    ]
    vramp, missing, broken, idle, mute = await compare(clients, [4], rounds=1, each=2)
    assert vramp.why is None and vramp.reported is not None and vramp.served is not None
    assert vramp.reported.ttft_mean_ms == pytest.approx(vramp.served.ttft_mean_ms, rel=0.5)
    assert 1 < vramp.served.held <= 4
    assert vramp.cpu_s is not None and vramp.cpu_s > 0
    assert missing.why == "cannot be installed: no such package"
    assert broken.why == "exit code 1: Error: it broke"
    assert idle.why == "no request was answered"
    assert mute.why == "its result cannot be read: [Errno 2] No such file or directory: '***'"
    wanted_words = capsys.readouterr().err.splitlines()
    assert [line.split(" | ")[1] for line in wanted_words] == ["vramp", "missing", "broken", "idle", "mute"]


def test_a_failed_run_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "output.txt").write_text("Traceback\nValueError: no\n")
    check_end(Ended(0, 1.0, None), tmp_path)
    with pytest.raises(NoFigures, match="exit code 2: ValueError: no"):
        check_end(Ended(2, 1.0, None), tmp_path)
    with pytest.raises(NoFigures, match="killed after 240 s"):
        check_end(Ended(None, 1.0, None), tmp_path)


def test_the_quietest_round_is_the_row() -> None:
    busy = Measured("a", 64, 0, Reported(57.0, 65.0, 10.0, 10.2, "read late"), TRUE, 10.0, 1.0, others_cores=0.7)
    quiet = Measured("a", 64, 1, Reported(59.0, 67.0, 10.0, 10.4), TRUE, 12.0, 2.0, others_cores=0.1)
    killed = Measured("a", 64, 2, why="killed after 240 s")
    assert row([busy, quiet]) == (
        "| 64 | a | 59.00 (55.00) | 67.00 (60.00) | 10.40 (10.10) | 64 | 6,000 | 12.0 | 2.0 | 0.10 |  |"
    )
    assert row([busy, killed]).endswith("| 0.70 | 1 of 2 rounds: killed after 240 s; its result says client-limited |")


def test_requests_without_an_answer_are_counted() -> None:
    run = Measured("a", 64, 0, Reported(57.0), msgspec.structs.replace(TRUE, unanswered=3))
    assert row([run]) == (
        "| 64 | a | 57.00 (55.00) | - (60.00) | - (10.10) | 64 | 6,000 | - | - | 0.00 "
        "| 3 requests without a complete answer |"
    )


def test_the_table_is_by_load_and_has_every_client() -> None:
    runs = [Measured(name, streams, 0, why="gone") for streams in (1024, 64) for name in ("a", "b")]
    lines = table(runs).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| 64", "a"], ["| 64", "b"], ["| 1,024", "a"], ["| 1,024", "b"],
    ]  # fmt: skip
    assert lines[2] == "| 64 | a |  |  |  |  |  | - | - |  | gone |"
    assert len({line.count("|") for line in lines}) == 1
