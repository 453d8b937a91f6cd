"""Where memory, threads or descriptors run out: what counts as that, and how the process ends."""

import errno
import socket
import subprocess
import sys

import pytest

from tui.exhausted import exhausted_resource


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "out of memory"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (RuntimeError("can't start new thread"), "no more threads"),
        (RuntimeError("something else"), None),
        (OSError(errno.ENOENT, "No such file or directory"), None),
        (None, None),
    ],
)
def test_what_an_error_says_is_missing(error: BaseException | None, what: str | None) -> None:
    assert exhausted_resource(error) == what


FAILS = """
import asyncio
from tui.exhausted import give_up_where_callbacks_fail

def fail():
    raise MemoryError

async def main():
    give_up_where_callbacks_fail()
    asyncio.get_running_loop().call_soon(fail)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_callback_without_memory_ends_the_process_with_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("vramp: out of memory: ")
    assert "Traceback" not in done.stderr


LISTENS = """
import asyncio, resource, socket, sys
from tui.exhausted import give_up_where_callbacks_fail

async def main():
    give_up_where_callbacks_fail()
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = socket.socket().fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("goes on")

asyncio.run(main())
"""


def test_connections_that_nobody_can_accept_do_not_end_the_process() -> None:
    command = [sys.executable, "-c", LISTENS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        out, err = process.communicate("\n", timeout=60)
        for connection in connections:
            connection.close()
    assert (out, process.returncode) == ("goes on\n", 0), err
