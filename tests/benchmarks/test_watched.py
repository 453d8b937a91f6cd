"""Processes that are watched: what they used is reported, and nothing of them is left."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.watched import OUTPUT, Ended, Looks, Others, run_watched

NOWHERE = "http://127.0.0.1:9"


async def watch(code: str, folder: Path, *, timeout_s: float = 60, request: bytes = b"") -> Ended:
    return await run_watched(
        [sys.executable, "-c", code],
        url=NOWHERE,
        looks=Looks(streams=1, tokens=100),
        folder=folder,
        timeout_s=timeout_s,
        env={"TOLD": "this"},
        request=request,
    )


async def test_a_process_to_its_end(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['TOLD'], sys.stdin.read(), os.getcwd()); sys.exit(3)"
    ended = await watch(code, tmp_path, request=b"that")
    assert ended.returncode == 3
    assert (tmp_path / OUTPUT).read_text().split() == ["this", "that", str(tmp_path)]


async def test_children_that_ended_are_in_the_account(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    ended = await watch(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])", tmp_path)
    assert ended.cpu_s >= 0.5


async def test_an_orphan_is_ended(tmp_path: Path) -> None:
    orphan = "import time; time.sleep(1000)"
    start = f"subprocess.Popen([sys.executable, '-c', {orphan!r}], start_new_session=True)"
    code = f"import subprocess, sys; print({start}.pid)"
    assert (await watch(code, tmp_path)).returncode == 0
    assert not psutil.pid_exists(int((tmp_path / OUTPUT).read_text()))


async def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    before = psutil.Process().children()
    ended = await watch("import time; time.sleep(1000)", tmp_path, timeout_s=0.1)
    assert ended.returncode is None
    assert psutil.Process().children() == before


@pytest.mark.parametrize(("generated", "seen"), [([0, 1, 2], 0), ([4, 89, 91, 100], 2), ([50], 1)])
def test_looks_count_while_every_stream_is_busy(generated: list[float], seen: int) -> None:
    looks = Looks(streams=4, tokens=100)
    for count in generated:
        looks.take(os.getpid(), count)
    assert len(looks.seen) == seen


def test_cost_of_a_token_is_between_two_looks() -> None:
    assert Looks(1, 100, [(1.0, 10), (1.5, 30), (3.0, 50)]).us_per_token == 2.0 / 40 * 1e6
    assert Looks(1, 100, [(1.0, 10)]).us_per_token is None
    assert Looks(1, 100, [(1.0, 10), (2.0, 10)]).us_per_token is None


def test_use_by_a_process_that_has_not_ended_counts_as_others() -> None:
    others, began_s = Others(), time.monotonic()
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        # It has not ended, so that nothing says yet that it is ours.
        assert others.cores() * (time.monotonic() - began_s) > 0.4
        child.communicate(b"\n")
