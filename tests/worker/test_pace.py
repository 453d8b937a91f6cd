"""The precise timer: never early, once a setting, silent when cancelled; and what helps it to be on time."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from loadgen.worker.pace import PreciseTimer, lead_for, realtime_share, takes_little


async def test_it_wakes_at_or_after_its_time_and_only_once() -> None:
    woken: list[int] = []
    over = asyncio.Event()

    def wake() -> None:
        woken.append(time.monotonic_ns())
        over.set()

    timer = PreciseTimer(asyncio.get_running_loop(), wake)
    due_ns = time.monotonic_ns() + 20_000_000
    timer.set(due_ns)
    await over.wait()
    assert len(woken) == 1
    assert woken[0] >= due_ns
    timer.close()


async def test_a_time_that_has_passed_wakes_at_once_and_the_last_setting_holds() -> None:
    over = asyncio.Event()
    timer = PreciseTimer(asyncio.get_running_loop(), over.set)
    timer.set(time.monotonic_ns() + 3_600_000_000_000)
    timer.set(0)
    await over.wait()
    timer.close()


async def test_cancelled_it_stays_silent() -> None:
    cancelled, other = asyncio.Event(), asyncio.Event()
    timer = PreciseTimer(asyncio.get_running_loop(), cancelled.set)
    witness = PreciseTimer(asyncio.get_running_loop(), other.set)
    timer.set(time.monotonic_ns() + 5_000_000)
    timer.cancel()
    witness.set(time.monotonic_ns() + 20_000_000)
    await other.wait()
    assert not cancelled.is_set()
    timer.close()
    witness.close()


async def test_a_check_waits_for_a_time_that_is_near_and_leaves_one_that_is_far() -> None:
    woken: list[int] = []
    timer = PreciseTimer(asyncio.get_running_loop(), lambda: woken.append(time.monotonic_ns()))
    timer.lead_ns = 20_000_000
    timer.set(time.monotonic_ns() + 3_600_000_000_000)
    timer.check()
    assert not woken
    due_ns = time.monotonic_ns() + 10_000_000
    timer.set(due_ns)
    timer.check()
    timer.check()
    assert len(woken) == 1
    assert woken[0] >= due_ns
    timer.close()


async def test_woken_early_it_still_calls_back_at_its_time() -> None:
    woken: list[int] = []
    over = asyncio.Event()

    def wake() -> None:
        woken.append(time.monotonic_ns())
        over.set()

    timer = PreciseTimer(asyncio.get_running_loop(), wake)
    timer.lead_ns = 5_000_000
    due_ns = time.monotonic_ns() + 10_000_000
    timer.set(due_ns)
    await over.wait()
    assert woken[0] >= due_ns
    timer.close()


@pytest.mark.parametrize(("rate", "lead_ns"), [(0.01, 100_000), (500, 100_000), (1000, 100_000), (10_000, 10_000)])
def test_the_lead_is_a_tenth_of_the_time_at_most(rate: float, lead_ns: int) -> None:
    assert lead_for(rate) == lead_ns
    assert rate * lead_for(rate) <= 0.1 * 1e9


def test_short_slices_change_neither_the_policy_nor_the_niceness() -> None:
    state = "(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
    code = f"import os; from loadgen.worker import pace; a = {state}; pace.ask_for_short_slices(); print(a == {state})"
    asked = subprocess.run([sys.executable, "-c", f"import os; os.nice(3); {code}"], capture_output=True, check=True)
    assert asked.stdout == b"True\n", asked.stderr


SAYS_ITS_CLASS = """
for wanted in (True, False):
    is_now = run_before_others(wanted)
    print(is_now, os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
"""


def said_after(preparation: str) -> list[str]:
    code = f"import os, resource\nfrom loadgen.worker.pace import run_before_others\n{preparation}\n{SAYS_ITS_CLASS}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.splitlines()


def test_a_process_that_runs_before_others_is_realtime_until_it_goes_back() -> None:
    first, second = said_after("")
    # Whether it may depends on who runs this test; that it says what is so does not.
    assert first in (f"True {os.SCHED_RR}", f"False {os.SCHED_OTHER}")
    assert second == f"False {os.SCHED_OTHER}"


def test_a_user_without_the_right_stays_among_the_others_and_is_told_so() -> None:
    nobody = "resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))\nif os.geteuid() == 0: os.setuid(65534)"
    assert said_after(nobody) == [f"False {os.SCHED_OTHER}"] * 2


GOES_BACK = """
import os, time
from loadgen.worker import pace
from loadgen.worker.pace import Precedence

pace._OVER_NS = 10_000_000  # a second's worth of looks would be a second of the suite

def burn():
    end_ns = time.process_time_ns() + 50_000_000
    while time.process_time_ns() < end_ns: pass

back = []
precedence = Precedence(0.5, otherwise=lambda: back.append(os.sched_getscheduler(0)))
begun = precedence.realtime
burn()
used_ns, realtime_ns = precedence.look()
print(used_ns >= 50_000_000, (realtime_ns >= 50_000_000) == begun)
print(precedence.realtime, back == [os.SCHED_OTHER] * begun)
time.sleep(0.2)
print(precedence.look()[1], precedence.realtime == begun)
precedence.end()
print(precedence.realtime, os.sched_getscheduler(0), len(back) == 2 * begun)
"""


def test_a_process_that_takes_much_goes_back_in_the_line_until_it_takes_little() -> None:
    said = subprocess.run([sys.executable, "-c", GOES_BACK], capture_output=True, check=True, text=True).stdout
    assert said.splitlines() == ["True True", "False True", "0 True", f"False {os.SCHED_OTHER} True"]


@pytest.mark.parametrize(
    ("share", "realtime", "stays"),
    [(0.0, False, True), (0.25, False, True), (0.26, False, False), (0.5, True, True), (0.51, True, False)],
)
def test_who_takes_much_of_a_core_goes_back_in_the_line(share: float, realtime: bool, stays: bool) -> None:
    assert takes_little(share, 0.5, realtime=realtime) == stays


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 1), (2, 4), (64, 8), (64, 64)])
def test_all_workers_leave_three_quarters_of_the_cores(cores: int, workers: int) -> None:
    assert 0 < realtime_share(cores, workers) <= 1
    assert workers * realtime_share(cores, workers) <= cores / 4
