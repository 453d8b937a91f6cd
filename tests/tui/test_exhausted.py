"""Where memory, threads or descriptors run out: what counts as that, and how the process ends."""

import errno
import subprocess
import sys

import pytest

from tui.exhausted import lacks


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
    assert lacks(error) == what


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
