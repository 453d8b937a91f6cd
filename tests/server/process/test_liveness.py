"""Signs of life of real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO

import pytest

from loadgen.metrics.snapshot import Liveness
from loadgen.server.process.liveness import CpuTime, signs_of_life

WORKER = """
import os, sys

def burn():
    begun = sum(os.times()[:2])
    while sum(os.times()[:2]) - begun < 0.2:
        pass

for line in sys.stdin:
    if "child" not in line:
        burn()
    elif os.fork():
        os.wait()
    else:
        burn()
        os._exit(0)
    print(flush=True)
"""


@pytest.fixture
def worker() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def work(process: "subprocess.Popen[str]", kind: str = "burn") -> None:
    """Let it use at least a fifth of a second of CPU time, and wait until it has."""
    pipe(process.stdin).write(kind + "\n")
    pipe(process.stdin).flush()
    pipe(process.stdout).readline()


def test_the_first_look_has_no_rate_yet() -> None:
    liveness, cpu = signs_of_life([os.getpid()], None, now_s=10.0)
    assert liveness.cpu_percent is None
    assert liveness.rss_bytes > 1_000_000
    assert (liveness.last_line_age_s, liveness.hbm_used_bytes) == (None, None)
    assert cpu.at_s == 10.0
    assert cpu.used_s > 0


def test_work_shows_as_percent_of_a_core(worker: "subprocess.Popen[str]") -> None:
    _, before = signs_of_life([worker.pid], None, now_s=0.0)
    work(worker)
    liveness, after = signs_of_life([worker.pid], before, now_s=1.0, last_line_s=-4.0, hbm_used_bytes=7)
    used_s = after.used_s - before.used_s
    assert used_s >= 0.19
    assert liveness.cpu_percent == pytest.approx(100 * used_s)
    assert (liveness.last_line_age_s, liveness.hbm_used_bytes) == (5.0, 7)
    idle, _ = signs_of_life([worker.pid], after, now_s=2.0)
    assert idle.cpu_percent is not None and idle.cpu_percent < 19


def test_children_that_ended_have_worked_too(worker: "subprocess.Popen[str]") -> None:
    _, before = signs_of_life([worker.pid], None, now_s=0.0)
    work(worker, "child")
    _, after = signs_of_life([worker.pid], before, now_s=1.0)
    assert after.used_s - before.used_s >= 0.19


def test_a_process_that_is_gone_counts_as_nothing() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as gone:
        pass
    liveness, cpu = signs_of_life([gone.pid], CpuTime(0.0, 50.0), now_s=1.0)
    assert liveness == Liveness(cpu_percent=0.0, rss_bytes=0)
    assert cpu == CpuTime(1.0, 0.0)


def test_a_clock_that_stands_still_gives_no_rate() -> None:
    liveness, _ = signs_of_life([], CpuTime(5.0, 1.0), now_s=5.0, last_line_s=6.0)
    assert liveness == Liveness(cpu_percent=None, rss_bytes=0, last_line_age_s=0.0)
