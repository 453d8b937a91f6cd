"""Progress lines: what they say, and what happens where nobody reads them."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.fakes import wait_until
from tests.tui.cli.commands import start
from tests.tui.cli.test_terminal import TOML
from tests.tui.scripted import running
from tui.cli.headless import Progress


@contextmanager
def run_into(stderr: int, folder: Path, length: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "p.toml").write_text(TOML.replace("duration = '60s'", length))
    process = start(folder, "run", "p.toml", "--json", "o.json", stdout=subprocess.DEVNULL, stderr=stderr)
    os.close(stderr)
    with process:
        yield process


def state(folder: Path) -> object:
    return json.loads((folder / "o.json").read_text())["state"]


def test_a_stderr_that_nobody_reads_does_not_hold_up_the_run(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(write_fd, b"." * 4096)
    os.set_blocking(write_fd, True)
    with os.fdopen(read_fd, "rb") as reader, run_into(write_fd, tmp_path, "requests = 20"):
        wait_until((tmp_path / "o.json").exists)
        reader.read()
    assert state(tmp_path) == "complete"


def test_a_stderr_whose_reader_is_gone_ends_the_run_and_keeps_its_result(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with run_into(write_fd, tmp_path, "duration = '60s'") as process:
        assert process.wait() == 130
    assert state(tmp_path) == "stopped"


def test_a_stderr_on_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    with run_into(os.open("/dev/full", os.O_WRONLY), tmp_path, "requests = 20") as process:
        process.wait()
    assert state(tmp_path) == "complete"


def test_what_is_left_once_the_plan_is_done_is_no_stage_of_it() -> None:
    lines: list[str] = []
    progress = Progress(lines.append)
    for phase in ("running", "draining"):
        progress.update(running(phase=phase, headline=f"{phase}: in words"))
    sent, drained = (line.split(" s  ", 1)[1] for line in lines if "held" in line)
    assert sent.startswith("stage 4 of 4  conc 64  held ")
    assert drained.startswith("after stage 4 of 4  held ") and drained.endswith("draining: in words")
