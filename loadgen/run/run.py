"""One run: start the server, learn what it serves, send the plan's load, stop everything, leave a result.

`async for snapshot in run.snapshots()` is all there is to running one; `apply` does what an operator asks for, at any
time. Invariants: the folder is claimed before anything is started; every line of the journal goes through `_log` and
into the record, so screen and result cannot differ; however the run ends, the load is ended first, then the workers,
then the server, and then the result is written.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

from loadgen.errors import LoadError, ProfileError, ServerError, VrampError
from loadgen.fleet.fleet import Fleet, FleetTick
from loadgen.metrics.baseline import Baseline, BaselineWatch
from loadgen.metrics.journal import Checked, RunState
from loadgen.metrics.result import Result
from loadgen.metrics.snapshot import BEAT_S, Phase, Snapshot
from loadgen.plan import Measured, Stage, next_stages, plan_of
from loadgen.profile.schema import Profile
from loadgen.run.controller import LoadController
from loadgen.run.guard_rail import FailureBreaker
from loadgen.run.hardware import HardwareWatch
from loadgen.run.lines import run_started
from loadgen.run.live import Parts, now_of
from loadgen.run.measuring import measured_of
from loadgen.run.operations import (
    Abort,
    Extend,
    FollowPlan,
    Hold,
    NextStage,
    Note,
    Operation,
    Pause,
    Redo,
    Restart,
    Resume,
    SetConcurrency,
    SetRate,
    SetShape,
    StartAnyway,
    Stop,
)
from loadgen.run.remote import SnapshotServer, points_of
from loadgen.run.servers import Servers
from loadgen.run.session import Session
from loadgen.run.shutdown import end_servers, first_line, until
from loadgen.run.stage_views import StageViews
from loadgen.run.view import snapshot_of
from loadgen.run.writer import RunWriter
from loadgen.server.preflight.check import blocked_words, check_profile
from loadgen.store.files import RowsFormat
from loadgen.telemetry.options import BackendOption
from loadgen.vendors import VendorName


class Run:
    """One execution of a profile."""

    def __init__(
        self,
        profile: Profile,
        *,
        where: str,
        json_path: Path | None = None,
        hold_open: bool = False,
        force: bool = False,
        replay: dict[VendorName, list[BackendOption]] | None = None,
        records: RowsFormat | None = None,
        baseline: Baseline | None = None,
        variant: str | None = None,
        variants: Mapping[str, Profile] = MappingProxyType({}),
    ) -> None:
        """`where` names the profile in messages; with `hold_open` the server stays up after the plan, for an operator.

        With `force` it starts whatever the preflight says; `replay` takes the place of the profile's telemetry;
        `records` is the format of a row for each stream, if they are kept; `baseline` is what the stages are shown
        beside; `variants` are those as which the server can be started anew, of which `profile` may be one, `variant`.

        Raises `ResultError` when the results could not be written, `ProfileError` for servers that cannot all be had.
        """
        self.profile = profile
        self.plan: list[Stage] = plan_of(profile)
        # Before the folder is claimed: nothing is left of what cannot be.
        Servers(profile)
        self._writer = RunWriter(profile.name, json_path=json_path, records=records, baseline=baseline)
        self._record, self._log, self._event = self._writer.record, self._writer.log, self._writer.event
        self._where = where
        self._hold_open = hold_open
        self._views = StageViews()
        self._beside = BaselineWatch(baseline) if baseline is not None else None
        self._session = Session(profile, variant, self.plan, self._writer)
        self._seed = profile.load.seed if profile.load.seed is not None else secrets.randbelow(2**31)
        self._phase: Phase = "checking"
        self._force = force
        self._cleared = asyncio.Event()
        if force:
            self._cleared.set()
        self._variants = variants
        self._error: VrampError | None = None
        self._failure: VrampError | None = None
        """Why there is nothing to load, while the operator may still change that."""
        self._next: Session | None = None  # what the operator wants in place of the present one
        self._again = asyncio.Event()
        self._hardware = HardwareWatch(
            profile,
            folder=self.folder,
            log=self._log,
            clock_s=self._writer.clock_s,
            server_pids=lambda: self._session.servers.pids,
            worker_pids=lambda: self._session.worker_pids,
            replay=replay,
        )
        self._controller = LoadController(
            next_stages(profile), self.plan, self._measured, self._log, self._writer.clock_s
        )
        self._controller.variant = variant
        self._rail = FailureBreaker()
        self._aborted = False
        self._ending: RunState | None = None
        self._reason = ""
        self._working: asyncio.Task[None] | None = None
        self._beat = asyncio.Event()
        self._ended = asyncio.Event()
        self._offer = SnapshotServer(self.folder, apply=self.apply, past=lambda: points_of(self._record.series))

    # What comes of it.

    @property
    def folder(self) -> Path:
        return self._writer.folder

    @property
    def result(self) -> Result | None:
        return self._writer.result

    @property
    def result_paths(self) -> list[Path]:
        return self._writer.result_paths

    @property
    def error(self) -> VrampError | None:
        """What went wrong, for the exit code; the result holds its words too."""
        return self._error or self._writer.error

    def apply(self, operation: Operation) -> None:
        """Do what the operator asks for, at once; what cannot be done is refused in words, as an event."""
        load = self._controller
        match operation:
            case StartAnyway():
                self._cleared.set()
            case SetConcurrency(concurrency):
                load.set_concurrency(concurrency)
            case SetRate(requests_per_s):
                load.set_rate(requests_per_s)
            case SetShape(isl, osl):
                served = self._session.served
                load.set_shape(isl, osl, longest=served.max_model_len if served is not None else None)
            case FollowPlan(plan):
                load.follow(plan, self._session.profile)
            case Hold():
                load.hold()
            case Pause():
                load.pause()
            case Resume():
                load.resume()
            case NextStage():
                load.next_stage()
            case Extend():
                current = self._record.current
                load.extend(current.e2e_needs_s if current is not None else None)
            case Redo():
                load.redo()
            case Note(text):
                self._event("note", text)
            case Restart(variant):
                self._restart(variant)
            case Stop() if self._phase == "holding":
                self._end("complete", "the plan is done")
            case Stop():
                self._end("stopped", "stopped by the operator")
            case Abort():
                self._abort()

    def _restart(self, variant: str | None) -> None:
        try:
            if self._ending is not None:
                raise ProfileError("the run is ending")
            self._next = self._session.another(variant, self._variants)
        except ProfileError as error:
            self._event("error", f"restart refused: {error}")
            return
        self._event("server", f"restart by the operator{f', variant {variant}' if variant is not None else ''}")
        self._again.set()

    def _abort(self) -> None:
        self._aborted = True
        self._session.servers.hurry()
        self._end("stopped", "aborted by the operator")

    def _end(self, state: RunState, reason: str) -> None:
        if self._ending is None and self._failure is not None:
            # Why it failed counts, and not that the operator left it at that.
            self._error = self._failure
            state, reason = "server_died" if self._session.servers.died else "failed", str(self._failure)
        if self._ending is None:
            self._ending, self._reason = state, reason
        self._ended.set()

    # The run.

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Run it, and tell its state about four times a second; the last snapshot has phase `done`."""
        work = self._working = asyncio.create_task(self._work())
        try:
            # The first at once: a screen has something to draw before anything has happened.
            yield self._offer.publish(self._snapshot())
            while not work.done():
                self._beat.clear()
                beat = asyncio.create_task(self._beat.wait())
                await asyncio.wait({work, beat}, timeout=BEAT_S * 1.5, return_when=asyncio.FIRST_COMPLETED)
                beat.cancel()
                if not work.done():
                    yield self._offer.publish(self._snapshot())
        finally:
            if not work.done():
                self._abort()
            try:
                # Being cancelled must not leave a server behind.
                await asyncio.shield(work)
            finally:
                last = self._offer.publish(self._snapshot())
                await self._offer.close()
        yield last

    async def close(self) -> None:
        """End the run if nothing else has, and wait until everything is stopped and written."""
        if self._working is not None:
            if self._ending is None:
                self._abort()
            await asyncio.shield(self._working)

    async def _work(self) -> None:
        self._log(
            run_started(
                self.profile,
                self.folder.name,
                self._seed,
                self._session.workers,
                len(self.plan),
                monotonic_s=self._writer.began_s,
            )
        )
        unwatchable = await self._offer.open()
        if unwatchable is not None:
            self._event("note", unwatchable)
        self._hardware.start()
        try:
            await until(self._ended, self._lead())
        except VrampError as error:
            self._failure = error
            self._end("failed", str(error))
        finally:
            await self._close()

    async def _lead(self) -> None:
        """Go through the plan; on one server after another, if the operator wants that."""
        while True:
            try:
                await until(self._again, self._go(self._session))
            except VrampError as error:
                await self._leave_to_the_operator(error)
            if self._next is None:
                return
            await self._change_servers()

    async def _go(self, session: Session) -> None:
        await self._preflight(session.profile)
        self._enter("starting")
        await session.start()
        self._enter("probing")
        self._hardware.start_simulated(session.servers.base_urls[0])
        await session.learn(where=self._where)
        fleet = await session.drive(self._seed, rows=self._writer.keeps_rows)
        await session.tick(fleet)
        self._controller.attach(fleet, session.templates, session.boundary)
        self._enter("running")
        await self._load(session, fleet)

    async def _leave_to_the_operator(self, error: VrampError) -> None:
        """Return once he wants another start; raises the error where nobody is there to be asked."""
        if not self._hold_open or self._session.servers.settings.engine == "attach":
            raise error
        self._failure = error
        self._event("error", str(error))
        if self._session.servers.died:
            self._session.tell("died")
        await self._let_go(first_line(error))
        self._enter("failed")
        self._writer.write()
        await self._again.wait()
        self._failure = None

    async def _change_servers(self) -> None:
        self._enter("restarting")
        await self._let_go("the operator restarted the server")
        await self._stop_servers(leave=False)
        await self._hardware.end_simulated()
        # Meanwhile he may have thought of another.
        assert self._next is not None
        self._session, self._next = self._next, None
        self._again.clear()
        self._rail = FailureBreaker()
        self._controller.variant = self._session.variant
        if not self._force:
            self._cleared.clear()

    def _enter(self, phase: Phase) -> None:
        """A new phase is shown at once."""
        self._phase = phase
        self._beat.set()

    async def _preflight(self, profile: Profile) -> None:
        self._enter("checking")
        findings = await check_profile(profile, self.plan)
        self._log(Checked(t_s=self._writer.clock_s(), findings=tuple(findings)))
        blocking = [finding for finding in findings if finding.severity == "blocks"]
        if not blocking or self._cleared.is_set():
            return
        if not self._hold_open:
            raise ServerError(blocked_words(blocking))
        self._enter("blocked")
        await self._cleared.wait()
        self._event("server", f"started against the preflight: {', '.join(finding.id for finding in blocking)}")

    # The load.

    async def _load(self, session: Session, fleet: Fleet) -> None:
        while not self._controller.over or self._hold_open or self._record.open_streams:
            tick = await session.tick(fleet)
            session.check(fleet, tick)
            if self._is_answered(tick):
                await session.read_engines()
            self._react(tick)
            self._enter(self._load_phase())
            if self._phase == "holding" and self._writer.written is None:
                await session.settle()
                self._writer.write()
        await session.settle()
        await self._hardware.settle()
        self._end("complete", "the plan is done")

    def _load_phase(self) -> Phase:
        if self._controller.paused:
            return "paused"
        if not self._controller.over:
            return "running"
        return "holding" if self._hold_open and not self._record.open_streams else "draining"

    def _is_answered(self, tick: FleetTick) -> bool:
        """All requests of the running stage were answered."""
        return tick.finished is not None and tick.finished == self._controller.index

    def _react(self, tick: FleetTick) -> None:
        if self._is_answered(tick):
            self._controller.advance(tick.finished_why)
        self._controller.observe(tick, self._record.current)
        broken = self._rail.check(self._record, self._writer.clock_s())
        if broken is not None:
            raise LoadError(broken)

    def _measured(self, index: int, stage: Stage, *, saturated: bool, abandoned: bool) -> Measured:
        numbers = measured_of(stage, self._record.stages[index], self._record.limits)
        return numbers.after(saturated=saturated, abandoned=abandoned)

    # The end.

    async def _close(self) -> None:
        self._enter("stopping")
        self._controller.finish(self._reason or "the run ended", abort=True)
        await self._session.close()
        # Only an orderly end leaves a server running.
        await self._stop_servers(leave=self._session.profile.server.on_exit == "leave" and not self._aborted)
        await self._hardware.close()
        self._writer.finish(self._ending or "failed", self._reason)
        self._phase = "done"

    async def _let_go(self, reason: str) -> None:
        """End the load on this server; what ran begins again on the next."""
        self._controller.detach(reason)
        await self._session.close()

    async def _stop_servers(self, *, leave: bool) -> None:
        state = await end_servers(self._session.servers, leave=leave, tell=self._event, beat=self._beat.set)
        if state is not None:
            self._session.tell(state)

    # What the screen draws.

    def _snapshot(self) -> Snapshot:
        parts = Parts(
            t_s=self._writer.clock_s(),
            phase=self._phase,
            record=self._record,
            session=self._session,
            steering=self._controller,
            hardware=self._hardware,
            variants=tuple(self._variants),
            ending=self._ending,
            reason=self._reason or str(self._failure or ""),
            result_path=self._writer.written,
            beside=self._beside,
        )
        return snapshot_of(self._record, now_of(parts), self._views)
