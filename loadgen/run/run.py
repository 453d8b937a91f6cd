"""One run: start the server, learn what it serves, send the plan's load, stop everything, leave a result.

`async for snapshot in run.snapshots()` is all there is to running one; the methods beside it are the operator's hand
and may be called at any time. Invariants: the folder is claimed before anything is started; every line of the journal
goes through `_log` and into the record, so screen and result cannot differ; however the run ends, the load is ended
first, then the workers, then the server, and then the result is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.errors import LoadError, ServerError, VrampError, WorkerError
from loadgen.metrics.journal import Checked, Happened, Line, RunFinished, RunState
from loadgen.metrics.record import Record
from loadgen.metrics.result import Result, write_result
from loadgen.metrics.snapshot import Phase, Snapshot
from loadgen.plan import Measured, Stage, next_stages, plan_of
from loadgen.profile import Profile
from loadgen.run.ending import end_servers
from loadgen.run.engine_watch import EngineWatch
from loadgen.run.folder import SafeJournal, claim_folder, require_writable
from loadgen.run.guard_rail import FailureRail
from loadgen.run.hardware import HardwareWatch
from loadgen.run.lines import run_started, server_changed, ticked
from loadgen.run.measuring import measured_of
from loadgen.run.probe import Served, probe, probe_twin
from loadgen.run.requests import fleet_settings, templates_of
from loadgen.run.servers import Servers
from loadgen.run.steering import Steering
from loadgen.run.view import Parts, StageViews, snapshot_of
from loadgen.server.client import ServerClient, api_key
from loadgen.server.preflight.check import blocked_words, check_profile
from loadgen.server.supervisor import ServerState
from loadgen.stream.transport import Target
from loadgen.telemetry.candidates import Attempt, Vendor
from loadgen.worker.fleet import Fleet, FleetTick, workers_for

BEAT_S = 0.25
_LAST_TICKS = 4


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
        replay: dict[Vendor, list[Attempt]] | None = None,
    ) -> None:
        """`where` names the profile in messages; with `hold_open` the server stays up after the plan, for an operator.

        With `force` it starts whatever the preflight says; `replay` takes the place of the profile's telemetry.

        Raises `ResultError` when the results could not be written, `ProfileError` for servers that cannot all be had.
        """
        self.profile = profile
        self._servers = Servers(profile)
        self.plan: list[Stage] = plan_of(profile)
        self.result: Result | None = None
        self.error: VrampError | None = None
        """What went wrong, for the exit code; the result holds its words too."""
        if json_path is not None:
            require_writable(json_path)
        self.folder = claim_folder(profile.name, datetime.now(UTC))
        self.result_paths = [self.folder / "result.json", *([json_path] if json_path is not None else [])]
        self._where = where
        self._hold_open = hold_open
        self._journal = SafeJournal(self.folder / "journal.jsonl")
        self._record = Record()
        self._views = StageViews()
        self._began_s = time.monotonic()
        self._seed = profile.load.seed if profile.load.seed is not None else secrets.randbelow(2**31)
        self._phase: Phase = "checking"
        self._cleared = asyncio.Event()
        if force:
            self._cleared.set()
        self._served: Served | None = None
        self._watch: EngineWatch | None = None
        self._fleet: Fleet | None = None
        most_streams = max(stage.concurrency or 0 for stage in self.plan)
        self._workers = workers_for(profile.load.workers, most_streams=most_streams, servers=self._servers.count)
        self._hardware = HardwareWatch(
            profile,
            folder=self.folder,
            log=self._log,
            clock_s=self._clock_s,
            server_pids=lambda: self._servers.pids,
            worker_pids=lambda: self._fleet.pids if self._fleet is not None else (),
            replay=replay,
        )
        self._steering = Steering(next_stages(profile), self.plan[0], self._measured, self._log, self._clock_s)
        self._rail = FailureRail()
        self._aborted = False
        self._ending: RunState | None = None
        self._reason = ""
        self._working: asyncio.Task[None] | None = None
        self._beat = asyncio.Event()
        self._ended = asyncio.Event()
        self._written: Path | None = None

    # The operator's hand.

    def start_anyway(self) -> None:
        """Start although the preflight says that it will not work."""
        self._cleared.set()

    def set_concurrency(self, concurrency: int) -> None:
        """Hold this many streams from now on: the stage ends, another begins."""
        self._steering.set_concurrency(concurrency)

    def set_rate(self, requests_per_s: float) -> None:
        """Send this many requests a second from now on."""
        self._steering.set_rate(requests_per_s)

    def set_shape(self, isl: int, osl: int) -> None:
        """Send requests of this shape from now on."""
        self._steering.set_shape(isl, osl)

    def pause(self) -> None:
        """Send no more; running streams finish."""
        self._steering.pause()

    def resume(self) -> None:
        """Go on sending."""
        self._steering.resume()

    def next_stage(self) -> None:
        """Go on with the plan."""
        self._steering.next_stage()

    def extend(self) -> None:
        """Let the running stage go on for its length once more."""
        self._steering.extend()

    def redo(self) -> None:
        """Measure the running stage of the plan again, or else the last one that is done."""
        self._steering.redo()

    def note(self, text: str) -> None:
        """Put a note on the time axis."""
        self._event("note", text)

    def stop(self) -> None:
        """End the load, stop the server, keep the result."""
        if self._phase == "holding":
            self._end("complete", "the plan is done")
        else:
            self._end("stopped", "stopped by the operator")

    def abort(self) -> None:
        """The same at once: streams are cut off and the server gets no time of its own."""
        self._aborted = True
        self._servers.hurry()
        self._end("stopped", "aborted by the operator")

    def _end(self, state: RunState, reason: str) -> None:
        if self._ending is None:
            self._ending, self._reason = state, reason
        self._ended.set()

    # The run.

    async def snapshots(self) -> AsyncIterator[Snapshot]:
        """Run it, and tell its state about four times a second; the last snapshot has phase `done`."""
        work = self._working = asyncio.create_task(self._work())
        try:
            # The first at once: a screen has something to draw before anything has happened.
            yield self._snapshot()
            while not work.done():
                self._beat.clear()
                beat = asyncio.create_task(self._beat.wait())
                await asyncio.wait({work, beat}, timeout=BEAT_S * 1.5, return_when=asyncio.FIRST_COMPLETED)
                beat.cancel()
                if not work.done():
                    yield self._snapshot()
        finally:
            if not work.done():
                self.abort()
            # Being cancelled must not leave a server behind.
            await asyncio.shield(work)
        yield self._snapshot()

    async def close(self) -> None:
        """End the run if nothing else has, and wait until everything is stopped and written."""
        if self._working is not None:
            if self._ending is None:
                self.abort()
            await asyncio.shield(self._working)

    async def _work(self) -> None:
        self._log(
            run_started(
                self.profile,
                self.folder.name,
                self._seed,
                self._workers,
                len(self.plan),
                monotonic_s=self._began_s,
            )
        )
        self._hardware.start()
        try:
            await self._until_ended(self._go())
        except VrampError as error:
            self.error = error
            self._end("server_died" if self._servers.died else "failed", str(error))
        finally:
            await self._close()

    async def _until_ended(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        """Run to the end, or until `_end` is called from outside."""
        going = asyncio.create_task(work)
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait({going, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not going.done():
            going.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await going

    async def _go(self) -> None:
        await self._preflight()
        await self._start_servers()
        key, key_env = api_key(self.profile.server), self.profile.server.api_key_env
        async with contextlib.AsyncExitStack() as stack:
            clients = [ServerClient(url, key, api_key_env=key_env) for url in self._servers.base_urls]
            for client in clients:
                await stack.enter_async_context(client)
            self._enter("probing")
            self._hardware.start_simulated(self._servers.base_urls[0])
            served, targets = await self._learn(*clients)
            self._watch = EngineWatch(clients, self._log, self._clock_s)
            stack.push_async_callback(self._watch.close)
            await self._watch.start()
            await self._load(served, targets)

    def _enter(self, phase: Phase) -> None:
        """A new phase is shown at once."""
        self._phase = phase
        self._beat.set()

    async def _preflight(self) -> None:
        findings = await check_profile(self.profile, self.plan)
        self._log(Checked(t_s=self._clock_s(), findings=tuple(findings)))
        blocking = [finding for finding in findings if finding.severity == "blocks"]
        if not blocking or self._cleared.is_set():
            return
        if not self._hold_open:
            raise ServerError(blocked_words(blocking))
        self._enter("blocked")
        await self._cleared.wait()
        self._event("server", f"started against the preflight: {', '.join(finding.id for finding in blocking)}")

    async def _start_servers(self) -> None:
        self._enter("starting")
        await self._servers.start(self.folder)
        self._server_is("starting")
        await self._servers.wait_ready()
        problem = self._servers.remember_start()
        if problem is not None:
            self._event("server", problem)

    async def _learn(self, client: ServerClient, *twins: ServerClient) -> tuple[Served, list[Target]]:
        """What the servers serve, and where each of them is."""
        server, load = self.profile.server, self.profile.load
        wanted = server.served_model_name or (None if server.engine == "vllm" else server.model)
        served = self._served = await probe(client, wanted, load, self.plan, where=self._where)
        targets = [served.target, *[await probe_twin(twin, served, load) for twin in twins]]
        self._server_is("ready")
        for note in served.notes:
            self._event("server", note)
        return served, targets

    # The load.

    async def _load(self, served: Served, targets: list[Target]) -> None:
        assert self._watch is not None
        fleet = self._fleet = Fleet(fleet_settings(self.profile, served, targets, self._seed), self._workers)
        await fleet.start()
        await fleet.wait_ready()
        await self._tick(fleet)
        templates = partial(templates_of, self.profile, served, self._servers.base_urls)
        self._steering.take_the_wheel(fleet, templates, self._watch.boundary)
        self._enter("running")
        while not self._steering.over or self._hold_open or self._open_streams:
            self._react(fleet, await self._tick(fleet))
            self._servers.check()
            self._phase = self._load_phase()
            if self._phase == "holding" and self._written is None:
                await self._settle_and_write()
        await self._watch.settle()
        self._end("complete", "the plan is done")

    @property
    def _open_streams(self) -> int:
        tick = self._record.last_tick
        return tick.held if tick is not None else 0

    def _load_phase(self) -> Phase:
        if self._steering.paused:
            return "paused"
        if not self._steering.over:
            return "running"
        return "holding" if self._hold_open and not self._open_streams else "draining"

    async def _tick(self, fleet: Fleet) -> FleetTick:
        merged = await fleet.tick()
        engine = self._watch.view if self._watch is not None else None
        self._log(ticked(merged, engine, workers=fleet.alive, t_s=self._clock_s()))
        for death in merged.deaths:
            self._event("error", death)
        self._beat.set()
        return merged

    def _react(self, fleet: Fleet, tick: FleetTick) -> None:
        if not fleet.complete:
            whose = "" if self._servers.count == 1 else " of an instance"
            raise WorkerError(f"all workers{whose} are gone: " + "; ".join(tick.deaths or ("nobody is left",)))
        if tick.finished is not None and tick.finished == self._steering.index:
            self._steering.advance("all requests were answered")
        if self._record.current is not None:
            self._steering.observe(tick, self._record.current)
        broken = self._rail.check(self._record, self._clock_s())
        if broken is not None:
            self._steering.finish(broken, abort=False)
            raise LoadError(broken)

    def _measured(self, index: int, stage: Stage, *, saturated: bool, abandoned: bool) -> Measured:
        profile, record = self.profile, self._record.stages[index]
        numbers = measured_of(stage, record, profile.slo, goodput=profile.plan.goodput)
        return numbers.after(saturated=saturated, abandoned=abandoned)

    # The end.

    async def _close(self) -> None:
        self._enter("stopping")
        if self._fleet is not None:
            await self._end_load(self._fleet)
        await self._stop_servers()
        await self._hardware.close()
        state, reason = self._ending or "failed", self._reason
        self._log(RunFinished(t_s=self._clock_s(), unix_s=time.time(), state=state, reason=reason))
        self._write()
        self._journal.close()
        self._phase = "done"

    async def _end_load(self, fleet: Fleet) -> None:
        self._steering.finish(self._reason or "the run ended", abort=True)
        # What was cut off comes with the next ticks.
        for _ in range(_LAST_TICKS):
            if not fleet.alive or not self._open_streams:
                break
            await self._tick(fleet)
        await fleet.close()

    async def _stop_servers(self) -> None:
        # Only an orderly end leaves a server running.
        leave = self.profile.server.on_exit == "leave" and not self._aborted
        state = await end_servers(self._servers, leave=leave, tell=self._event, beat=self._beat.set)
        if state is not None:
            self._server_is(state)

    async def _settle_and_write(self) -> None:
        """The plan is done but the operator may go on: what there is goes to disk now."""
        assert self._watch is not None
        await self._watch.settle()
        self._write()

    def _write(self) -> None:
        self.result = self._record.result()
        for path in self.result_paths:
            try:
                write_result(self.result, path)
                self._written = self.result_paths[-1]
            except VrampError as error:
                self.error = self.error or error
                self._event("error", str(error))

    # Lines.

    def _clock_s(self) -> float:
        return time.monotonic() - self._began_s

    def _log(self, line: Line) -> None:
        self._record.apply(line)
        problem = self._journal.write(line)
        if problem is not None:
            self._event("error", problem)

    def _event(self, kind: str, text: str) -> None:
        self._log(Happened(t_s=self._clock_s(), kind=kind, text=text))

    def _server_is(self, state: ServerState) -> None:
        self._log(server_changed(self._servers, self._served, state, t_s=self._clock_s()))

    # What the screen draws.

    def _snapshot(self) -> Snapshot:
        parts = Parts(
            t_s=self._clock_s(),
            phase=self._phase,
            profile=self.profile,
            stages_planned=max(len(self.plan), self._steering.index + 1),
            record=self._record,
            steering=self._steering,
            servers=self._servers,
            hardware=self._hardware,
            served=self._served,
            engine=self._watch.view if self._watch is not None else None,
            engines=self._watch.views if self._watch is not None else [],
            workers=self._workers,
            ending=self._ending,
            reason=self._reason,
            result_path=self._written,
        )
        return snapshot_of(parts, self._views)
