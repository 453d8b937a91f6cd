"""The process between vramp and the server, `python -m loadgen.server.process.guard`: no server outlives vramp.

A killed API server leaves its engine processes behind, which keep the GPU's memory. The guard is the "child subreaper"
of the server's tree: a descendant whose parent dies becomes the guard's child, whatever its session. Invariants: while
the guard has a child, something of the tree is left, and once the kernel says that it has none, nothing is; the guard
signals only its own descendants; it ends when the tree has ended, or reports what SIGKILL did not end in bounded time.
What runs in a container is not a descendant: its daemon is asked to stop it, and once the main process has ended to
remove it, by the id in the client's id file. The record stays while anything may be left.

Protocol: one line of JSON each, over pipes. In: the order `{argv, env, cwd, log_path, stop_timeout_s}` with optional
`container: {program, id_file}` and `record: {path, facts}`; later `{"do": "stop"}` or `{"do": "leave"}`. The end of
stdin means that vramp is gone; after `leave` it means nothing, and SIGTERM ends the server. Out: `started`, `tree`,
`exited`, `stopping`, `left`, `stopped`, or `failed`. The guard has a session of its own and imports only what loads
fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.places import open_private
from loadgen.server.process.tree import ProcessId, ProcessInfo, descendants, process_info, send_signal
from loadgen.system import signal_when_parent_dies, text_in

LEFTOVER_GRACE_S = 2.0  # after the main process has ended, the rest of the tree gets SIGTERM and this long
KILL_WAIT_S = 15.0  # a killed process that held a GPU takes seconds to go; later it is reported as left
ORPHAN_GRACE_S = 2.0
ORPHAN_KILL_WAIT_S = 2.0  # if vramp is gone: with the grace, under five seconds in all

_LAST_S = 1.0  # a container removal still running this long before the guard gives up is killed
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that a guard handles. It is started with them blocked: one during Python's start would end it."""


class Inbox:
    """Lines and signals for this process; create it once, as it installs signal handlers."""

    def __init__(self) -> None:
        self.closed = False
        self._lines: list[bytes] = []
        self._partial = b""
        self._signals, wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        # Handlers rather than SIG_IGN: the server would inherit an ignored signal, but not a handler.
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(self._signals, selectors.EVENT_READ)

    def wait(self, timeout_s: float | None) -> tuple[list[bytes], set[int]]:
        """The lines and signals that arrived, after at most `timeout_s`."""
        signals: set[int] = set()
        for key, _ in self._selector.select(0 if self._lines else timeout_s):
            if key.fd == self._signals:
                signals |= set(os.read(self._signals, 4096))
                continue
            data = os.read(0, 65536)
            if not data:
                self.closed = True
                self._selector.unregister(0)
            *complete, self._partial = (self._partial + data).split(b"\n")
            self._lines += complete
        lines, self._lines = self._lines, []
        return lines, signals

    def first_line(self) -> bytes | None:
        """The first line, which is the order; None if vramp exited before sending it. Further lines stay for `wait`."""
        while not self.closed:
            lines, _ = self.wait(None)
            if lines:
                self._lines = lines[1:]
                return lines[0]
        return None


