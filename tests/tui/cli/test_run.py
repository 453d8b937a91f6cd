"""`vramp run` from words to exit code: what it exports, and that what cannot be exported stops it before it starts."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from tests.engines import Simulator
from tests.tui.cli.commands import exit_code as vramp
from tests.tui.cli.commands import vramp as run


def small(engine: Simulator) -> list[str]:
    return ["run", "--url", engine.url, "--isl", "16", "--osl", "4", "--concurrency", "2", "--requests", "10"]


def test_limits_go_to_a_file_and_figures_to_a_port(engine: Simulator, capfd: pytest.CaptureFixture[str]) -> None:
    more = ["--slo", "ttft_p99=0.001ms,tpot_p99=100s", "--junit", "tests.xml", "--metrics-port", "0"]
    assert vramp(*small(engine), *more) == 1
    said = capfd.readouterr()
    assert "missed" in said.out
    (address,) = re.findall(r"^metrics: http://127\.0\.0\.1:(\d+)/metrics$", said.err, re.MULTILINE)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address)))
    failed = [case.get("name") for case in xml.parse("tests.xml").iter("testcase") if case.find("failure") is not None]
    assert failed == ["ttft_p99 <= 0.001 ms"]


def test_a_taken_port_stops_it_before_it_starts(engine: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert vramp(*small(engine), "--metrics-port", str(taken.getsockname()[1])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vramp: --metrics-port ") and line.endswith("name another, or 0 for a free one")
    assert not Path("runs").exists()


def test_a_junit_path_that_cannot_be_written_stops_it_too(
    engine: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("folder").mkdir()
    assert vramp(*small(engine), "--junit", "folder") == 2
    assert "vramp: folder: is a folder; expected a file" in capsys.readouterr().err
    assert not Path("runs").exists()


def gone() -> int:
    """The end of a pipe that nobody reads."""
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    return write_fd


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(
    ("stdout", "limit", "code"),
    [(gone, "ttft_p99=0.001ms", 1), (gone, "ttft_p99=100s", 0), (full, "ttft_p99=100s", 1)],
)
def test_an_outcome_does_not_hang_on_who_reads_it(
    engine: Simulator, stdout: Callable[[], int], limit: str, code: int
) -> None:
    with os.fdopen(stdout(), "wb") as out:
        done = run(Path(), *small(engine), "--slo", limit, "--junit", "tests.xml", stdout=out)
    assert done.returncode == code, done.stderr
    assert ("limits missed: ttft_p99" in done.stderr) == ("0.001" in limit)
    assert ("standard output cannot be written" in done.stderr) == (stdout is full)
    assert [case.get("name") for case in xml.parse("tests.xml").iter("testcase")][1:] != []


def test_a_locale_that_does_not_have_a_character_gets_it_by_number(engine: Simulator) -> None:
    Path("p.toml").write_text(f"[server]\nengine = 'attach'\nurl = '{engine.url}'\n[[stages]]\nlabel = 'naïve'\n")
    environment = {"PYTHONIOENCODING": "ascii:strict"}
    done = run(Path(), *"run p.toml --isl 16 --osl 4 --requests 10".split(), environment=environment)
    assert done.returncode == 0, done.stderr
    assert "na\\xefve" in done.stdout
