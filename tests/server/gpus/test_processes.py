"""Who holds memory of the GPUs, with real processes."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.schema.samples import GpuProcess, GpuSample
from loadgen.server.gpus.processes import attached_pids, described

_CODE = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def listener() -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A process that listens by the socket that it inherits, with a secret on its command line."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        command = [sys.executable, "-c", _CODE, "--api-key", "hunter2"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listening.fileno()]
        ) as process:
            port = listening.getsockname()[1]
            listening.close()
            assert process.stdout is not None
            process.stdout.readline()
            yield process, port


def proc_in_namespace(folder: Path, namespace: str) -> Path:
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(namespace)
    return folder


def test_the_processes_of_an_attached_server_are_those_that_listen(
    listener: tuple["subprocess.Popen[bytes]", int],
) -> None:
    process, port = listener
    assert attached_pids([f"http://127.0.0.1:{port}"]) == {process.pid}
    assert attached_pids([]) == set()


def test_a_process_has_its_user_and_its_command_without_secrets(
    listener: tuple["subprocess.Popen[bytes]", int], tmp_path: Path
) -> None:
    process, _ = listener
    proc = proc_in_namespace(tmp_path, "pid:[4026531836]")  # the first one, also where the tests run in a container
    (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
    sample = GpuSample(0, 1.0, processes=(GpuProcess(process.pid, "python3", 5), GpuProcess(2**22 + 1, "gone", 6)))
    seen, gone = described(sample, {process.pid}, proc=proc).processes or ()
    assert (seen.name, seen.hbm_bytes, seen.of_server) == ("python3", 5, True)
    assert seen.user and "--api-key ***" in seen.command and "hunter2" not in seen.command
    assert gone == GpuProcess(2**22 + 1, "gone", 6, of_server=False)


def test_in_a_container_the_drivers_pids_are_somebody_elses(tmp_path: Path) -> None:
    proc = proc_in_namespace(tmp_path, "pid:[4026532999]")
    sample = GpuSample(0, 1.0, processes=(GpuProcess(os.getpid(), "python3", 5),))
    assert described(sample, {os.getpid()}, proc=proc) == sample
