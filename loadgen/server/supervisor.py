"""A server of our own: started through its guard, watched, and stopped so that nothing of it is left.

Invariants: the server runs under a guard that ends the tree when vramp dies in any way; if the guard itself is killed,
the tree it reported is killed from here; a death is known within a moment, not at the next poll; `stop` may be called
at any time, any number of times, and being cancelled does not undo it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import loadgen
from loadgen.errors import ServerError
from loadgen.metrics.snapshot import Milestone
from loadgen.profile import Server
from loadgen.server import guard, tree
from loadgen.server.client import ServerClient, api_key, base_url
from loadgen.server.command import server_command, server_environment
from loadgen.server.log_tail import LogTail
from loadgen.server.log_text import telling_lines
from loadgen.server.masking import masked_command
from loadgen.server.outcome import ProcessName, ServerExit, StopReport, names_from_guard, names_of
from loadgen.server.ports import free_port, require_free_port
from loadgen.server.startup import StartupWatch

ServerState = Literal["starting", "ready", "stopping", "stopped", "died"]

_LOG_POLL_S = 0.2
_READY_POLL_S = 0.25
_DEATH_NOTICE_S = 1.0
_START_WAIT_S = 15.0
_GUARD_MARGIN_S = 5.0
_PACKAGE_ROOT = Path(loadgen.__file__).parents[1]


class ManagedServer:
    """One server process tree; use it with `async with`, or call `stop` in the end."""

    def __init__(self, server: Server, *, log_path: Path) -> None:
        """Nothing starts yet; the server's output is appended to `log_path`."""
        assert server.engine != "attach", "an attached server is not ours to start or stop"
        self.state: ServerState = "starting"
        self.pid: int | None = None
        self.exit: ServerExit | None = None
        self.died = asyncio.Event()
        """Set when the server ends although nobody asked it to."""
        self.processes: tuple[ProcessName, ...] = ()
        """The tree as last reported, the main process first."""
        self.waiting_for: tuple[ProcessName, ...] = ()
        """While stopping: what has not ended yet."""
        self.command: list[str] = []
        """As started, secrets masked."""
        self.port = server.port
        self.log = LogTail(log_path, offset=log_path.stat().st_size if log_path.exists() else 0)
        self._server = server
        self._startup = StartupWatch(time.monotonic())
        self._guard: subprocess.Popen[bytes] | None = None
        self._seen: set[tree.ProcessId] = set()
        self._report: StopReport | None = None
        self._failure = ""
        self._hurried = False
        self._started = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[StopReport] | None = None

    @property
    def base_url(self) -> str:
        """Where the server answers; only meaningful after `start`."""
        return base_url(self._server.host, self.port)

    @property
    def milestones(self) -> tuple[Milestone, ...]:
        """How far the start is."""
        return tuple(self._startup.milestones)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and return at once; raises `ServerError` if it cannot even be executed."""
        if self._stopping is not None:
            raise ServerError("the server was stopped before it was started")
        host = self._server.host
        self.port = require_free_port(host, self.port) if self.port else free_port(host)
        argv = server_command(self._server, port=self.port)
        self.command = masked_command(argv)
        try:
            await self._launch(argv)
            await asyncio.wait_for(self._started.wait(), _START_WAIT_S)
        except TimeoutError:
            await self.stop()
            raise ServerError("the guard of the server did not start; is the machine out of memory?") from None
        except BaseException:
            await self.stop()
            raise
        if self.pid is None:
            await self.stop()
            raise ServerError(f"cannot start {self.command[0]}: {self._failure or 'its guard ended'}")

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Return once the server answers; raises `ServerError` if it dies first or takes longer than it may.

        Leaves the server as it is: the caller stops it.
        """
        limit_s = self._server.startup_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._until_ready()
        except TimeoutError:
            raise ServerError(self._with_log(f"the server did not become ready within {limit_s:g} s")) from None
        if self.state == "starting":
            self.state = "ready"
        self._startup.finish(time.monotonic())

    async def stop(self) -> StopReport:
        """End the whole tree; end the load and close its connections first, or vLLM waits for them until killed."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        return await asyncio.shield(self._stopping)

    def hurry(self) -> None:
        """Make the stop that is under way, or the next, a quick one: the server gets two seconds of its own at most."""
        self._hurried = True
        if self._stopping is not None:
            self._leave_guard()

    def _leave_guard(self) -> None:
        # What a dead vramp looks like to the guard, and nothing ends a tree faster.
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()

    async def _launch(self, argv: list[str]) -> None:
        self._guard = _start_guard(self.log.path)
        self._watching = asyncio.create_task(self._watch(self._guard))
        self._following = asyncio.create_task(self._follow_log())
        order = {
            "argv": argv,
            "env": server_environment(self._server),
            "cwd": str(_PACKAGE_ROOT if self._server.engine == "simulator" else Path.cwd()),
            "log_path": str(self.log.path.absolute()),
            "stop_timeout_s": self._server.stop_timeout_s,
        }
        await asyncio.to_thread(_send, self._guard, order)

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Take in what the guard reports until it ends, and do its work if it ended too early."""
        reader = asyncio.StreamReader(limit=1 << 22)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while line := await reader.readline():
                self._take(json.loads(line))
        finally:
            transport.close()
        await asyncio.to_thread(process.wait)
        if self._report is None and self.pid is not None:
            await self._replace_guard()
        self._started.set()

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid = event["pid"]
                self._note_main()
                self._started.set()
            case "failed":
                self._failure = event["error"]
            case "tree":
                self.processes = tuple(ProcessName(pid, name) for pid, _, name in event["processes"])
                self._seen |= {tree.ProcessId(pid, ticks) for pid, ticks, _ in event["processes"]}
            case "exited":
                self._ended(ServerExit(event["code"], event["signal"]))
            case "stopping":
                self.waiting_for = names_from_guard(event["waiting_for"])
            case "stopped":
                self._report = StopReport(0.0, names_from_guard(event["killed"]), names_from_guard(event["left"]))
                self.waiting_for = self.processes = self._report.left

    def _note_main(self) -> None:
        assert self.pid is not None
        info = tree.look_at(self.pid)
        if info is not None and self._guard is not None and info.parent == self._guard.pid:
            self._seen.add(info.id)

    def _ended(self, how: ServerExit) -> None:
        self.exit = how
        if self._stopping is None:
            self.state = "died"
            self.died.set()

    async def _replace_guard(self) -> None:
        if self.exit is None:
            self._ended(ServerExit())
        killed, left = await asyncio.to_thread(tree.kill_seen, self._seen, within_s=guard.KILL_WAIT_S)
        self._report = StopReport(0.0, names_of(killed), names_of(left))
        self.processes = self._report.left

    async def _follow_log(self) -> None:
        while True:
            self._read_log()
            await asyncio.sleep(_LOG_POLL_S)

    def _read_log(self) -> None:
        now = time.monotonic()
        for line in self.log.poll():
            self._startup.feed(line, now)
        self._startup.feed(self.log.unfinished, now)

    async def _until_ready(self) -> None:
        async with ServerClient(self.base_url, api_key(self._server), api_key_env=self._server.api_key_env) as client:
            while True:
                if self.exit is not None:
                    raise ServerError(self._with_log(f"the server {self.exit} before it was ready"))
                if await client.health() and await self._answers(client):
                    return
                await self._death_within(_READY_POLL_S)

    async def _answers(self, client: ServerClient) -> bool:
        try:
            await client.models()
        except ServerError:
            if await self._death_within(_DEATH_NOTICE_S):  # the better explanation, given by the caller
                return False
            raise
        return True

    async def _death_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.died.wait(), seconds)
        return self.died.is_set()

    def _with_log(self, message: str) -> str:
        self._read_log()
        lines = telling_lines(self.log.lines)
        head = f"{message}; its log is {self.log.path}"
        return "\n".join([head, *(f"  {line}" for line in lines)])

    async def _stop(self) -> StopReport:
        began = time.monotonic()
        if self.state != "died":
            self.state = "stopping"
        if self._guard is not None and self._watching is not None:
            await self._end_guard(self._guard, self._watching)
        await self._end_following()
        if self.state != "died":
            self.state = "stopped"
        report = self._report or StopReport(0.0)
        return StopReport(time.monotonic() - began, report.killed, report.left)

    async def _end_guard(self, process: subprocess.Popen[bytes], watching: asyncio.Task[None]) -> None:
        limit_s = self._server.stop_timeout_s + guard.KILL_WAIT_S + _GUARD_MARGIN_S
        try:
            async with asyncio.timeout(limit_s):
                if self._hurried:
                    self._leave_guard()
                else:
                    await asyncio.to_thread(_send, process, {"do": "stop"})
                await asyncio.shield(watching)
        except TimeoutError:  # a guard that hangs is worth no more than one that is gone
            process.kill()
            await watching
        finally:
            self._leave_guard()

    async def _end_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
            self._read_log()


def _start_guard(log_path: Path) -> subprocess.Popen[bytes]:
    # Not asyncio's subprocess: it kills its child when the loop is closed, and the guard must outlive that.
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", guard.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=_PACKAGE_ROOT,
            start_new_session=True,
        )
    finally:
        os.close(log)


def _send(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended; what it reported last says why
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
