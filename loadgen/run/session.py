"""One start of the servers, with everything that drives and reads them: a restart by the operator begins another.

Until load is requested, nothing is sent but GET /metrics, /v1/models and /version: `prepare` sends the first request.

Invariants: the connections of this process and of the workers are closed before the servers are stopped, or vLLM would
wait for them; a session shares nothing with the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from loadgen.errors import ProfileError, ServerError, WorkerError
from loadgen.fleet.fleet import Fleet, FleetTick
from loadgen.format import harmless, plain
from loadgen.plan.stage import Stage, check_lengths, most_workers, workers_for
from loadgen.profile.schema import Profile
from loadgen.record.hardware import HardwareRecord
from loadgen.run.canary import CanaryWatch
from loadgen.run.engine_watch import EngineWatch
from loadgen.run.load_hosts import LoadHosts
from loadgen.run.probe import (
    Accepted,
    Served,
    TemplatesOf,
    identify,
    probe,
    probe_twin,
    resolve_target,
    templates_of,
    worker_settings,
)
from loadgen.run.servers import Servers
from loadgen.run.writer import RunWriter
from loadgen.schema.engine import OwnRequests
from loadgen.schema.finding import Finding
from loadgen.schema.journal import Checked
from loadgen.schema.snapshot import Liveness, SeenState, ServerView
from loadgen.server.engines.names import TITLES
from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.server.preflight.check import check_profile
from loadgen.server.supervisor import ServerState
from loadgen.server.vllm.client import ServerClient, api_key, load_client, optional
from loadgen.stream.request import ServerAddress

_NOTHING_TO_SEE = (
    "without load there is nothing else to see of this server: send load with vramp run, or, if this is a proxy, name "
    "the engine behind it (SGLang exports metrics with --enable-metrics)"
)
_LAST_TICKS = 4
_LAST_READING_S = 2.0  # a server that hangs is not waited for


class Session:
    """Call `preflight`, `start`, `prepare` or `look`, then `watch`; `close` at any time, then `stop_servers`."""

    def __init__(
        self,
        profile: Profile,
        variant: str | None,
        plan: Sequence[Stage],
        writer: RunWriter,
        *,
        hosts: LoadHosts,
        seed: int,
        where: str,
    ) -> None:
        """Nothing starts yet; `hosts` send the load, and `where` names the profile in messages.

        Raises `ProfileError` if there are not enough ports or devices for all servers.
        """
        self.profile = profile
        self.variant = variant
        self.servers = Servers(profile)
        self._began_s: float | None = None  # when the servers were started, by their clock
        self._served: Sequence[Served | None] = ()  # each server's identity, None if unknown
        self.fleet = Fleet(self.servers.count)
        self.hosts = hosts
        self._plan = plan
        self._writer = writer
        self._seed = seed
        self._where = where
        self._accepted: Accepted | None = None
        self._noted: set[str] = set()  # what has been said about the servers
        self._clients: list[ServerClient] = []
        self._driven = False  # whether there were workers for every server
        self._watch: EngineWatch | None = None
        self._canaries: CanaryWatch | None = None
        self._heard: set[int] = set()  # servers, by number, whose metrics have been read
        self._silent: set[int] = set()  # those of them that no longer answer
        self._asking: asyncio.Task[None] | None = None  # identifies servers that answer again
        self._open = contextlib.AsyncExitStack()

    def another(self, variant: str | None, variants: Mapping[str, Profile]) -> Session:
        """A session to replace it, as it is or with a variant; raises `ProfileError` if that is impossible."""
        if not self.servers.ours:
            raise ProfileError("vramp has only attached to this server; restart it where it was started")
        if variant is not None and variant not in variants:
            raise ProfileError(f"no variant {variant!r}; there are: {', '.join(variants) or 'none'}")
        profile = self.profile if variant is None else variants[variant]
        variant = variant or self.variant
        return Session(profile, variant, self._plan, self._writer, hosts=self.hosts, seed=self._seed, where=self._where)

    # Its life.

    async def preflight(self) -> list[Finding]:
        """Check profile, installation, box and hosts for what would make the start fail."""
        if self._sends:
            await self.hosts.join(self.servers.settings.attached)
        findings = await check_profile(self.profile, self._plan)
        self._writer.log(Checked(t_s=self._writer.clock_s(), findings=tuple(findings)))
        return [finding for finding in findings if finding.severity == "blocks"]

    async def start(self) -> None:
        """Start the servers and wait until they answer; raises `ServerError`."""
        await asyncio.to_thread(load_client)
        self._began_s = self.servers.clock_s
        await self.servers.start(self._writer.folder)
        if self._sends:
            self.servers.claim()
        self.log_state("starting")
        await self.servers.wait_ready()
        problem = self.servers.remember_start()
        if problem is not None:
            self._writer.event("server", problem)
        server = self.profile.server
        key = api_key(server)
        for url in self.servers.base_urls:
            client = ServerClient(url, key, api_key_env=server.api_key_env)
            self._clients.append(await self._open.enter_async_context(client))

    @property
    def _sends(self) -> bool:
        """Whether the plan sends load."""
        return any(not stage.no_load for stage in self._plan)

    async def look(self) -> None:
        """Identify the servers; raises `ServerError` if there is nothing to see without load."""
        for client in self._clients:
            await resolve_target(client.base_url)
            page = await optional(client.metrics_text())
            if page.value is None:
                raise ServerError(f"{page.why}; {_NOTHING_TO_SEE}")
            if (await asyncio.to_thread(parse_engine_metrics, page.value)).kind is None:
                known = ", ".join(TITLES.values())
                raise ServerError(f"{client.base_url}/metrics has no figure of {known}; {_NOTHING_TO_SEE}")
        self._learnt([await self._identified(client) for client in self._clients])

    async def _identified(self, client: ServerClient) -> Served | None:
        """A server's identity; None, with an event, if it is unknown: its metrics are read anyway."""
        try:
            return await self._identify(client)
        except ServerError as error:
            self._writer.event("server", f"{error}; its metrics are read anyway")
            return None

    def _learnt(self, served: Sequence[Served | None]) -> None:
        """Write the servers' identities to the journal, and report differences."""
        before, self._served = self._served, served
        words = {one.base_url: f"{one.model}, version {one.version or 'unknown'}" for one in served if one is not None}
        if served != before and len(set(words.values())) > 1:
            each = "; ".join(f"{url} serves {what}" for url, what in words.items())
            self._writer.event("server", f"the servers are not alike, and their figures are added up: {each}")
        for earlier, now in zip(before, served, strict=False):
            if earlier is not None and now is not None and earlier != now:
                self._writer.event("server", f"{now.base_url} serves {words[now.base_url]} now")
        self.log_state("ready")

    async def _identify(self, client: ServerClient) -> Served:
        server = self.profile.server
        wanted = server.served_model_name or (None if server.engine == "vllm" else server.model)
        notes: list[str] = []
        served = await identify(client, wanted, self.profile.load, notes)
        self._note(notes)
        return served

    def _note(self, notes: Iterable[str]) -> None:
        """Write what is unknown of a server to the journal, once in a session."""
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                self._writer.event("server", note)

    async def prepare(self, stages: Sequence[Stage]) -> None:
        """Send the first request and start workers for load as in `stages`.

        Workers, once started, are kept: a later call only locks the servers again.
        Raises `ServerError`, `ProfileError`, `ClusterError` or `WorkerError`.
        """
        if not self._clients:
            raise ProfileError("there is no server to send it to; name one: vramp monitor URL")
        self.servers.claim()
        if self._driven:
            return
        await self.hosts.join(self.servers.settings.attached)
        await self.hosts.require_reachable(self.servers.base_urls)
        load = self.profile.load
        first, *twins = self._clients
        served = await self._identify(first)
        check_lengths(list(stages), served.shortest_model_len, where=self._where)
        accepted = self._accepted = await probe(first, served, load)
        notes = list(accepted.notes)
        every = [served, *[await probe_twin(twin, served, accepted, load, notes) for twin in twins]]
        self._learnt(every)
        self._note(notes)
        sent = {data.path: data.note for stage in stages if (data := stage.work.data) is not None and data.note}
        for path, note in sent.items():
            self._writer.event("note", f"{plain(path)}: {note}")
        self._start_canaries(served, accepted)
        await self._start_workers(stages, [one.address for one in every], accepted)
        if self._canaries is not None:
            await self._canaries.ready()
        if self._watch is not None:
            await self.read_engines()

    def _start_canaries(self, served: Served, accepted: Accepted) -> None:
        """Send canaries to the idle engines while the workers start."""
        settings, writer = self.profile.canary, self._writer
        if self.profile.sends_canaries and self._canaries is None:
            self._canaries = CanaryWatch(
                self._clients,
                writer.record,
                writer.log,
                writer.clock_s,
                model=served.model,
                options=accepted.options,
                interval_s=settings.interval_s,
            )
            self._open.push_async_callback(self._canaries.close)
            self._canaries.start()

    async def _start_workers(
        self, stages: Sequence[Stage], addresses: Sequence[ServerAddress], accepted: Accepted
    ) -> None:
        """Start the workers, which send a row per stream if rows are kept."""
        load, servers, cores = self.profile.load, self.servers.count, self.hosts.cores
        first = workers_for(load.workers, stages, servers=servers, cores=cores)
        most = most_workers(load.workers, servers=servers, cores=cores)
        cpus = await self.hosts.place(load.cpus, self.servers.base_urls, addresses, first)
        if cpus:  # more workers than CPUs would only wait for each other
            most = max(first, min(most, len(cpus)))
        settings = worker_settings(
            self.profile,
            addresses[0],
            accepted.vocabulary,
            self._seed,
            workers=most,
            cpus=cpus,
            rows=self._writer.keeps_rows,
        )
        await self.fleet.start(settings, addresses, first, most=most, hosts=self.hosts.each)
        await self.fleet.wait_ready()
        self._driven = True

    async def watch(self) -> None:
        """Begin to read the engines."""
        self._watch = EngineWatch(self._clients, self._writer.log, self._writer.clock_s)
        self._open.push_async_callback(self._watch.close)
        await self._watch.start()

    async def tick(self) -> FleetTick:
        """Wait for the workers' next tick, write it down and return it."""
        tick = await self.fleet.tick()
        self._write(tick, self.fleet.size)
        self.hosts.observe(tick)
        if not self.servers.ours:
            self._look_again()
        return tick

    def _look_again(self) -> None:
        """Identify servers that answer again: they may have been restarted with another model."""
        assert self._watch is not None
        answering = {number for number, view in enumerate(self._watch.views) if view is not None}
        back, self._silent = self._silent & answering, self._heard - answering
        self._heard |= answering
        if back and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._learn_again(back))

    async def _learn_again(self, back: Collection[int]) -> None:
        known = [*self._served, *[None] * (len(self._clients) - len(self._served))]
        for number in back:
            known[number] = await self._identified(self._clients[number]) or known[number]
        self._learnt(known)

    def _write(self, tick: FleetTick, workers: int) -> None:
        engine = self._watch.view if self._watch is not None else None
        model = self.served.model if self.served is not None else None
        own = sum((client.take_own() for client in self._clients), OwnRequests())
        self._writer.tick(tick, engine=engine, workers=workers, model=model, own=own)

    def check(self, tick: FleetTick) -> None:
        """Raise `WorkerError` if a server is left without workers, `LoadError` if one has died."""
        if self._driven and not self.fleet.complete:
            whose = "" if self.servers.count == 1 else " of an instance"
            raise WorkerError(f"all workers{whose} are gone: " + "; ".join(tick.deaths or ("none is left",)))
        self.servers.check()

    async def close(self) -> None:
        """End the workers and disconnect from the servers, after the load has ended."""
        # Streams that were cut off are reported in the next ticks.
        for _ in range(_LAST_TICKS):
            if not self.fleet.size or not self._writer.record.open_streams:
                break
            await self.tick()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_READING_S):
                await self.settle()
        if self._asking is not None:  # one of the last ticks may have begun it
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await self._open.aclose()
        workers = self.fleet.size
        await self.fleet.close()
        rest = self.fleet.rest()
        if rest.stages or rest.deaths:
            self._write(rest, workers)

    async def stop_servers(self, *, leave: bool, show: Callable[[], None]) -> None:
        """After `close`: end the servers that vramp started, or `leave` them; `show` is called when there is news."""
        state = await self.servers.end(leave=leave, tell=self._writer.event, show=show)
        if state is not None:
            self.log_state(state)

    async def read_engines(self) -> None:
        """Read the engines while nothing is open, before the next stage sends anything."""
        assert self._watch is not None
        await self._read_in_silence(self._watch.read_between)

    async def _read_in_silence(self, read: Callable[[], Awaitable[None]]) -> None:
        """Read the engines while no canary is open."""
        async with contextlib.AsyncExitStack() as silent:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_READING_S):
                    if self._canaries is not None:
                        await silent.enter_async_context(self._canaries.silence())
                    await read()

    async def load_is_over(self) -> None:
        """Wait for the engines' figures for the stages, and for canaries on the idle servers."""
        await self.settle()
        if self._watch is not None:
            await self._read_in_silence(self._watch.read_after_load)
        if self._canaries is not None and self.servers.claimed:
            await self._canaries.after()

    async def settle(self) -> None:
        """Wait for the engines' figures for ended stages."""
        if self._watch is not None:
            await self._watch.settle()

    # What is known of it.

    @property
    def served(self) -> Served | None:
        """The first server's identity; None if unknown."""
        return next(iter(self._served), None)

    @property
    def workers(self) -> int:
        """How many workers there are, or will be at first."""
        if self._driven:
            return self.fleet.size
        loads = [stage for stage in self._plan if not stage.no_load]
        wanted, servers, cores = self.profile.load.workers, self.servers.count, self.hosts.cores
        return workers_for(wanted, loads, servers=servers, cores=cores) if loads else 0

    @property
    def templates(self) -> TemplatesOf:
        assert self.served is not None and self._accepted is not None
        return partial(templates_of, self.profile, self.served.model, self._accepted, self.servers.base_urls)

    def boundary(self, ended: int | None, begun: int | None) -> None:
        """Note that a stage ended, began, or both."""
        assert self._watch is not None
        self._watch.boundary(ended, begun)
        if self._canaries is not None:
            self._canaries.boundary()

    @property
    def worker_pids(self) -> Sequence[int]:
        return self.fleet.pids

    def view(self, hardware: HardwareRecord, *, starting: bool) -> ServerView:
        """The servers for the screen; while they start, with signs of life from processes and GPUs."""
        servers, served, settings = self.servers, self.served, self.profile.server
        return ServerView(
            engine=settings.engine,
            url=servers.url,
            state=self._seen_state,
            model=harmless(served.model) if served is not None else settings.served_model_name or settings.model,
            version=harmless(served.version or "") or None if served is not None else None,
            variant=self.variant,
            pid=servers.pid,
            is_own=servers.ours and servers.pid is not None and servers.state not in ("stopped", "died"),
            stays=settings.on_exit == "leave",
            uptime_s=servers.clock_s - self._began_s if self._began_s is not None else None,
            milestones=servers.milestones,
            log_tail=servers.log_lines,
            log_total=servers.log_total,
            expected_s=servers.expected_s,
            liveness=self._liveness(hardware) if starting else None,
            diagnosis=servers.diagnosis,
            instances=servers.views(self._watch.views if self._watch is not None else [], self._silent),
        )

    @property
    def _seen_state(self) -> SeenState:
        if self.servers.ours or self._watch is None:
            return self.servers.state
        return "unreachable" if self._silent and self._silent == self._heard else "ready"

    def _liveness(self, hardware: HardwareRecord) -> Liveness | None:
        life = self.servers.liveness
        ours = hardware.now().indices
        used = [now.hbm_used_bytes for index, now in hardware.latest.items() if index in ours and now.hbm_used_bytes]
        return msgspec.structs.replace(life, hbm_used_bytes=sum(used)) if life is not None and used else life

    def log_state(self, state: ServerState) -> None:
        """Log that the servers have reached a state."""
        self._writer.server_changed(self.servers, self._served, state, self.variant)
