"""The report on the layout of the source, as one reads it in a terminal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

LAYOUT = Path(__file__).parents[1] / ".ci" / "layout.py"


def test_a_reader_that_has_read_enough_ends_it_without_a_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run([sys.executable, LAYOUT], stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, b"")
