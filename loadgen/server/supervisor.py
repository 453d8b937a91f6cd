"""Our own server: started through its guard, watched, and stopped so that nothing of it is left.

Invariants: the server runs under a guard that ends the tree however vramp dies; if the guard itself is killed, the tree
that it reported is killed from here; the server's death is noticed at once, not at the next poll; `stop` may be called
at any time and repeatedly, and cancelling it does not undo it; from before its start until it has stopped or was left
running, its port is locked as ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from loadgen.errors import ServerError
from loadgen.masking import masked_command
from loadgen.profile.schema import Server
from loadgen.schema.samples import Reading
from loadgen.schema.shared import Diagnosis, Milestone
from loadgen.schema.snapshot import Liveness
from loadgen.schema.start import ServerStart
from loadgen.server.gpus.memory import HeldSince, wait_back
from loadgen.server.process import guard, guard_client, tree
from loadgen.server.process.container import Container, container_of, remove_container
from loadgen.server.process.guard_client import NOT_CHECKED, ProcessName, ServerExit, StopReport, end_without_guard
from loadgen.server.process.log import LogTail
from loadgen.server.process.ports import claim_port, holders, is_of_root_or_us, shown_listeners
from loadgen.server.process.records import VARIABLE, ServerMark, forget, id_file, new_mark, record_path
from loadgen.server.vllm.causes import Phase
from loadgen.server.vllm.client import ServerClient, api_key, base_url, until_ready
from loadgen.server.vllm.command import find_container_program, server_command, server_environment
from loadgen.server.vllm.diagnosis import diagnose, kernel_kills, read_oom_kills
from loadgen.server.vllm.start_figures import read_line
from loadgen.server.vllm.startup import StartupWatch, signs_of_life, times_of

ServerState = Literal["starting", "ready", "stopping", "stopped", "died"]

_WAITS_FOR_WORKER = re.compile(
    r"No available shared memory broadcast block found|RPC call to (execute_model|sample_tokens) timed out"
)
_GUARD_MARGIN_S = 5.0
_LEAVE_WAIT_S = 15.0
_STACKS_S = 2.0


class ManagedServer:
    """One server process tree; use it with `async with`, or call `stop` at the end."""

    def __init__(
        self, server: Server, *, log_path: Path, profile: str = "", gpu_memory: HeldSince | str = NOT_CHECKED
    ) -> None:
        """Nothing starts yet. The server's output is appended to `log_path`; `profile` names it to other vramps.

        With `gpu_memory`, the level before the start, a stop waits until memory is back at that level.
        """
        assert server.engine != "attach", "an attached server is not ours to start or stop"
        self.state: ServerState = "starting"
        self.pid: int | None = None
        self.exit: ServerExit | None = None
        self.died = asyncio.Event()  # set when the server ends without being stopped
        self.died_s: float | None = None  # when that was, on the monotonic clock
        self.processes: tuple[ProcessName, ...] = ()  # the tree as last reported, the main process first
        self.waiting_for: tuple[ProcessName, ...] = ()  # while stopping: processes that have not ended yet
        self.prints_stacks = False  # its processes print their Python stacks into the log when it is stopped
        self.waits_for_worker = False  # its log has said so since this was last cleared
        self.command: list[str] = []  # as started, secrets masked
        self.port = server.port
        self.log = LogTail(log_path, offset=log_path.stat().st_size if log_path.exists() else 0)
        self._server = server
        self._profile = profile
        self._held = gpu_memory
        self._oom_kills_before: int | None = None
        self._launched_s = time.monotonic()
        self._last_line_s: float | None = None
        self._cpu: Reading | None = None
        self._others_on_port = ""  # who else listened on its port when it was last looked at
        self._lock: socket.socket | None = None
        self._mark: ServerMark | None = None
        self.container: Container | None = None
        self._startup = StartupWatch(time.monotonic())
        self._figures = ServerStart()  # so far, without times
        self._guard: subprocess.Popen[bytes] | None = None
        self._seen: set[tree.ProcessId] = set()
        self._report: StopReport | None = None
        self._failure = ""
        self._hurried = asyncio.Event()
        self._left = asyncio.Event()
        self._started = asyncio.Event()
        self._ended_once = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[StopReport] | None = None

    @property
    def base_url(self) -> str:
        """The server's URL; only meaningful after `start`."""
        return base_url(self._server.host, self.port)

    @property
    def milestones(self) -> tuple[Milestone, ...]:
        return self._startup.milestones

    @property
    def start_figures(self) -> ServerStart:
        """What the log of its start has said so far, with how long it took once it is over."""
        return times_of(self._figures, self.milestones)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server without waiting for it; raises `ServerError` if it cannot be executed."""
        if self._stopping is not None:
            raise ServerError("the server was stopped before it was started")
        self.port, self._lock = claim_port(self._server.host, self.port)
        try:
            self._oom_kills_before = read_oom_kills(own_group=self._server.docker is None)
            self._launched_s = time.monotonic()
            self._guard = guard_client.start_guard(self.log.path)
            self._watching = asyncio.create_task(self._watch(self._guard))
            self._following = asyncio.create_task(self._follow_log())
            await asyncio.to_thread(guard_client.send, self._guard, self._order(self._guard.pid))
            async with asyncio.timeout(15.0):
                await self._started.wait()
            if self.pid is None:
                raise ServerError(f"cannot start {self.command[0]}: {self._failure or 'its guard ended'}")
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise ServerError("the guard of the server did not start; is the machine out of memory?") from None
            raise

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Return once the server answers; raises `ServerError`, without a stop, if it dies first or takes too long."""
        limit_s = self._server.startup_timeout_s if timeout_s is None else timeout_s
        try:
            async with (
                asyncio.timeout(limit_s),
                ServerClient(self.base_url, api_key(self._server), api_key_env=self._server.api_key_env) as client,
            ):
                if not await until_ready(client, self._ended_once, self._holds_port):
                    raise ServerError(self._explained(f"the server {self.exit} before it was ready", "starting"))
        except TimeoutError:
            late = f"the server did not become ready within {limit_s:g} s{self._others_on_port}"
            raise ServerError(self._explained(late, "starting")) from None
        if self.state == "starting":
            self.state = "ready"
        self._startup.finish(time.monotonic())

    async def _holds_port(self) -> bool:
        """Whether only this server can answer on its port: whatever else listens there must not get the API key."""
        found = await asyncio.to_thread(holders, self._server.host, self.port)
        if self.container is not None:
            # Its daemon listens for it, or nobody does where the kernel forwards the port.
            others = {pid for pid in found if pid is None or not is_of_root_or_us(pid)}
        else:
            assert self._guard is not None, "it has been started"
            others = found - {info.id.pid for info in tree.descendants(self._guard.pid)}
        only = "vramp sends requests only to the server that it started"
        self._others_on_port = f"; its port is held by {shown_listeners(others)}, and {only}" if others else ""
        return not others and (bool(found) or self.container is not None)

    def diagnose(self, phase: Phase) -> Diagnosis:
        self._read_log()
        now, before = read_oom_kills(own_group=self._server.docker is None), self._oom_kills_before
        kills = None if now is None or before is None else now - before
        lines = [*self.log.distinct_lines(), *kernel_kills(self._launched_s)]
        return diagnose(lines, self.exit, phase=phase, oom_kills=kills)

    def liveness(self) -> Liveness:
        """Signs of life from its processes; CPU use is that since the last call."""
        pids = [process.pid for process in self.processes]
        liveness, self._cpu = signs_of_life(pids, self._cpu, now_s=time.monotonic(), last_line_s=self._last_line_s)
        return liveness

    async def stop(self) -> StopReport:
        """End the whole tree. First end the load and close connections, or vLLM waits for them until it is killed."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        return await asyncio.shield(self._stopping)

    def end_soon(self) -> None:
        """Make the current or next stop a quick one: the server gets at most two seconds to end by itself."""
        self._hurried.set()
        if self._stopping is not None and self._guard is not None:
            guard_client.hang_up(self._guard)

    async def leave(self) -> None:
        """Let the server run on without vramp; `stop` then does nothing, and `vramp stop` ends it later.

        Raises `ServerError` if it has ended, is being stopped, or its guard does not answer.
        """
        if self._guard is None or self._watching is None or self.exit is not None or self._stopping is not None:
            raise ServerError("the server has ended or is being stopped; there is nothing to leave running")
        await asyncio.to_thread(guard_client.send, self._guard, {"do": "leave"})
        answer = asyncio.create_task(self._left.wait())
        await asyncio.wait({answer, self._watching}, timeout=_LEAVE_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        if not self._left.is_set():
            raise ServerError("the guard of the server does not answer, so that the server cannot be left running")
        self._stopping = asyncio.create_task(self._part(self._guard, self._watching))
        await asyncio.shield(self._stopping)

    def _order(self, guard_pid: int) -> dict[str, Any]:
        guard_process = tree.process_info(guard_pid)
        assert guard_process is not None, "our own child exists even when dead"
        mark = self._mark = new_mark(self.port, guard_process.id)
        # SPT_NOENV keeps setproctitle, which vLLM uses, from overwriting the mark in the environment.
        environment = {"SPT_NOENV": "1", **server_environment(self._server), VARIABLE: str(mark)}
        record = record_path(mark)
        if self._server.docker is not None:
            program = find_container_program(self._server, self._server.docker)
            self.container = container_of(program, id_file=id_file(record), label=str(mark), environment=environment)
        argv = server_command(self._server, port=self.port, known_by=self.container.flags if self.container else ())
        self.command = masked_command(argv)
        both = {"log_path": str(self.log.path.absolute()), "container": msgspec.to_builtins(self.container)}
        facts = both | {
            "mark": msgspec.to_builtins(mark),
            "url": self.base_url,
            "profile": self._profile,
            "model": self._server.model,
            "command": self.command,
            "started_unix_s": time.time(),
        }
        return both | {
            "argv": argv,
            "env": environment,
            "cwd": str(guard_client.PACKAGE_ROOT if self._server.engine == "simulator" else Path.cwd()),
            "stop_timeout_s": self._server.stop_timeout_s,
            "record": {"path": str(record), "facts": facts},
        }

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Process the guard's reports until it ends; take over its work if it ended too early."""
        async for event in guard_client.events(process):
            self._handle(event)
        await asyncio.to_thread(process.wait)
        report = self._report
        if report is None and self.pid is not None:
            if self.exit is None:
                self._ended(ServerExit())
            report = await end_without_guard(self._seen, self.container)
            self.processes = report.left
        elif report is not None and report.problem and self.container is not None:
            # The guard had no time to remove the container, or its daemon did not answer.
            problem = await asyncio.to_thread(remove_container, self.container)
            report = msgspec.structs.replace(report, problem=problem)
        if report is not None and report is not self._report:
            self._report = report
            if report.clean and self._mark is not None:
                forget(self._mark)
        self._started.set()

    def _handle(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid = event["pid"]
                self._seen.add(tree.ProcessId(event["pid"], event["start_ticks"]))
                self._started.set()
            case "failed":
                self._failure = event["error"]
            case "tree":
                self.processes = tuple(ProcessName(pid, name) for pid, _, name in event["processes"])
                self._seen |= {tree.ProcessId(pid, ticks) for pid, ticks, _ in event["processes"]}
            case "exited":
                self._ended(ServerExit(event["code"], event["signal"]))
            case "stopping":
                self.waiting_for = _names(event["waiting_for"])
            case "left":
                self._left.set()
            case "stopped":
                self.waiting_for = self.processes = left = _names(event["left"])
                self._report = StopReport(0.0, _names(event["killed"]), left, event["problem"])

    def _ended(self, how: ServerExit) -> None:
        self.exit = how
        self._ended_once.set()
        if self._stopping is None:
            self.state = "died"
            self.died_s = time.monotonic()
            self.died.set()

    async def _follow_log(self) -> None:
        while True:
            self._read_log()
            await asyncio.sleep(0.2)

    def _read_log(self) -> None:
        now = time.monotonic()
        for line in self.log.poll():
            self._startup.feed(line, now)
            if self.state == "starting":
                self._figures = read_line(self._figures, line)
            elif _WAITS_FOR_WORKER.search(line):
                self.waits_for_worker = True
            self._last_line_s = now
        self._startup.feed(self.log.unfinished, now)

    def _explained(self, message: str, phase: Phase) -> str:
        cause = self.diagnose(phase)
        lines = [f"{message}: {cause.title}", *(f"  {line}" for line in cause.evidence), f"  -> {cause.remedy}"]
        return "\n".join([*lines, f"  its log is {self.log.path}"])

    async def _stop(self) -> StopReport:
        began = time.monotonic()
        if self.state != "died":
            self.state = "stopping"
        try:
            if self.prints_stacks and self.container is None:
                await self._print_stacks()
            if self._guard is not None and self._watching is not None:
                await self._end_guard(self._guard, self._watching)
            await self._end_following()
            gpu_memory = await wait_back(self._held, self._hurried)
        finally:
            if self._lock is not None:
                self._lock.close()
        if self.state != "died":
            self.state = "stopped"
        report = self._report or StopReport(0.0)
        return msgspec.structs.replace(report, elapsed_s=time.monotonic() - began, gpu_memory=gpu_memory)

    async def _print_stacks(self) -> None:
        """Abort its processes, all at once: Python's fault handler prints their stacks even while they hang in C."""
        living = [one for one in self._seen if tree.lives(one)]
        for one in living:
            tree.abort_without_core(one)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STACKS_S):
                while any(tree.lives(one) for one in living):  # noqa: ASYNC110 - only /proc says when they have ended
                    await asyncio.sleep(0.05)

    async def _part(self, process: subprocess.Popen[bytes], watching: asyncio.Task[None]) -> StopReport:
        await _cancel(watching)
        guard_client.hang_up(process)
        process.returncode = 0  # we no longer wait for it; without a return code, subprocess would warn
        await self._end_following()
        if self._lock is not None:
            self._lock.close()
        return StopReport(0.0, gpu_memory="the server was left running")

    async def _end_guard(self, process: subprocess.Popen[bytes], watching: asyncio.Task[None]) -> None:
        limit_s = self._server.stop_timeout_s + guard.KILL_WAIT_S + _GUARD_MARGIN_S
        try:
            async with asyncio.timeout(limit_s):
                if self._hurried.is_set():
                    guard_client.hang_up(process)
                else:
                    await asyncio.to_thread(guard_client.send, process, {"do": "stop"})
                await asyncio.shield(watching)
        except TimeoutError:  # a guard that hangs is treated like one that is gone
            process.kill()
            await watching
        finally:
            guard_client.hang_up(process)

    async def _end_following(self) -> None:
        if self._following is not None:
            await _cancel(self._following)
            self._read_log()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _names(processes: list[dict[str, Any]]) -> tuple[ProcessName, ...]:
    return tuple(ProcessName(**entry) for entry in processes)
