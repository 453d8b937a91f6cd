"""Limits of a process, tried in a child whose limits may change."""

import os
import platform
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
_LEAN = """
from loadgen.limits import inherited_environment, start_lean
start_lean()
import os, numpy, pydantic.plugin._loader as plugins
given = inherited_environment()
print(len(os.listdir("/proc/self/task")), plugins.get_plugins() == (), *map(given.get, NAMES))
"""
_HOLES = """
from loadgen.limits import map_large_blocks
import psutil, sys
if sys.argv[1] == "mapped":
    map_large_blocks()
freed = bytearray(1 << 20); del freed  # after which glibc takes blocks of this size from the heap, too
resident = psutil.Process().memory_info
blocks, between = [], []
for _ in range(300):
    blocks.append(bytearray(80_000))
    between.append(bytes(9_000))
most = resident().rss
del blocks
print((most - resident().rss) // 80_000)
"""
_NAMES = ("OPENBLAS_NUM_THREADS", "PYDANTIC_DISABLE_PLUGINS")


def said_by(code: str, environment: dict[str, str], *words: str) -> str:
    child = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return child.stdout.strip()


def test_a_process_may_open_as_many_files_as_the_hard_limit_allows() -> None:
    assert said_by(_FILES, dict(os.environ)) == "(100, 100)"


@pytest.mark.parametrize("chosen", [{}, dict(zip(_NAMES, ("1", "logfire"), strict=True))])
def test_vramp_starts_without_threads_and_plugins_and_a_server_gets_what_the_user_chose(chosen: dict[str, str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES}
    said = said_by(_LEAN.replace("NAMES", str(_NAMES)), environment | chosen)
    assert said == " ".join(["1", str(not chosen), *(str(chosen.get(name)) for name in _NAMES)])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_large_blocks_leave_no_holes() -> None:
    assert int(said_by(_HOLES, dict(os.environ), "mapped")) > 200
    assert int(said_by(_HOLES, dict(os.environ), "in the heap")) < 100
