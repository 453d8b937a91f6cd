"""`vramp run` from words to exit code: what it exports, and that what cannot be exported stops it before it starts."""

import re
import socket
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from tests.engines import Simulator
from tui.cli.__main__ import main


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def vramp(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def small(engine: Simulator) -> list[str]:
    return ["run", "--url", engine.url, "--isl", "16", "--osl", "4", "--concurrency", "2", "--requests", "10"]


def test_limits_go_to_a_file_and_figures_to_a_port(engine: Simulator, capfd: pytest.CaptureFixture[str]) -> None:
    more = ["--slo", "ttft_p99=0.001ms,tpot_p99=100s", "--junit", "tests.xml", "--metrics-port", "0"]
    assert vramp(*small(engine), *more) == 1
    (address,) = re.findall(r"^metrics: http://127\.0\.0\.1:(\d+)/metrics$", capfd.readouterr().err, re.MULTILINE)
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
