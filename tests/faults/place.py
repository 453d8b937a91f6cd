"""Where a case happens: a network, mounts, a small file system and limits of its own, and the mark on its processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "VRAMP_TEST_MARK"
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000


def enter_own_place(folder: Path) -> None:
    """Give the calling process a network and mounts of its own, and a small file system at `folder`; needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot have namespaces of its own; is this root?")
    call("ip", "link", "set", "lo", "up")
    call("mount", "--make-rprivate", "/")
    call("mount", "-t", "tmpfs", "-o", "size=48m,nr_inodes=2000,mode=0700", "vramp-faults", str(folder))


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def marked(mark: str) -> dict[int, bytes]:
    """The living processes with this mark, with their command lines."""
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names suffice
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            folder = Path("/proc", entry)
            if f"{VARIABLE}={mark}\0".encode() in (folder / "environ").read_bytes():
                found[int(entry)] = (folder / "cmdline").read_bytes()
    return found


def started_alone(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, without input; both of its streams go to this descriptor."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def build_libraries(folder: Path) -> None:
    """Compile what is preloaded."""
    for source in (ROOT / "tests/cluster/step_clock.c", ROOT / "tests/faults/break_calls.c"):
        target = folder / source.with_suffix(".so").name
        call("cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(target), str(source))


@contextlib.contextmanager
def control_group(controller: str, name: str, **limits: int) -> Iterator[Path]:
    """A control group (version 1) with these limits, gone afterwards with nobody in it."""
    group = Path("/sys/fs/cgroup", controller, name)
    group.mkdir()
    for limit, value in limits.items():
        (group / f"{controller}.{limit}").write_text(str(value))
    try:
        yield group
    finally:
        leave = Path("/sys/fs/cgroup", controller, "cgroup.procs")
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                leave.write_text(pid)
        with contextlib.suppress(OSError):
            group.rmdir()


def copy_out(folder: Path, there: Path, extra: Mapping[str, bytes]) -> None:
    """Keep what a case left, for whoever looks for the cause."""
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("cache", "filler*", "*.sock"))
    for name, data in extra.items():
        (there / name).write_bytes(data)
