"""`vramp watch` and `vramp web --watch`: a run that goes on here, seen from other processes."""

from __future__ import annotations

import argparse
import asyncio
import os
import pty
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from loadgen.errors import ProfileError, ResultError, ServerError
from loadgen.run.operations import Stop
from loadgen.run.remote import SOCKET
from loadgen.run.run import Run
from loadgen.simulator.__main__ import main_parser
from loadgen.store.journal import JOURNAL
from tests.engines import Simulator, attach
from tests.run.driving import finish, flowing, once, run_of
from tests.tui.cli.commands import verb
from tests.tui.pseudo_terminal import in_a_terminal
from tui.cli.run import cockpit_parser
from tui.cli.watch import _shown, live_folder, web_parser
from tui.web.server import listen

ROOT = Path(__file__).parents[3]
watch, web = verb("watch"), verb("web")
ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)/\?token=(\S+)")


@pytest.fixture
async def run(engine: Simulator) -> AsyncIterator[Run]:
    """One that goes on until it is stopped."""
    run = run_of(attach(engine, load={"requests": None, "duration": "60s"}))
    started = asyncio.Event()
    driving = asyncio.create_task(finish(run, once(flowing, lambda _: started.set())))
    await started.wait()
    yield run
    run.apply(Stop())
    assert (await driving).state == "stopped"


@pytest.fixture
def killed(tmp_path: Path) -> None:
    """What a newer run has left that was killed."""
    folder = tmp_path / "runs" / "20990101T000000Z-dead"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").touch()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{folder.relative_to(tmp_path)}/{SOCKET}")


def read_until(master: int, words: bytes) -> None:
    seen = b""
    while words not in seen:
        seen += os.read(master, 65536)


@asynccontextmanager
async def serving_run(run: Run) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`vramp web --watch`, and where a browser's terminal connects."""
    command = (sys.executable, "-m", "tui.cli", "web", "--watch", str(run.folder), "--port", "0")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    found = ADDRESS.search(await process.stderr.readline())
    assert found is not None
    yield process, f"ws://127.0.0.1:{found[1].decode()}/ws/{found[2].decode()}?width=120&height=40"
    await process.wait()


@pytest.mark.usefixtures("killed")
async def test_terminal_watches_the_newest_live_run(run: Run) -> None:
    assert live_folder(run.folder.name) == run.folder
    master, slave = pty.openpty()
    command = (sys.executable, "-m", "tui.cli", "watch")
    size = os.environ | {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    process = await asyncio.create_subprocess_exec(*command, stdin=slave, stdout=slave, stderr=slave, env=size)
    os.close(slave)
    await asyncio.to_thread(read_until, master, b"concurrency")
    os.write(master, b"]")
    await asyncio.to_thread(read_until, master, b"steered elsewhere")
    os.write(master, b"q")
    await asyncio.to_thread(read_until, master, b"\x1b[?1049l")
    assert await process.wait() == 0
    os.close(master)
    assert run.result is None


async def test_ctrl_c_ends_every_browsers_process_and_leaves_the_run(run: Run) -> None:
    """The one that is stopped cannot end by itself."""
    async with serving_run(run) as (process, address), aiohttp.ClientSession() as client:
        stopped = await client.ws_connect(address)
        await stopped.receive_bytes()
        (stopped_watcher,) = psutil.Process(process.pid).children(recursive=True)
        stopped_watcher.suspend()
        async with client.ws_connect(address) as browser:
            seen = b""
            while b"concurrency" not in seen:
                seen += await browser.receive_bytes()
            watchers = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            async for _ in browser:
                pass
        await stopped.close()
    assert len(watchers) == 2
    assert (await asyncio.to_thread(psutil.wait_procs, watchers, timeout=10))[1] == []
    assert process.returncode == 0
    assert run.result is None


async def test_a_web_server_that_is_killed_takes_its_browsers_processes_with_it(run: Run) -> None:
    async with serving_run(run) as (process, address), aiohttp.ClientSession() as client:
        browser = await client.ws_connect(address)
        await browser.receive_bytes()
        watchers = psutil.Process(process.pid).children(recursive=True)
        assert [watcher.cmdline()[-2:] for watcher in watchers] == [["watch", str(run.folder)]]
        process.kill()
    assert (await asyncio.to_thread(psutil.wait_procs, watchers, timeout=10))[1] == []
    assert run.result is None


def test_without_a_terminal_it_says_what_else_there_is(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(ProfileError, match="needs a terminal to show it on: there is no terminal"):
        watch([str(tmp_path)])


def test_a_terminal_that_cannot_show_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).touch()
    command = ["/bin/sh", "-c", '"$0" -m tui.cli watch . 2>words', sys.executable]
    with in_a_terminal(command, tmp_path, {"PYTHONPATH": str(ROOT)}) as terminal:
        assert terminal.read_to_its_end() == 2
    words = "vramp: vramp watch: needs a terminal to show it on: stderr is not the terminal"
    assert (tmp_path / "words").read_text().startswith(words)


def test_without_a_live_run_it_says_so() -> None:
    with pytest.raises(ResultError, match="no run is live in "):
        live_folder(None)


# What stops `vramp web` before anything is started.


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve", None)
    with pytest.raises(ProfileError, match=r"pip install '\.\[web\]'"):
        web([])


def test_a_new_run_or_one_that_goes_on() -> None:
    with pytest.raises(ProfileError, match="either a PROFILE"):
        web(["simulator", "--watch", "last"])


def test_a_port_that_is_taken_starts_nothing() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ServerError, match="choose another with --host and --port"):
        web(["simulator", "--port", str(taken.getsockname()[1])])
    assert not Path("runs").exists()


@pytest.mark.parametrize(("control", "can"), [(True, "see and steer this run"), (False, "see this run")])
async def test_listening_on_a_network_is_warned_about(
    control: bool, can: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(host="0.0.0.0", allow_control=control)
    with listen("127.0.0.1", 0) as listening:
        async with _shown(Path("runs/x"), listening, options):
            output = capsys.readouterr()
    assert f"warning: 0.0.0.0 is open to other machines: anyone who can sniff that network can {can}" in output.err
    assert output.out == ""


def test_what_listens_is_reached_from_this_machine_alone_by_default() -> None:
    assert web_parser().parse_args([]).host == "127.0.0.1"
    assert cockpit_parser().parse_args([]).metrics_host == "127.0.0.1"
    assert main_parser().parse_args([]).host == "127.0.0.1"
