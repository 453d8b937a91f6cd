"""What a child hears of its parent's death, although it is stopped."""

import os
import signal
import subprocess
import sys

import psutil

CHILD = (
    "import signal, time; from loadgen.parent import signal_when_parent_dies; "
    "signal_when_parent_dies(signal.SIGKILL); print('ready', flush=True); time.sleep(60)"
)
PARENT = f"import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {CHILD!r}]); time.sleep(60)"


def test_a_child_that_is_stopped_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        (child,) = psutil.Process(parent.pid).children()
        os.kill(child.pid, signal.SIGSTOP)
        parent.kill()
    assert psutil.wait_procs([child], timeout=10)[1] == []
