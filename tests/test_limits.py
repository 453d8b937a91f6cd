"""Limits of a process, tried in a child whose limits may change."""

import os
import subprocess
import sys

import pytest

_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 100))
from loadgen.limits import raise_open_files
raise_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
_THREADS = """
from loadgen.limits import inherited_environment, start_no_blas_threads
start_no_blas_threads()
import os, numpy
print(len(os.listdir("/proc/self/task")), inherited_environment().get("OPENBLAS_NUM_THREADS"))
"""


def said_by(code: str, environment: dict[str, str]) -> str:
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return child.stdout.strip()


def test_a_process_may_open_as_many_files_as_the_hard_limit_allows() -> None:
    assert said_by(_FILES, dict(os.environ)) == "(100, 100)"


@pytest.mark.parametrize("chosen", [None, "1"])
def test_numpy_starts_no_threads_and_a_server_gets_what_the_user_chose(chosen: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    chose = {} if chosen is None else {"OPENBLAS_NUM_THREADS": chosen}
    assert said_by(_THREADS, environment | chose) == f"1 {chosen}"