class Guard:
    """One server, from its start until nothing of it is left."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._stop_timeout_s = float(order["stop_timeout_s"])
        self._main = _start(order, order["argv"], preexec_fn=partial(_end_with_the_guard, os.getpid()))
        self._stopper: subprocess.Popen[bytes] | None = None
        self._killer: subprocess.Popen[bytes] | None = None
        self._asked_to_end = False
        self._stays = False
        self._problem = ""
        self._kill_at = math.inf
        self._give_up_at = math.inf
        self._sample_at = 0.0
        self._reported_tree: frozenset[ProcessId] = frozenset()
        self._reported_stopping: frozenset[ProcessId] = frozenset()
        self._killed: dict[ProcessId, ProcessInfo] = {}
        main = process_info(self._main.pid)
        assert main is not None, "it is our own child, so that even if dead it is there"
        record = order.get("record")
        self._record_path = Path(record["path"]) if record else None
        self._record: dict[str, Any] = record["facts"] if record else {}
        self._write_record(server=asdict(main.id), tree=[], left=False)
        _tell("started", **asdict(main.id))

    def run(self, inbox: Inbox) -> None:
        """Watch until the tree is gone, or cannot be ended."""
        left: list[ProcessInfo] = []
        while self._reap():
            now = time.monotonic()
            if now >= self._kill_at:
                self._kill(spare_killer=now < self._give_up_at - _LAST_S)
            if now >= self._give_up_at:
                left = descendants(os.getpid())
                break
            self._sample(now)
            lines, signals = inbox.wait(max(0.0, self._sample_at - now))
            self._obey(lines, signals, orphaned=inbox.closed)
        if not left and not self._problem:
            container = self._order.get("container")
            for path in (self._record_path, container and Path(container["id_file"])):
                if path is not None:
                    with contextlib.suppress(OSError):  # the next reader of a stale record removes it
                        path.unlink()
        _tell("stopped", killed=_described(self._killed.values()), left=_described(left), problem=self._problem)

    def _reap(self) -> bool:
        """Reap dead children; False when no descendant is left, alive or dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        if pid == self._main.pid:
            self._main.returncode = code
            _tell("exited", code=code if code >= 0 else None, signal=-code if code < 0 else None)
            self._end_within(LEFTOVER_GRACE_S, KILL_WAIT_S)
            for info in descendants(os.getpid()):
                if not self._is_killer(info):
                    send_signal(info.id, signal.SIGTERM)
            # The client may end before its container. Usually that is gone already, which is not worth a log line.
            self._remove_container(quiet=True)
        elif self._killer is not None and pid == self._killer.pid and code != 0:
            how = f"ended with exit code {code}" if code > 0 else "did not end in time"
            self._problem = f"the container could not be removed: rm {how}"
        elif self._stopper is not None and pid == self._stopper.pid and code != 0 and self._main.returncode is None:
            os.kill(self._main.pid, signal.SIGTERM)  # it may be stuck, for example on a daemon that does not answer

    def _obey(self, lines: list[bytes], signals: set[int], *, orphaned: bool) -> None:
        commands = [json.loads(line).get("do") for line in lines]
        if "leave" in commands:
            self._stays = True
            self._write_record(left=True)
            _tell("left")
        if signal.SIGTERM in signals or "stop" in commands:
            self._stop(self._stop_timeout_s, KILL_WAIT_S)
        if orphaned and not self._stays:
            self._stop(min(self._stop_timeout_s, ORPHAN_GRACE_S), ORPHAN_KILL_WAIT_S)

    def _stop(self, grace_s: float, kill_wait_s: float) -> None:
        self._end_within(grace_s, kill_wait_s)
        if not self._asked_to_end and self._main.returncode is None:
            self._sample(time.monotonic())  # update what is waited for
            self._stopper = self._run_on_container("stop", "-t", str(round(self._stop_timeout_s)))
            if self._stopper is None:
                # Only the main process: it ends its own children, which get a signal once it is gone.
                os.kill(self._main.pid, signal.SIGTERM)
        self._asked_to_end = True

    def _end_within(self, grace_s: float, kill_wait_s: float) -> None:
        """Bring the end forward, never postpone it: the shortest grace period requested so far applies."""
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)
        self._give_up_at = min(self._give_up_at, self._kill_at + kill_wait_s)
        self._sample_at = 0.0

    def _kill(self, *, spare_killer: bool) -> None:
        self._remove_container()
        for info in descendants(os.getpid()):
            if not (spare_killer and self._is_killer(info)) and send_signal(info.id, signal.SIGKILL):
                self._killed[info.id] = info

    def _remove_container(self, *, quiet: bool = False) -> None:
        if self._killer is None:
            self._killer = self._run_on_container("rm", "--force", quiet=quiet)

    def _is_killer(self, info: ProcessInfo) -> bool:
        return self._killer is not None and info.session == self._killer.pid

    def _run_on_container(self, *words: str, quiet: bool = False) -> subprocess.Popen[bytes] | None:
        """Run this docker command on our container; None while the daemon has not created one."""
        container = self._order.get("container")
        container_id = text_in(Path(container["id_file"])) if container else ""
        if not container or not container_id:
            return None
        command = [container["program"], *words, container_id]
        try:
            return _start(self._order, command, quiet=quiet)
        except OSError as error:
            self._problem = f"cannot run {shlex.join(command)}: {error.strerror}"
            return None

    def _write_record(self, **facts: Any) -> None:  # noqa: ANN401 - facts are what JSON can say
        """Replace the record atomically by one with these facts added."""
        if self._record_path is None:
            return
        self._record |= facts
        new = self._record_path.with_suffix(".new")
        try:
            with open(new, "w", opener=open_private) as file:
                file.write(json.dumps(self._record))
            new.replace(self._record_path)
        except OSError as error:  # the server works without a record, and can still be found by its mark
            with contextlib.suppress(OSError):  # the log may be on the same full disk
                os.write(2, f"vramp: cannot record this server: {error}\n".encode())
            with contextlib.suppress(OSError):
                new.unlink()

    def _sample(self, now: float) -> None:
        if now < self._sample_at:
            return
        ending = self._kill_at < math.inf
        self._sample_at = now + (0.1 if ending else 1.0)
        tree = descendants(os.getpid())
        ids = frozenset(info.id for info in tree)
        if ids != self._reported_tree:
            self._write_record(tree=[asdict(info.id) for info in tree])
            _tell("tree", processes=[[info.id.pid, info.id.start_ticks, info.name] for info in tree])
            self._reported_tree = ids
        if ending and ids and ids != self._reported_stopping:
            _tell("stopping", waiting_for=_described(tree))
            self._reported_stopping = ids


