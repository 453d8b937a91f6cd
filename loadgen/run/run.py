"""One run: start the server, learn what it serves, send the plan's load, stop everything, leave a result.

`async for snapshot in run.snapshots()` runs it; `apply` takes the operator's requests at any time. Invariants: the
folder is claimed before anything is started; every line of the journal goes through the writer and into the record, so
screen and result cannot differ; however the run ends, first the load is ended, then the workers, then the server, and
then the result is written.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import ProfileError, ServerError, VrampError
from loadgen.masking import masked_text
from loadgen.plan.from_profile import next_stages, stages_of
from loadgen.plan.stage import Stage
from loadgen.run import operations
from loadgen.run.alerts import Alerts
from loadgen.run.controller import LoadController
from loadgen.run.evidence import EvidenceWatch, Scene, gpu_table
from loadgen.run.hardware import HardwareWatch
from loadgen.run.load_hosts import LoadHosts
from loadgen.run.remote import SnapshotServer, points_of
from loadgen.run.servers import Servers
from loadgen.run.session import Session
from loadgen.run.settings import RunSettings
from loadgen.run.view import BaselineWatch, ShownStages, load_view, snapshot_of
from loadgen.run.writer import RunWriter
from loadgen.schema.journal import encode_line
from loadgen.schema.result import Result
from loadgen.schema.shared import RunState
from loadgen.schema.snapshot import SNAPSHOT_S, Phase, Snapshot
from loadgen.server.preflight.check import blocked_words
from loadgen.until import until

if TYPE_CHECKING:
    from loadgen.run.metrics_port import MetricsPort

MAX_RESTARTS = 3  # by server.on_stall
RESTARTS_WITHIN_S = 3600.0


class Run:
    """One execution of a profile."""

    def __init__(self, settings: RunSettings) -> None:
        """Raises `ResultError` when the results could not be written, `ProfileError` for servers that cannot all be had
        and for a port that cannot be listened on.
        """
        self.settings = settings
        profile = settings.profile
        self.plan: list[Stage] = stages_of(profile)
        # Before the folder is claimed: an impossible profile leaves nothing behind.
        Servers(profile)
        self.metrics_port = _listening(settings.metrics_address)
        try:
            self._writer = RunWriter(settings)
        except VrampError:
            self._close_port()
            raise
        self._controller = LoadController(next_stages(profile), self.plan, self._writer, settings.variant)
        seed = profile.load.seed if profile.load.seed is not None else secrets.randbelow(2**31)
        self._session = Session(
            settings, self.plan, self._writer, self._controller, LoadHosts(profile.cluster, self._writer), seed
        )
        self._hardware = HardwareWatch(
            settings,
            self._writer,
            servers=lambda: self._session.servers,
            worker_pids=lambda: self._session.fleet.pids,
        )

        self._evidence = EvidenceWatch(self.folder, self._scene, self._writer.event)

        # What the operator has requested.
        self._start_allowed = asyncio.Event()
        if settings.force:
            self._start_allowed.set()
        self._next: Session | None = None  # in place of the present one
        self._restart_requested = asyncio.Event()
        self._restart_words = ""

        # How far it is, and how it ends.
        self._phase: Phase = "checking"
        self._running: asyncio.Task[None] | None = None
        self._error: VrampError | None = None
        self._failure: VrampError | None = None
        """Why there is no server to send load to, while the operator may still restart it."""
        self._aborted = False
        self._stall_restarts_s: list[float] = []  # when server.on_stall restarted it
        self._is_given_up = False  # it stalled too often
        self._ending: tuple[RunState, str] | None = None  # the state in which it ends, and why
        self._ended = asyncio.Event()

        # What is shown on the screen, to watchers and to scrapers.
        self._shown = ShownStages()
        self._baseline = BaselineWatch(settings.baseline) if settings.baseline is not None else None
        self._due = asyncio.Event()
        self._alerts = Alerts(settings.alert, partial(self._writer.event, "error")) if settings.alert else None
        self._snapshot_server = SnapshotServer(
            self.folder, apply=self.apply, past=lambda: points_of(self._writer.record.timeline.series)
        )

    # Its outcome.

    @property
    def folder(self) -> Path:
        return self._writer.folder

    @property
    def telemetry_settled(self) -> bool:
        """Whether all that can measure GPUs does, or has been given up."""
        return self._hardware.settled

    @property
    def result_paths(self) -> list[Path]:
        return self._writer.result_paths

    @property
    def result(self) -> Result | None:
        return self._writer.result

    @property
    def error(self) -> VrampError | None:
        """What went wrong, for the exit code; the result has its message, too."""
        return self._error or self._writer.error

    async def write(self) -> None:
        """Write the result so far; nothing while there is none."""
        if self._ending is None:
            await self._writer.write()

    async def ask(self, prompt: str, *, max_tokens: int, timeout_s: float) -> str:
        """A server's answer to a prompt, in no figure of the load; raises `ServerError` if there is none."""
        return await self._session.ask(prompt, max_tokens=max_tokens, timeout_s=timeout_s)

    def apply(self, operation: operations.Operation) -> None:
        """Do what the operator requests, at once; a refusal is an event with its reason."""
        load = self._controller
        match operation:
            case operations.StartAnyway():
                self._start_allowed.set()
            case operations.SetConcurrency(concurrency):
                load.change(concurrency=concurrency, rate=None)
            case operations.SetRate(requests_per_s):
                load.change(concurrency=None, rate=requests_per_s)
            case operations.SetShape(isl, osl):
                served = self._session.served
                load.set_shape(isl, osl, longest=served.max_model_len if served is not None else None)
            case operations.FollowPlan(plan):
                load.follow(plan, self._session.settings.profile)
            case operations.Hold():
                load.hold()
            case operations.Pause():
                load.pause()
            case operations.Resume():
                load.resume()
            case operations.NextStage():
                load.next_stage()
            case operations.Extend():
                load.extend()
            case operations.Redo():
                load.redo()
            case operations.Note(text):
                self._writer.event("note", text)
                load.mark(text)
            case operations.TakeEvidence():
                self._evidence.take("taken by the operator")
            case operations.ShowProcesses():
                self._hardware.show_processes()
            case operations.Restart(variant):
                self._restart(variant)
            case operations.Stop() if self._phase == "holding":
                self._end("complete", "the plan is done")
            case operations.Stop():
                self._end("stopped", "stopped by the operator")
            case operations.Abort():
                self._break_off("stopped", "aborted by the operator")

    def fail(self, reason: str) -> None:
        """End it at once: what it was watched and controlled with is broken."""
        self._break_off("failed", reason)

    def _break_off(self, state: RunState, reason: str) -> None:
        self._aborted = True
        self._session.servers.end_soon()
        self._end(state, reason)

    def _restart(self, variant: str | None, why: str = "by the operator") -> None:
        try:
            if self._ending is not None:
                raise ProfileError("the run is ending")
            self._next = self._session.another(variant)
        except ProfileError as error:
            self._writer.event("error", f"restart refused: {error}")
            return
        self._writer.event("server", f"restart {why}{f', variant {variant}' if variant is not None else ''}")
        self._restart_words = f"the server was restarted {why}"
        self._restart_requested.set()

    def _end(self, state: RunState, reason: str) -> None:
        if self._ending is None and self._failure is not None:
            # The failure is the reason, and not that the operator ended the run after it.
            self._error = self._failure
            died = self._session.servers.died or self._is_given_up
            state, reason = "server_died" if died else "failed", str(self._failure)
        if self._ending is None:
            self._ending = state, masked_text(reason)
        self._ended.set()

    # The run.

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Run it, yielding its state about four times a second; the last snapshot has phase `done`."""
        work = self._running = asyncio.create_task(self._run_to_end())
        try:
            # The first at once, so that a screen has something to draw before anything has happened.
            yield self._publish()
            while not work.done():
                self._due.clear()
                due = asyncio.create_task(self._due.wait())
                await asyncio.wait({work, due}, timeout=SNAPSHOT_S * 1.5, return_when=asyncio.FIRST_COMPLETED)
                due.cancel()
                if not work.done():
                    yield self._publish()
        finally:
            if not work.done():
                self.apply(operations.Abort())
            try:
                # Being cancelled must not leave a server behind.
                await asyncio.shield(work)
            finally:
                last = self._publish()
                await self._snapshot_server.close()
                self._close_port()
                if self._alerts is not None:
                    await self._alerts.close()
        yield last

    async def close(self) -> None:
        """End the run unless it has ended, and wait until everything is stopped and written."""
        if self._running is not None:
            if self._ending is None:
                self.apply(operations.Abort())
            await asyncio.shield(self._running)

    async def _run_to_end(self) -> None:
        self._writer.begin(
            seed=self._session.seed,
            workers=self._session.workers,
            stages_planned=len(self.plan),
            data=next((stage.work.source for stage in self.plan), None),
        )
        unwatchable = await self._snapshot_server.open()
        if unwatchable is not None:
            self._writer.event("note", unwatchable)
        self._hardware.start()
        try:
            await until(self._ended, self._run_sessions())
        except VrampError as error:
            self._failure = error
            self._end("failed", str(error))
        finally:
            await self._close()

    async def _run_sessions(self) -> None:
        """Work through the plan, on one server after another if the operator restarts it."""
        while True:
            try:
                await until(self._restart_requested, self._run_session(self._session))
            except VrampError as error:
                await self._wait_for_restart(error)
            if self._next is None:
                return
            await self._change_servers()

    async def _run_session(self, session: Session) -> None:
        await self._preflight(session)
        self._enter("starting")
        await session.start()
        self._enter("probing")
        for url in session.servers.base_urls[:1]:
            self._hardware.start_simulated(url)
        await session.begin_load()
        self._enter("running")
        while not self._controller.over or self.settings.hold_open or session.load_lasts:
            await session.turn()
            self._react_to_stall(session)
            self._enter(self._load_phase())
            if self._phase == "holding" and self._writer.written is None:
                await session.load_is_over()
                await self._writer.write()
        await session.load_is_over()
        await self._hardware.settle()
        self._end("complete", "the plan is done")

    def _react_to_stall(self, session: Session) -> None:
        """Take the evidence of a stall, then restart the server if the profile wants that.

        Raises `ServerError` if restarts have not helped.
        """
        stall, now_s = self._writer.record.stall, self._writer.clock_s()
        self._evidence.see(stall, now_s)
        wanted = session.servers.ours and session.settings.profile.server.on_stall == "restart"
        if stall is None or not stall.is_certain or not wanted or self._evidence.is_taking:
            return
        recent = [at_s for at_s in self._stall_restarts_s if now_s - at_s < RESTARTS_WITHIN_S]
        if len(recent) == MAX_RESTARTS:
            self._is_given_up = True
            raise ServerError(
                f"{stall.words(now_s)}; server.on_stall has restarted it {MAX_RESTARTS} times within "
                f"{RESTARTS_WITHIN_S / 60:g} minutes: look at the evidence of each stall"
            )
        self._stall_restarts_s = [*recent, now_s]
        self._restart(None, 'by server.on_stall = "restart"')

    async def _witness(self) -> None:
        """Before load and servers are ended: complete the evidence, and have a stalled server print its stacks."""
        if self._writer.record.stall is not None:
            self._session.servers.print_stacks()
        await self._evidence.close(at_once=self._aborted)

    def _scene(self, reason: str) -> Scene:
        async def gpus() -> str:
            return gpu_table(await self._hardware.with_processes())

        managed = self._session.servers.managed
        return Scene(
            reason,
            lines=[encode_line(line) for line in self._writer.recent],
            metrics=self._session.pages,
            pids=[server.pid for server in managed if server.pid is not None and server.container is None],
            logs=[server.log.path for server in managed],
            gpus=gpus,
            containers=[server.container.top_command for server in managed if server.container is not None],
        )

    def _load_phase(self) -> Phase:
        if self._controller.paused:
            return "paused"
        if not self._controller.over:
            return "running"
        if self._session.load_lasts:
            return "draining"
        return "holding" if self.settings.hold_open else self._phase

    async def _wait_for_restart(self, error: VrampError) -> None:
        """Return once the operator requests another start; raises the error if there is no operator."""
        server = self._writer.record.server
        if self._session.servers.died and server is not None and server.state == "ready":
            await self._evidence.take_now(str(error).partition("\n")[0])
        if not self.settings.hold_open or not self._session.servers.ours:
            raise error
        self._failure = error
        self._writer.event("error", str(error))
        if self._session.servers.died:
            self._session.log_state("died")
        await self._session.close(str(error).partition("\n")[0])
        self._enter("failed")
        await self._writer.write()
        if self._ending is not None:  # the operator did not wait for it
            raise error
        await self._restart_requested.wait()
        self._failure, self._is_given_up = None, False

    async def _change_servers(self) -> None:
        self._enter("restarting")
        await self._witness()
        await self._session.close(self._restart_words)
        await self._session.stop_servers(leave=False, show=self._due.set)
        await self._hardware.end_simulated()
        # Meanwhile the operator may have chosen another one.
        assert self._next is not None
        self._session, self._next = self._next, None
        self._restart_requested.clear()
        self._controller.variant = self._session.settings.variant
        if not self.settings.force:
            self._start_allowed.clear()

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._due.set()

    async def _preflight(self, session: Session) -> None:
        self._enter("checking")
        blocking = await session.preflight()
        if not blocking or self._start_allowed.is_set():
            return
        if not self.settings.hold_open:
            raise ServerError(blocked_words(blocking))
        self._enter("blocked")
        await self._start_allowed.wait()
        findings = ", ".join(finding.id for finding in blocking)
        self._writer.event("server", f"started against the preflight: {findings}")

    async def _close(self) -> None:
        self._enter("stopping")
        state, reason = self._ending or ("failed", "")
        await self._witness()
        self._controller.finish(reason or "the run ended")
        await self._session.close()
        await self._session.hosts.close()
        # Only an orderly end leaves a server running.
        leave = self._session.settings.profile.server.on_exit == "leave" and not self._aborted
        await self._session.stop_servers(leave=leave, show=self._due.set)
        await self._hardware.close()
        await self._writer.finish(state, reason)
        self._phase = "done"

    def _close_port(self) -> None:
        if self.metrics_port is not None:
            self.metrics_port.close()

    # Snapshots for the screen, watchers and scrapers.

    def _publish(self) -> Snapshot:
        snapshot = self._snapshot()
        if self.metrics_port is not None:
            self.metrics_port.publish(snapshot, self._writer.record)
        if self._alerts is not None:
            self._alerts.update(snapshot.verdicts, snapshot.t_s)
        return self._snapshot_server.publish(snapshot)

    def _snapshot(self) -> Snapshot:
        record, session, load, t_s = self._writer.record, self._session, self._controller, self._writer.clock_s()
        state, reason = self._ending or (None, masked_text(str(self._failure or "")))
        return snapshot_of(
            record,
            self._shown,
            t_s=t_s,
            unix_s=time.time(),
            phase=self._phase,
            profile=session.settings.profile.name,
            server=session.view(starting=self._phase == "starting"),
            load=load_view(
                load.requested,
                record,
                t_s,
                stage=load.index + 1,
                stages_planned=load.stages_planned,
                paused=load.paused,
                manual=load.manual,
                held_open=load.held_open,
            ),
            workers=session.workers,
            telemetry=self._hardware.words,
            ending=state,
            reason=reason,
            waiting_for=[str(process) for process in session.servers.waiting_for],
            gpus_stale=self._hardware.stale,
            variants=tuple(self.settings.variants),
            result_path=str(self._writer.written) if self._writer.written is not None else None,
            baseline=self._baseline,
        )


def _listening(address: tuple[str, int] | None) -> MetricsPort | None:
    if address is None:
        return None
    from loadgen.run.metrics_port import MetricsPort  # needs prometheus_client

    return MetricsPort(*address)
