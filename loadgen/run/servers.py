"""The server side of a run: one server, several instances of it, or attached servers.

All start together and stop together. Invariants: the death of one counts as the death of all, and is noticed at the
next `check` or while the others still start; `stop` ends every server that was started, whatever became of the others;
an attached server is neither started nor stopped.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from loadgen.errors import LoadError, ProfileError, ServerError
from loadgen.masking import mask_file, masked_text
from loadgen.places import cache_folder
from loadgen.profile.schema import Profile
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import ServerInstance
from loadgen.schema.samples import GpuStatic
from loadgen.schema.shared import Diagnosis, Milestone
from loadgen.schema.snapshot import SNAPSHOT_S, InstanceView, Liveness, ServerView
from loadgen.schema.start import ServerStart
from loadgen.server.gpus.given import given_indices
from loadgen.server.gpus.memory import level_now
from loadgen.server.process.guard_client import ProcessName, StopReport
from loadgen.server.process.ports import drive_lock, is_this_machine
from loadgen.server.supervisor import ManagedServer, ServerState
from loadgen.server.vllm.causes import Phase
from loadgen.server.vllm.command import instance_servers
from loadgen.server.vllm.startup import last_start, remember_start, start_key, times_of, with_expectations
from loadgen.stream.request import host_and_port

_LOG_LINES = 200
_SIGNS_EVERY_S = 1.0
ReportEvent = Callable[[str, str], None]  # of a kind, with a text
_STATES: tuple[ServerState, ...] = ("died", "stopping", "starting", "ready", "stopped")
"""The state of several servers is the first of these that any of them is in."""


class Servers:
    """The servers of a profile: `start`, `wait_ready`, `check` now and then, and `stop` at the end."""

    def __init__(self, profile: Profile) -> None:
        """Nothing starts yet; raises `ProfileError` if there are not enough ports or devices for all instances."""
        settings = profile.server
        self.settings = settings
        self.diagnosis: Diagnosis | None = None  # why one of them died
        self._profile = profile
        self.last_start: ServerStart | None = None  # with the same flags, on this box
        self._locks: list[socket.socket] = []  # of the servers that we have locked for our load
        self._liveness: Liveness | None = None
        self._signs_at_s = 0.0
        self.managed: list[ManagedServer] = []  # our own, once they are started; instance 0 first
        self._each = [] if settings.engine in ("attach", "none") else instance_servers(settings)

    @property
    def count(self) -> int:
        return self.settings.servers

    @property
    def ours(self) -> bool:
        """Whether vramp starts and stops them."""
        return bool(self._each)

    # Their life.

    async def start(self, folder: Path) -> None:
        """Start all at once, each with its log in `folder`; raises `ServerError` if one cannot be executed."""
        if not self.ours:
            return
        self.last_start = last_start(cache_folder("starts"), start_key(self._profile))
        # Once for all of them: the memory of one must not count as the level of the next.
        held = await level_now(self.settings)
        self.managed = [
            ManagedServer(
                server,
                log_path=folder / ("server.log" if self.count == 1 else f"server-{number}.log"),
                profile=self._profile.name,
                gpu_memory=held,
            )
            for number, server in enumerate(self._each)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for server in self.managed:
                    group.create_task(server.start())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def claim(self) -> None:
        """Lock the servers for our load; raises a `ServerError` that names the driver of a server already locked."""
        for url in self.base_urls[len(self._locks) :]:
            self._locks.append(drive_lock(*host_and_port(url)))

    def free(self) -> None:
        """Unlock the servers, so that others may send load to them; vramp still stops those that it started."""
        while self._locks:
            self._locks.pop().close()

    @property
    def claimed(self) -> bool:
        """Whether all servers are locked for our load."""
        return len(self._locks) == self.count

    async def wait_ready(self) -> None:
        """Return once every server answers; raises `ServerError` if one dies first or takes too long."""
        watches: list[asyncio.Task[None]] = []

        async def ready_and_watched(number: int, server: ManagedServer) -> None:
            await server.wait_ready()
            watches.append(group.create_task(raise_when_dead(number, server)))

        async def raise_when_dead(number: int, server: ManagedServer) -> None:
            await server.died.wait()
            raise ServerError(self._death_message(number, server, "while others still started"))

        try:
            async with asyncio.TaskGroup() as group:
                waits = [group.create_task(ready_and_watched(*entry)) for entry in enumerate(self.managed)]
                if waits:
                    await asyncio.wait(waits)
                for watch in watches:
                    watch.cancel()
        except BaseExceptionGroup as errors:
            self._find_cause("starting")
            raise errors.exceptions[0] from None

    @property
    def start_figures(self) -> ServerStart:
        """What is known of the start of the first server, with the times of the slowest; of others' servers nothing."""
        return times_of(self.managed[0].start_figures, self.milestones) if self.managed else ServerStart()

    def remember_start(self, start: ServerStart) -> str | None:
        """Store the figures of the start, for the next one; returns an error message if that failed."""
        return remember_start(cache_folder("starts"), start_key(self._profile), start) if self.managed else None

    def check(self) -> None:
        """Raise `LoadError` if a server has died under the load."""
        for number, server in enumerate(self.managed):
            if server.died.is_set():
                self._find_cause("serving")
                raise LoadError(self._death_message(number, server, "during the load"))

    def take_waits_for_worker(self) -> bool:
        """Whether a log has said since the last call that a worker does not answer."""
        said = [server for server in self.managed if server.waits_for_worker]
        for server in said:
            server.waits_for_worker = False
        return bool(said)

    def _find_cause(self, phase: Phase) -> None:
        dead = next((server for server in self.managed if server.exit is not None), None)
        if dead is not None:
            self.diagnosis = dead.diagnose(phase)

    def _death_message(self, number: int, server: ManagedServer, when: str) -> str:
        name = "the server" if self.count == 1 else f"instance {number} of the server"
        cause = self.diagnosis or server.diagnose("serving")
        lines = [f"{name} {server.exit} {when}: {cause.title}", *(f"  {line}" for line in cause.evidence)]
        return "\n".join([*lines, f"  -> {cause.remedy}", f"  its log is {server.log.path}"])

    async def end(self, *, leave: bool, event: ReportEvent, show: Callable[[], None]) -> ServerState | None:
        """Stop all servers, or with `leave` keep them running if all are ready; calls `show` repeatedly meanwhile.

        Returns their state; None if they are attached, or if all were left running.
        """
        left = await self._leave(event) if leave and self.state == "ready" else []
        stopping = asyncio.create_task(self.stop())
        while not stopping.done():
            show()
            await asyncio.wait({stopping}, timeout=SNAPSHOT_S)
        for server, report in zip(self.managed, await stopping, strict=True):
            if server not in left:
                event("server" if report.clean else "error", f"server {report.sentence}")
                await _mask_log(server.log.path, event)
        stopped: ServerState = "died" if self.died else "stopped"
        return stopped if len(left) < len(self.managed) else None

    async def stop(self) -> list[StopReport]:
        """End all process trees at once, then unlock the servers; first end the load and close its connections."""
        try:
            return await asyncio.gather(*(server.stop() for server in self.managed))
        finally:
            self.free()

    async def _leave(self, event: ReportEvent) -> list[ManagedServer]:
        """Let the servers run on without vramp; returns those for which that worked, `stop` ends the others."""
        left = []
        for server in self.managed:
            try:
                await server.leave()
            except ServerError as error:
                event("error", f"{server.base_url}: {error}; it is stopped")
            else:
                left.append(server)
                event("server", f"left running at {server.base_url}; `vramp stop {server.port}` ends it")
        return left

    def print_stacks(self) -> None:
        """Have the processes print their stacks as they are stopped."""
        for server in self.managed:
            server.prints_stacks = True

    def end_soon(self) -> None:
        """Make the current or next stop a quick one."""
        for server in self.managed:
            server.end_soon()

    # What is known of them.

    @property
    def state(self) -> ServerState:
        """The state of the most significant one; `starting` before the start, and always for an attached server."""
        states = {server.state for server in self.managed}
        return next((state for state in _STATES if state in states), "starting")

    @property
    def died(self) -> bool:
        """Whether any of them ended without being stopped."""
        return self.state == "died"

    @property
    def clock_s(self) -> float:
        """The monotonic clock; it stands still from the moment at which one of them died."""
        return min((one.died_s for one in self.managed if one.died_s is not None), default=time.monotonic())

    @property
    def base_urls(self) -> list[str]:
        """Their URLs; only meaningful after `start`."""
        return self.settings.attached or [server.base_url for server in self.managed]

    @property
    def url(self) -> str:
        """The URL of the first, for display; empty before the start."""
        return masked_text(next(iter(self.base_urls), ""))

    @property
    def pid(self) -> int | None:
        """The main process of the first."""
        return self.managed[0].pid if self.managed else None

    @property
    def milestones(self) -> tuple[Milestone, ...]:
        """The progress of the slowest start."""
        milestones = self._shown.milestones if self._shown is not None else ()
        return with_expectations(milestones, self.last_start, now_s=self.clock_s)

    @property
    def liveness(self) -> Liveness | None:
        """Signs of life from the processes of the slowest, sampled once a second."""
        now_s = time.monotonic()
        if self._shown is not None and now_s >= self._signs_at_s:
            self._signs_at_s = now_s + _SIGNS_EVERY_S
            self._liveness = self._shown.liveness()
        return self._liveness

    def given(self, gpus: Sequence[GpuStatic]) -> tuple[int, ...] | None:
        """The numbers of the GPUs that all servers together were given; None if only their processes show it."""
        if self.settings.engine == "attach":
            here = any(is_this_machine(host_and_port(url)[0]) for url in self.settings.attached)
            return None if here else ()
        if self.settings.engine == "none":
            return tuple(gpu.index for gpu in gpus)
        if self.settings.engine == "simulator":
            return ()
        try:
            return given_indices(self._each, gpus)
        except ProfileError:  # sizes that are not numbers: the server itself reports them
            return None

    @property
    def pids(self) -> list[int]:
        """All processes of all servers, as last seen."""
        return [process.pid for server in self.managed for process in server.processes]

    @property
    def waiting_for(self) -> tuple[ProcessName, ...]:
        """While they stop: the processes that have not ended yet."""
        return tuple(process for server in self.managed for process in server.waiting_for)

    @property
    def _shown(self) -> ManagedServer | None:
        def rank(server: ManagedServer) -> tuple[bool, int]:
            return not server.died.is_set(), sum(milestone.state == "done" for milestone in server.milestones)

        return min(self.managed, key=rank, default=None)

    def described(self) -> tuple[ServerInstance, ...]:
        if self.settings.urls:
            return tuple(ServerInstance(url=url) for url in self.settings.urls)
        return tuple(
            ServerInstance(url=managed.base_url, pid=managed.pid, command=managed.command, env=server.env)
            for managed, server in zip(self.managed, self._each, strict=False)
        )

    def view(self, engines: list[EngineView | None], silent: Collection[int]) -> ServerView:
        """All of them for the screen, each with its gauges; `silent` are those that no longer answer."""
        shown, settings = self._shown, self.settings
        return ServerView(
            engine=settings.engine,
            url=self.url,
            state=self.state,
            model=settings.served_model_name or settings.model,
            pid=self.pid,
            is_own=self.ours and self.pid is not None and self.state not in ("stopped", "died"),
            stays=settings.on_exit == "leave",
            milestones=self.milestones,
            log_tail=tuple(shown.log.lines[-_LOG_LINES:]) if shown is not None else (),
            log_total=shown.log.total if shown is not None else 0,
            expected_s=self.last_start.total_s if self.last_start is not None else None,
            diagnosis=self.diagnosis,
            instances=self._instances(engines, silent),
        )

    def _instances(self, engines: list[EngineView | None], silent: Collection[int]) -> tuple[InstanceView, ...]:
        if self.count < 2:
            return ()
        views = [
            InstanceView(url=masked_text(url), state="unreachable" if number in silent else "ready")
            for number, url in enumerate(self.settings.urls)
        ]
        views = views or [InstanceView(server.base_url, server.state, server.pid) for server in self.managed]
        gauges = [engine or EngineView() for engine in (*engines, *[None] * self.count)]
        return tuple(
            msgspec.structs.replace(view, running=now.running, waiting=now.waiting, kv_usage=now.kv_usage)
            for view, now in zip(views, gauges, strict=False)
        )


async def _mask_log(path: Path, event: ReportEvent) -> None:
    try:
        await asyncio.to_thread(mask_file, path)
    except FileNotFoundError:
        pass  # it was never started, for example because its port is in use
    except OSError as error:
        why = f"may hold secrets, which could not be masked: {error.strerror}"
        event("error", f"{path}: {why}; look through it before you share it")
