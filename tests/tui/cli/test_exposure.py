"""What others on the machine can reach while a run goes on: its listening sockets, and the modes of its files."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.tui.cli.commands import start, wait_for

LOAD = ["--isl", "16", "--osl", "8", "--workers", "1", "--concurrency", "2", "--duration", "60s"]


def open_to_others(*folders: Path) -> Iterator[str]:
    """Yield each file, folder and socket below these that anybody but its owner can use."""
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                yield f"{path} {stat.filemode(mode)}"


def test_a_run_is_open_to_its_owner_alone_and_ctrl_c_keeps_its_result(tmp_path: Path) -> None:
    homes = {name: str(tmp_path / name) for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME")}
    with start(
        tmp_path, "run", "simulator", "--metrics-port", "0", "--json", "o.json", *LOAD, environment=homes
    ) as process:
        wait_for(process, "tok/s")
        wait_for(process, "tok/s")
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        sockets = [each for one in tree for each in one.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        [run] = (tmp_path / "runs").iterdir()
        exposed = list(open_to_others(run, *(Path(home, "vramp") for home in homes.values())))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert len(sockets) == 2, "the server and the port for Prometheus"
    assert {each.laddr.ip for each in sockets} == {"127.0.0.1"}
    assert exposed == []
    assert process.returncode == 130
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"
    assert "requests completed" in out
    assert list(open_to_others(run)) == []
    assert run.stat().st_uid == os.geteuid()
