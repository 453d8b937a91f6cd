"""What another user owns is used only with --trust: profiles, the folder of runs, the socket of a run."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadgen.errors import ResultError
from loadgen.run.remote import SOCKET, RemoteRun
from tests.engines import NOBODY
from tests.tui.cli.commands import Said

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")

OTHER_USER = 65534
PROFILE = '[server]\nengine = "simulator"\nport = 0\n[load]\nconcurrency = 1\n'
LISTENER = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    os.setuid(int(sys.argv[2]))
    server.listen()
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def trusting_nobody_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what --trust, which these commands get in this process, has changed."""
    monkeypatch.setattr("loadgen.places._trusts_all_users", False)


def given_away(path: Path) -> Path:
    os.chown(path, OTHER_USER, OTHER_USER)
    return path


def test_a_profile_of_another_user_is_refused(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(PROFILE)
    assert said("check", "theirs.toml").code == 0
    given_away(path)
    for command in ("check", "run", "monitor --server", "sweep"):
        refused = said(*command.split(), "theirs.toml")
        assert refused.code == 2
        [line] = refused.err.splitlines()
        assert f"belongs to another user, {OTHER_USER}; --trust" in line
        assert "names programs that vramp runs" in line
    assert said("check", "theirs.toml", "--trust").code == 0


def test_a_profile_of_another_user_is_not_taken_for_a_shipped_one(tmp_path: Path, said: Said) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/simulator.toml").write_text(PROFILE)
    given_away(tmp_path / "profiles/simulator.toml")
    refused = said("run", "simulator")
    assert refused.code == 2
    assert "profiles/simulator.toml: it belongs to another user" in refused.err


def test_a_profile_that_everybody_can_write_to_is_refused(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "anyones.toml"
    path.write_text(PROFILE)
    path.chmod(0o666)
    refused = said("check", "anyones.toml")
    assert refused.code == 2
    assert "everybody can write to it; chmod o-w anyones.toml" in refused.err


def test_results_do_not_go_below_another_users_folder(tmp_path: Path, said: Said) -> None:
    (tmp_path / "runs").mkdir()
    assert said("run", "--url", NOBODY).code == 3
    given_away(tmp_path / "runs")
    refused = said("run", "--url", NOBODY)
    assert refused.code == 2
    assert f"results go below it, but it belongs to another user, {OTHER_USER}; --trust" in refused.err
    assert said("run", "--url", NOBODY, "--trust").code == 3


@contextmanager
def listening_as(user: int, path: Path) -> Iterator[None]:
    words = [sys.executable, "-S", "-c", LISTENER, str(path), str(user)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        yield
        process.stdin.close()


async def first_snapshot(folder: Path) -> None:
    async for _ in RemoteRun(folder, steers=False).snapshots():
        return


async def test_the_socket_of_another_users_process_is_not_watched(tmp_path: Path) -> None:
    words = "belongs to another user, nobody; --trust"
    with listening_as(OTHER_USER, tmp_path / SOCKET), pytest.raises(ResultError, match=words):
        await first_snapshot(tmp_path)
    (tmp_path / SOCKET).unlink()
    with listening_as(0, tmp_path / SOCKET), pytest.raises(TimeoutError):  # it is heard, though it says nothing
        await asyncio.wait_for(first_snapshot(tmp_path), 0.2)
