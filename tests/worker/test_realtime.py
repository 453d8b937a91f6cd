"""Short slices, and realtime by a budget, in processes of their own: what a stuck one does must not be done to ours."""

import os
import signal
import subprocess
import sys

import pytest

from loadgen.worker.realtime import realtime_budget, waited_ns, within_budget


def run(code: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", f"import os, resource, signal, time\nfrom loadgen.worker import realtime\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def said(code: str) -> list[str]:
    process = run(code)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def may_be_realtime() -> bool:
    return said("print(realtime.set_realtime(True))") == ["True"]


def test_short_slices_change_neither_the_policy_nor_the_niceness() -> None:
    state = "(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
    assert said(f"os.nice(3); a = {state}; realtime.ask_for_short_slices(); print(a == {state})") == ["True"]


SAYS_ITS_CLASS = """
for wanted in (True, False):
    is_now = realtime.set_realtime(wanted)
    print(is_now, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
"""


def test_a_process_is_realtime_until_it_is_not() -> None:
    first, second = said(SAYS_ITS_CLASS)
    # Whether it may depends on who runs this test; that it says what is so does not.
    assert first in (f"True {os.SCHED_RR}", f"False {os.SCHED_OTHER}")
    assert second == f"False {os.SCHED_OTHER}"


NOBODY = "resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))\nif os.geteuid() == 0: os.setuid(65534)\n"


def test_missing_right_to_realtime_is_reported() -> None:
    assert said(NOBODY + SAYS_ITS_CLASS) == [f"False {os.SCHED_OTHER}"] * 2
    tries = "priority = realtime.RealtimePriority(0.5)\nprint(priority.realtime, priority.update()[1])"
    assert said(NOBODY + tries) == ["False 0"]


KEEPS_ITS_BUDGET = """
realtime._SMOOTHING_NS = 10_000_000  # a second's worth of looks would be a second of the suite

def burn():
    end_ns = time.process_time_ns() + 50_000_000
    while time.process_time_ns() < end_ns: pass

priority = realtime.RealtimePriority(0.5)
begun = priority.realtime
burn()
used_ns, realtime_ns = priority.update()
print(used_ns >= 50_000_000, (realtime_ns >= 50_000_000) == begun)
print(priority.realtime, os.sched_getscheduler(0))
time.sleep(0.2)
print(priority.update()[1], priority.realtime == begun)
"""


def test_process_beyond_its_budget_loses_priority() -> None:
    assert said(KEEPS_ITS_BUDGET) == ["True True", f"False {os.SCHED_OTHER}", "0 True"]


def test_without_a_budget_nothing_is_changed() -> None:
    limit = "resource.getrlimit(resource.RLIMIT_RTTIME)"
    code = f"a = {limit}\nprint(realtime.RealtimePriority(0.0).realtime, {limit} == a, os.sched_getscheduler(0))"
    assert said(code) == [f"False True {os.SCHED_OTHER}"]


SHORT = "realtime._STUCK_US, realtime._HOPELESS_US = 100_000, 400_000\n"


def test_a_process_that_hangs_stops_being_realtime() -> None:
    if not may_be_realtime():
        pytest.skip("needs root or CAP_SYS_NICE")
    code = """
priority = realtime.RealtimePriority(0.5)
print(priority.realtime)
while os.sched_getscheduler(0) != os.SCHED_OTHER: pass
print(priority.realtime)
# It may be realtime again once it takes little, and the backstop is as it was.
priority._share = 0.0
time.sleep(0.01)
priority.update()
print(resource.getrlimit(resource.RLIMIT_RTTIME) == (100_000, 400_000), priority.realtime)
while os.sched_getscheduler(0) != os.SCHED_OTHER: pass
"""
    assert said(SHORT + code) == ["True", "False", "True True"]


def test_one_that_does_not_even_take_the_signal_is_killed() -> None:
    if not may_be_realtime():
        pytest.skip("needs root or CAP_SYS_NICE")
    deaf = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGXCPU])\n"
    assert run(f"{SHORT}{deaf}realtime.RealtimePriority(0.5)\nwhile True: pass").returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("share", "realtime", "stays"),
    [(0.0, False, True), (0.25, False, True), (0.26, False, False), (0.5, True, True), (0.51, True, False)],
)
def test_the_budget(share: float, realtime: bool, stays: bool) -> None:
    assert within_budget(share, 0.5, realtime=realtime) == stays


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (0.5, 1), (2, 1), (2, 4), (64, 8), (64, 64), (192, 4)])
def test_workers_leave_three_quarters_of_the_cores(cores: float, workers: int) -> None:
    assert 0 < realtime_budget(cores, workers) < 0.9
    assert workers * realtime_budget(cores, workers) <= cores / 4


def test_the_time_without_a_core_never_falls() -> None:
    first = waited_ns()
    assert 0 <= first <= waited_ns()
