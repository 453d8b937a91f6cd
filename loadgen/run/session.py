"""One start of the servers with what drives and reads them: a run has another where the operator starts them anew.

Invariants: the connections of this process and of the workers are closed before the servers are stopped, or vLLM would
wait for them; nothing of a session is used by the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from loadgen.errors import ProfileError, WorkerError
from loadgen.fleet.fleet import Fleet, FleetTick
from loadgen.format import harmless, plain
from loadgen.metrics.hardware import HardwareRecord
from loadgen.metrics.journal import Checked, Finding
from loadgen.metrics.snapshot import Liveness, ServerView
from loadgen.plan.stage import Stage, most_workers, workers_for
from loadgen.profile.schema import Profile
from loadgen.run.controller import Boundary, TemplatesOf
from loadgen.run.engine_watch import EngineWatch
from loadgen.run.probe import Served, probe, probe_twin, templates_of, worker_settings
from loadgen.run.servers import Servers
from loadgen.run.writer import RunWriter
from loadgen.server.preflight.check import check_profile
from loadgen.server.supervisor import ServerState
from loadgen.server.vllm.client import ServerClient, api_key
from loadgen.stream.request import ServerAddress

_LAST_TICKS = 4
_LAST_READING_S = 2.0  # A server that hangs is not waited for


class Session:
    """`preflight`, `start`, `learn` and `drive` in this order; `close` at any time, and then stop the servers."""

    def __init__(
        self,
        profile: Profile,
        variant: str | None,
        plan: Sequence[Stage],
        writer: RunWriter,
    ) -> None:
        """Nothing starts yet; raises `ProfileError` if there are not enough ports or devices for all servers."""
        self.profile = profile
        self.variant = variant
        self.servers = Servers(profile)
        self._workers = workers_for(profile.load.workers, plan, servers=self.servers.count)
        self.began_s = writer.clock_s()
        self.served: Served | None = None
        self.fleet: Fleet | None = None
        self._plan = plan
        self._writer = writer
        self._targets: list[ServerAddress] = []
        self._watch: EngineWatch | None = None
        self._open = contextlib.AsyncExitStack()

    def another(self, variant: str | None, variants: Mapping[str, Profile]) -> Session:
        """One to take its place, as it is or as one of the variants; raises `ProfileError` where that cannot be."""
        if self.servers.settings.engine == "attach":
            raise ProfileError("vramp has only attached to this server; restart it where it was started")
        if variant is not None and variant not in variants:
            raise ProfileError(f"no variant {variant!r}; there are: {', '.join(variants) or 'none'}")
        profile = self.profile if variant is None else variants[variant]
        return Session(profile, variant or self.variant, self._plan, self._writer)

    # Its life.

    async def preflight(self) -> list[Finding]:
        """Look at profile, installation and box; what would make the start fail."""
        findings = await check_profile(self.profile, self._plan)
        self._writer.log(Checked(t_s=self._writer.clock_s(), findings=tuple(findings)))
        return [finding for finding in findings if finding.severity == "blocks"]

    async def start(self) -> None:
        """Start the servers and wait until they answer; raises `ServerError`."""
        await self.servers.start(self._writer.folder)
        self.log_state("starting")
        await self.servers.wait_ready()
        problem = self.servers.remember_start()
        if problem is not None:
            self._writer.event("server", problem)

    async def learn(self, *, where: str) -> None:
        """Ask what is served and begin to read the engines; raises `ServerError` or `ProfileError`."""
        server, load = self.profile.server, self.profile.load
        key = api_key(server)
        clients = [ServerClient(url, key, api_key_env=server.api_key_env) for url in self.servers.base_urls]
        for client in clients:
            await self._open.enter_async_context(client)
        first, *twins = clients
        wanted = server.served_model_name or (None if server.engine == "vllm" else server.model)
        served = self.served = await probe(first, wanted, load, self._plan, where=where)
        self._targets = [served.target, *[await probe_twin(twin, served, load) for twin in twins]]
        self.log_state("ready")
        for note in served.notes:
            self._writer.event("server", note)
        sent = {data.path: data.note for stage in self._plan if (data := stage.work.data) is not None and data.note}
        for path, note in sent.items():
            self._writer.event("note", f"{plain(path)}: {note}")
        self._watch = EngineWatch(clients, self._writer.log, self._writer.clock_s)
        self._open.push_async_callback(self._watch.close)
        await self._watch.start()

    async def drive(self, seed: int) -> Fleet:
        """Start the workers, which send a row for each stream if those are kept; raises `WorkerError`."""
        assert self.served is not None
        load = self.profile.load
        most = most_workers(load.workers, servers=self.servers.count)
        settings = worker_settings(load, self.served, seed, workers=most, rows=self._writer.keeps_rows)
        fleet = self.fleet = Fleet(settings, self._targets, self._workers, most=most)
        await fleet.start()
        await fleet.wait_ready()
        return fleet

    async def tick(self, fleet: Fleet) -> FleetTick:
        """What the workers did in the next quarter of a second, once it is written down."""
        tick = await fleet.tick()
        self._write(tick, fleet.size)
        return tick

    def _write(self, tick: FleetTick, workers: int) -> None:
        assert self._watch is not None and self.served is not None
        self._writer.tick(tick, engine=self._watch.view, workers=workers, model=self.served.model)

    def check(self, fleet: Fleet, tick: FleetTick) -> None:
        """Raise `WorkerError` if a server is left without workers, `LoadError` if one has died."""
        if not fleet.complete:
            whose = "" if self.servers.count == 1 else " of an instance"
            raise WorkerError(f"all workers{whose} are gone: " + "; ".join(tick.deaths or ("nobody is left",)))
        self.servers.check()

    async def close(self) -> None:
        """End the workers and let go of the servers; the load was ended before."""
        # What was cut off comes with the next ticks.
        for _ in range(_LAST_TICKS):
            if self.fleet is None or not self.fleet.size or not self._writer.record.open_streams:
                break
            await self.tick(self.fleet)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.settle(), _LAST_READING_S)
        await self._open.aclose()
        if self.fleet is not None:
            workers = self.fleet.size
            await self.fleet.close()
            rest = self.fleet.rest()
            if rest.stages or rest.deaths:
                self._write(rest, workers)

    async def read_engines(self) -> None:
        """Nothing is open: read the engines before the next stage sends anything."""
        assert self._watch is not None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._watch.read_between(), _LAST_READING_S)

    async def settle(self) -> None:
        """Wait for the engines' numbers on the stages that are over."""
        if self._watch is not None:
            await self._watch.settle()

    # What is known of it.

    @property
    def workers(self) -> int:
        """How many there are, or will be at first."""
        return self.fleet.size if self.fleet is not None else self._workers

    @property
    def templates(self) -> TemplatesOf:
        assert self.served is not None
        return partial(templates_of, self.profile, self.served, self.servers.base_urls)

    @property
    def boundary(self) -> Boundary:
        """Called where stages end and begin."""
        assert self._watch is not None
        return self._watch.boundary

    @property
    def worker_pids(self) -> Sequence[int]:
        return self.fleet.pids if self.fleet is not None else ()

    def view(self, t_s: float, hardware: HardwareRecord, *, starting: bool) -> ServerView:
        """The servers as the screen shows them; while they start, with what their processes and the GPUs do."""
        servers, served, settings = self.servers, self.served, self.profile.server
        return ServerView(
            engine=settings.engine,
            url=servers.url,
            state="ready" if settings.engine == "attach" and served is not None else servers.state,
            model=harmless(served.model) if served is not None else settings.served_model_name or settings.model,
            version=harmless(served.version or "") or None if served is not None else None,
            variant=self.variant,
            pid=servers.pid,
            uptime_s=t_s - self.began_s,
            milestones=servers.milestones,
            log_tail=servers.log_lines,
            log_total=servers.log_total,
            expected_s=servers.expected_s,
            liveness=self._liveness(hardware) if starting else None,
            diagnosis=servers.diagnosis,
            instances=servers.views(self._watch.views if self._watch is not None else []),
        )

    def _liveness(self, hardware: HardwareRecord) -> Liveness | None:
        life = self.servers.liveness
        ours = hardware.now().indices
        used = [now.hbm_used_bytes for index, now in hardware.latest.items() if index in ours and now.hbm_used_bytes]
        return msgspec.structs.replace(life, hbm_used_bytes=sum(used)) if life is not None and used else life

    def log_state(self, state: ServerState) -> None:
        """The servers have reached a state."""
        self._writer.server_changed(self.servers, self.served, state, self.variant)
