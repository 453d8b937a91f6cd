"""The child process: one backend, sampled at an interval and written as lines.

Invariants: it ends when its stdin does, even if the vendor's library hangs; a parent that does not read loses samples
but delays none; sampling times are absolute, so that a slow sample does not shift later ones, and a missed one is not
made up for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from loadgen.errors import UNDECODABLE, TelemetryError
from loadgen.telemetry.protocol import Backend, Refused, Sampled, TelemetryLine, encode_line
from loadgen.vendors import BackendName

SLOW_EVERY_S = 10.0  # for ECC, caps, links, and processes, which some drivers list so slowly that it affects the load
_HANG_S = 1.0


class Orders:
    """The parent's orders, read by a thread, since the main thread may hang in a library."""

    def __init__(self) -> None:
        self.processes = False
        self.ended = threading.Event()

    def follow(self, fd: int) -> None:
        """Follow the orders from `fd` from now on; soon after its end the process exits, whatever it is doing."""
        threading.Thread(target=self._read, args=(fd,), daemon=True).start()

    def _read(self, fd: int) -> None:
        try:
            # Unbuffered: Python aborts at exit if a thread holds the lock of a buffer.
            with open(fd, "rb", buffering=0, closefd=False) as stream:
                for line in stream:
                    self.processes = msgspec.json.decode(line, type=bool)
        except UNDECODABLE as error:
            print(f"the parent sent an invalid order: {error}", file=sys.stderr)
        finally:
            self.ended.set()
            time.sleep(_HANG_S)
            os._exit(0)


class Output:
    """Writes lines to a pipe that may not be read: a line for which there is no room is dropped as a whole."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        os.set_blocking(fd, False)

    def offer(self, line: TelemetryLine) -> bool:
        """Write the line unless an earlier one still waits for room; returns whether it was accepted."""
        self._flush()
        if self._rest:
            return False
        self._rest = encode_line(line) + b"\n"
        self._flush()
        return True

    def _flush(self) -> None:
        # Bytes that a full pipe refuses are kept. If the parent is gone, the end of stdin ends this process.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._rest:
                self._rest = self._rest[os.write(self._fd, self._rest) :]


def serve(
    name: BackendName, open_backend: Callable[[], Backend], output: Output, orders: Orders, *, interval_s: float | None
) -> int:
    """Open the backend and sample it until the orders end, or once without an interval; returns the exit status."""
    try:
        backend = open_backend()
        # A backend that opens but cannot be read is useless.
        first = _read(backend, slow=True, processes=interval_s is None)
        if not first.gpus:
            raise TelemetryError("it works but finds no device")
        output.offer(backend.opened)
        output.offer(first)
        if interval_s is not None:
            _sample(backend, output, orders, interval_s)
    except TelemetryError as error:
        output.offer(Refused(backend=name, reason=str(error)))
        return 1
    backend.close()
    return 0


def _sample(backend: Backend, output: Output, orders: Orders, interval_s: float) -> None:
    due_s = time.monotonic() + interval_s
    slow_due_s = time.monotonic() + SLOW_EVERY_S
    processes_due_s = 0.0
    while not orders.ended.wait(max(0.0, due_s - time.monotonic())):
        now_s = time.monotonic()
        slow, processes = now_s >= slow_due_s, orders.processes and now_s >= processes_due_s
        output.offer(_read(backend, slow=slow, processes=processes))
        slow_due_s = now_s + SLOW_EVERY_S if slow else slow_due_s
        if processes or not orders.processes:  # the next request gets them at once
            processes_due_s = now_s + SLOW_EVERY_S if processes else 0.0
        due_s = next_due_s(due_s, interval_s, time.monotonic())


def next_due_s(due_s: float, interval_s: float, now_s: float) -> float:
    """The next time on the schedule after both the last one and now."""
    missed = max(0, int((now_s - due_s) // interval_s))
    return due_s + (missed + 1) * interval_s


def _read(backend: Backend, *, slow: bool, processes: bool) -> Sampled:
    began_s = time.monotonic()
    gpus = backend.sample(slow, processes)
    ended_s = time.monotonic()
    return Sampled(t_s=ended_s, took_ms=(ended_s - began_s) * 1000, gpus=gpus)
