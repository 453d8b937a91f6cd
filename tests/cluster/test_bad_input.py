"""What cannot work says so in one line, before anything is sent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.machines import ROOT, SERVER_PORT, Cluster, cluster, require_nothing_left
from tests.cluster.operating import run_to_end, write_profile

pytestmark = pytest.mark.cluster

LOAD = {"concurrency": 2, "requests": 4}


@pytest.fixture(scope="module")
def there() -> Iterator[Cluster]:
    """None of these runs gets far enough to change it."""
    with cluster(clocks_s=(0, 0)) as it:
        yield it


def python_with(folder: Path, *lines: str) -> str:
    """A Python on the hosts that finds modules in these folders next to its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "found.pth").write_text("\n".join(lines) + "\n")
    return str(folder / "bin" / "python")


def an_unknown_host(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    return {"hosts": ["host-a", "nowhere"]}


def a_refused_key(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    keys = it.hosts[1].machine.folder / "sshd" / "authorized_keys"
    until.callback(keys.write_text, keys.read_text())
    keys.write_text("")
    return {}


def a_host_key_that_changed(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    known = it.operator.home / ".ssh" / "known_hosts"
    until.callback(known.write_text, known.read_text())
    known.write_text("".join(line for line in known.read_text().splitlines(True) if "host-b" not in line))
    return {}


def a_python_without_vramp(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    return {"python": python_with(folder / "bare")}


def no_such_python(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    return {"python": "/nowhere/python"}


def an_older_vramp(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    older = folder / "older"
    shutil.copytree(ROOT / "loadgen", older / "loadgen", ignore=shutil.ignore_patterns("__pycache__"))
    (older / "loadgen" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {"python": python_with(folder / "venv", str(older), *packages)}


def two_names_of_one_host(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    return {"hosts": ["host-a", it.hosts[0].machine.address]}


def a_scheduler_that_is_something_else(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    return {"scheduler": f"tcp://{it.server.address}:{SERVER_PORT}"}


def a_scheduler_that_is_not_there(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    return {"scheduler": f"tcp://{it.scheduler.address}:8786"}


def a_full_disk(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    full = it.hosts[1].machine.tmp / "full"
    until.callback(full.unlink)
    with full.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(1 << 16))
    # Python would look for another folder if there were no room at all.
    os.truncate(full, full.stat().st_size - (1 << 16))
    return {}


def a_url_that_only_we_reach(it: Cluster, folder: Path, until: ExitStack) -> dict[str, Any]:
    until.enter_context(it.relaying(it.operator, f"127.0.0.1:{SERVER_PORT}"))
    profile = folder / "p.toml"
    profile.write_text(profile.read_text().replace(it.url, f"http://127.0.0.1:{SERVER_PORT}"))
    return {}


Wrong = Callable[[Cluster, Path, ExitStack], dict[str, Any]]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (an_unknown_host, ["nowhere", "SSH"]),
        (a_refused_key, ["host-b", "refused your keys"]),
        (a_host_key_that_changed, ["host-b", "host key"]),
        (a_python_without_vramp, ["has no vramp", "pip install"]),
        (no_such_python, ["there is no such Python", "/nowhere/python"]),
        (an_older_vramp, ["has vramp 0.0.1, and this machine", "pip install"]),
        (two_names_of_one_host, ["host-a, 10.66.0", "one machine"]),
        (a_scheduler_that_is_something_else, ["no Dask scheduler"]),
        (a_scheduler_that_is_not_there, ["cannot be reached", "8786"]),
        (a_full_disk, ["host-b", "No space left on device"]),
        (a_url_that_only_we_reach, ["host-a", "127.0.0.1"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_bad_input_is_reported_in_one_line_before_anything_is_sent(
    there: Cluster, tmp_path: Path, wrong: Wrong, words: list[str]
) -> None:
    there.forget()
    write_profile(there, tmp_path, LOAD, {})
    with ExitStack() as until:
        cluster_table = wrong(there, tmp_path, until)
        if cluster_table:
            write_profile(there, tmp_path, LOAD, cluster_table)
        run, code = run_to_end(there, tmp_path)
    assert code != 0
    said = [line for line in run.said().splitlines() if all(word in line for word in words)]
    assert said, run.said()
    assert "Traceback" not in run.said()
    assert there.truth()["requests"]["received"] == 0
    require_nothing_left(there)
