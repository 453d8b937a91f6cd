"""Limits of a process, tried in a child whose limits may change."""

import subprocess
import sys

_CHILD = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 100))
from loadgen.limits import raise_open_files
raise_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_may_open_as_many_files_as_the_hard_limit_allows() -> None:
    child = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True)
    assert child.stdout == "(100, 100)\n"
