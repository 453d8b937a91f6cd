"""The child's loop: beats, orders, a parent that does not read, a library that hangs."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuSample, GpuStatic
from loadgen.telemetry.backends import PROGRAM
from loadgen.telemetry.child import Orders, Output, next_due_s, serve
from loadgen.telemetry.protocol import Backend, Opened, Refused, Sampled, decode_line

_LOOK = Sampled(t_s=1.0, took_ms=1.0, gpus=(GpuSample(index=0, t_s=1.0, missing={"power_w": "x" * 1000}),))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def _backend(
    sample: Callable[[bool, bool], tuple[GpuSample, ...]], close: Callable[[], None] = lambda: None
) -> Backend:
    gpus = (GpuStatic(index=0, vendor="sim", name="GPU"),)
    return Backend(Opened(backend="sim", meta={}, gpus=gpus), sample, close)


def _lines(fd: int) -> list[object]:
    return [decode_line.decode(line) for line in os.read(fd, 1 << 20).splitlines()]


@given(
    due_s=st.integers(0, 10_000).map(lambda n: n / 4),
    interval_s=st.sampled_from([0.25, 0.5, 1.0, 5.0]),
    late_s=st.integers(0, 4000).map(lambda n: n / 16),
)
def test_beats_stay_on_their_grid_and_lie_ahead(due_s: float, interval_s: float, late_s: float) -> None:
    beat_s = next_due_s(due_s, interval_s, due_s + late_s)
    assert beat_s > due_s + late_s
    assert beat_s - (due_s + late_s) <= interval_s
    assert (beat_s - due_s) % interval_s == 0


def test_a_line_that_finds_no_room_is_dropped_whole(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    output = Output(write_end)
    taken = 0
    while output.offer(_LOOK):
        taken += 1
    assert not output.offer(_LOOK)
    received = b""
    while received.count(b"\n") < taken:
        received += os.read(read_end, 1 << 16)
        output.offer(_LOOK)
    assert all(decode_line.decode(line) == _LOOK for line in received.splitlines()[:taken])


def test_a_parent_that_is_gone_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    Output(write_end).offer(_LOOK)
    os.close(write_end)


def test_a_backend_is_opened_sampled_and_closed(pipe: tuple[int, int]) -> None:
    orders, tiers, closed = Orders(), [], []

    def sample(slow: bool, processes: bool) -> tuple[GpuSample, ...]:
        tiers.append((slow, processes))
        orders.processes = len(tiers) >= 2
        if len(tiers) == 4:
            orders.ended.set()
        return (GpuSample(index=0, t_s=1.0),)

    backend = _backend(sample, lambda: closed.append(True))
    assert serve("sim", lambda: backend, Output(pipe[1]), orders, interval_s=0.01) == 0
    opened, *looks = _lines(pipe[0])
    assert opened == backend.opened
    assert len(looks) == 4
    # The slow tier first and then not for ten seconds; processes once they are asked for.
    assert tiers == [(True, False), (False, False), (False, True), (False, False)]
    assert closed == [True]


def test_a_backend_that_does_not_open_is_refused(pipe: tuple[int, int]) -> None:
    def refuse() -> Backend:
        raise TelemetryError("no driver")

    assert serve("nvml", refuse, Output(pipe[1]), Orders(), interval_s=1) == 1
    assert _lines(pipe[0]) == [Refused(backend="nvml", reason="no driver")]


def test_a_backend_without_devices_is_refused(pipe: tuple[int, int]) -> None:
    backend = _backend(lambda _slow, _processes: ())
    assert serve("sim", lambda: backend, Output(pipe[1]), Orders(), interval_s=1) == 1
    assert _lines(pipe[0]) == [Refused(backend="sim", reason="it works but finds no device")]


def test_a_backend_that_fails_later_says_why(pipe: tuple[int, int]) -> None:
    looks: list[GpuSample] = []

    def sample(_slow: bool, _processes: bool) -> tuple[GpuSample, ...]:
        if looks:
            raise TelemetryError("the driver was unloaded")
        looks.append(GpuSample(index=0, t_s=1.0))
        return tuple(looks)

    backend = _backend(sample)
    assert serve("sim", lambda: backend, Output(pipe[1]), Orders(), interval_s=0.01) == 1
    assert _lines(pipe[0])[-1] == Refused(backend="sim", reason="the driver was unloaded")


def _child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_hung_library_does_not_keep_the_child_alive() -> None:
    code = """
import signal
from loadgen.telemetry.child import Orders
Orders().follow(0)
print("hangs", flush=True)
while True:
    signal.pause()
"""
    with _child(code) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"hangs\n"
        child.stdin.close()
        assert child.wait(timeout=30) == 0


def test_nonsense_from_the_parent_ends_the_child() -> None:
    command = [*PROGRAM, "--backend", "sim"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        _, errors = child.communicate(b"nonsense\n", timeout=30)
    assert child.returncode == 0
    assert b"an invalid order" in errors


def test_orders_reach_the_sampler() -> None:
    read_end, write_end = os.pipe()
    orders = Orders()
    # Its thread ends the process soon after the end of its input, so that this test keeps that open.
    orders.follow(read_end)
    for wanted, order in ((True, b"true\n"), (False, b"false\n")):
        os.write(write_end, order)
        while orders.processes != wanted:
            orders.ended.wait(0.001)
    assert not orders.ended.is_set()


def test_the_child_is_nice_and_its_log_is_limited() -> None:
    with subprocess.Popen([*PROGRAM, "--backend", "sim"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5
        assert resource.prlimit(child.pid, resource.RLIMIT_FSIZE)[0] == 16 << 20
        child.communicate()


def test_an_interrupted_child_leaves_no_traceback_in_its_log() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([*PROGRAM, "--backend", "sim"], stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    assert (child.returncode, said) == (-signal.SIGINT, b"")