def _start(
    order: dict[str, Any], argv: list[str], *, quiet: bool = False, preexec_fn: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    # The log may show the server's arguments, including API keys: only its owner may read it.
    with open(order["log_path"], "ab", opener=open_private) as log:
        return subprocess.Popen(
            argv,
            env=order["env"],
            cwd=order["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if quiet else log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=preexec_fn,  # noqa: PLW1509 - the guard has one thread, so that nothing can deadlock
        )


def _end_with_the_guard(guard: int) -> None:
    """Have the kernel end the server if the guard is killed: the last resort when vramp is killed with it."""
    signal_when_parent_dies(signal.SIGTERM)
    if os.getppid() != guard:  # the guard was killed before prctl took effect
        os._exit(1)


def _described(processes: Iterable[ProcessInfo]) -> list[dict[str, Any]]:
    return [{"pid": info.id.pid, "name": info.name} for info in processes]


def _tell(event: str, **facts: Any) -> None:  # noqa: ANN401 - facts are what JSON can say
    line = json.dumps({"event": event, **facts}) + "\n"
    with contextlib.suppress(BrokenPipeError):  # vramp is gone; the remaining work needs no listener
        os.write(1, line.encode())


def main() -> None:
    # If it were stopped, it would never notice that vramp is gone.
    signal_when_parent_dies(signal.SIGCONT)
    inbox = Inbox()
    order = json.loads(inbox.first_line() or "{}")
    if "argv" not in order:  # vramp is gone, or was stopped before it sent the order
        return
    try:
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot become the subreaper of the server's processes: {os.strerror(number)}")
        guard = Guard(order)
    except (OSError, subprocess.SubprocessError) as error:
        _tell("failed", error=str(error))
        return
    guard.run(inbox)


if __name__ == "__main__":
    main()
