import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.server.process.tree import command_line, descendants, kill_seen, lives, process_info, send_signal

SLEEPER = "open('/proc/self/comm', 'w').write('a) S (b'); print(flush=True); import time; time.sleep(600)"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", SLEEPER], stdout=subprocess.PIPE, start_new_session=True)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_name_may_look_like_the_fields_after_it(child: subprocess.Popen[bytes]) -> None:
    info = process_info(child.pid)
    assert info is not None
    assert (info.name, info.parent, info.session, info.alive) == ("a) S (b", os.getpid(), child.pid, True)
    assert info in descendants(os.getpid())


def test_a_command_line_of_one_that_lives_and_of_one_that_does_not(child: subprocess.Popen[bytes]) -> None:
    assert command_line(child.pid) == [sys.executable, "-S", "-c", SLEEPER]
    child.kill()
    child.wait()
    assert command_line(child.pid) == []


def test_a_process_that_the_kernel_hides_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: str) -> str:
        raise PermissionError(errno.EPERM, "hidepid=1", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)  # from root, as which tests may run, nothing is hidden
    assert process_info(1) is None
    assert descendants(os.getpid()) == []


@pytest.mark.parametrize("pidfd", [True, False])
def test_only_the_very_process_is_signalled(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "as on a kernel without pidfds")

    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    info = process_info(child.pid)
    assert info is not None
    earlier = replace(info.id, start_ticks=info.id.start_ticks - 1)
    assert not send_signal(earlier, signal.SIGKILL)
    assert child.poll() is None
    assert (lives(info.id), lives(earlier)) == (True, False)
    assert send_signal(info.id, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not send_signal(info.id, signal.SIGKILL)


def test_a_zombie_is_not_alive(child: subprocess.Popen[bytes]) -> None:
    info = process_info(child.pid)
    assert info is not None
    killed, left = kill_seen([info.id], within_s=20)  # returns although nobody has collected the child yet
    assert (killed, left) == ([info], [])
    dead = process_info(child.pid)
    assert dead is not None
    assert not dead.alive
    assert not lives(info.id)
