"""One start of the servers, with everything that drives and reads them: a restart by the operator begins another.

Until load is requested, nothing is sent but GET /metrics, /v1/models and /version: `_prepare` sends the first request
and starts the workers. If load is requested later, the running stage continues without load until there are workers,
or for good if there can be none. A run whose plan sends load keeps its servers locked until its end; one that only
watches lets others drive them whenever it sends nothing.

Invariants: the connections of this process and of the workers are closed before the servers are stopped, or vLLM would
wait for them; a session shares nothing with the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from loadgen.errors import LoadError, ProfileError, ServerError, VrampError, WorkerError
from loadgen.fleet.fleet import Fleet, FleetTick
from loadgen.format import NO_LOAD, harmless, plain
from loadgen.plan.stage import Stage, check_lengths, most_workers, workers_for
from loadgen.record.record import Record
from loadgen.record.start import differences, start_verdicts
from loadgen.run.ask import ask
from loadgen.run.canary import CanaryWatch
from loadgen.run.controller import LoadController
from loadgen.run.engine_watch import EngineWatch
from loadgen.run.load_hosts import LoadHosts
from loadgen.run.probe import (
    Accepted,
    Served,
    identify,
    probe,
    probe_twin,
    resolve_target,
    templates_of,
)
from loadgen.run.servers import Servers
from loadgen.run.settings import RunSettings
from loadgen.schema.engine import OwnRequests
from loadgen.schema.finding import Finding
from loadgen.schema.journal import Checked, ServerChanged
from loadgen.schema.snapshot import SeenState, ServerView
from loadgen.schema.start import Provenance, ServerStart, StartDifference
from loadgen.server.engines.names import ENGINES
from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.server.preflight.check import check_profile
from loadgen.server.provenance import provenance
from loadgen.server.supervisor import ServerState
from loadgen.server.vllm.client import ServerClient, api_key, load_client, optional
from loadgen.server.vllm.start_figures import cache_config, with_cache_config
from loadgen.stream.request import ServerAddress
from loadgen.system import usable_cores
from loadgen.worker.messages import Configure
from loadgen.worker.realtime import realtime_budget

if TYPE_CHECKING:
    from loadgen.run.writer import RunWriter

_NOTHING_TO_SEE = (
    "without load there is nothing else to see of this server: send load with vramp run, or, if this is a proxy, name "
    "the engine behind it (SGLang exports metrics with --enable-metrics)"
)
_LAST_TICKS = 4
_LAST_READING_S = 2.0  # a server that hangs is not waited for
_QUIET_S = 2.0
_MIN_FAILURES = 10
_MAX_FAILURES = 200


class CircuitBreaker:
    """Detects a server that only fails, to stop sending: no table of zeros, and no hammering of a dead server."""

    def __init__(self) -> None:
        self._successes: int | None = None  # at the last check; the first begins with those of an earlier server
        self._failures_then = 0
        self._since_s = 0.0

    def check(self, record: Record, now_s: float) -> str | None:
        """Why the load should end: many failures in a row, for a while, without a success; None if it should not."""
        current = record.current
        failures = record.total.counters["failed"] + record.total.counters["warmup_failed"]
        if current is None or current.started.no_load:
            self._failures_then, self._since_s = failures, now_s
            return None
        successes = record.total.counters["completed"] + record.client.counters["output_tokens"]
        if successes != self._successes:
            self._successes, self._failures_then, self._since_s = successes, failures, now_s
            return None
        row = failures - self._failures_then
        wanted = min(_MAX_FAILURES, max(_MIN_FAILURES, 2 * (current.started.concurrency or 0)))
        if row < wanted or now_s - self._since_s < _QUIET_S:
            return None
        errors, messages = record.total.errors, record.total.messages
        kind = max(errors, key=lambda name: errors[name], default="")
        most_frequent = ": ".join([kind, *messages.get(kind, [])[:1]])
        if not errors:
            most_frequent = "; ".join(text for texts in messages.values() for text in texts[:1])
        return f"nothing but failures: the last {row} requests failed, {most_frequent}"


class Session:
    """Call `preflight`, `start`, `begin_load`, then `turn` until the plan is done; `close` at any time, then
    `stop_servers`."""

    def __init__(
        self,
        settings: RunSettings,
        plan: Sequence[Stage],
        writer: RunWriter,
        controller: LoadController,
        hosts: LoadHosts,
        seed: int,
    ) -> None:
        """Nothing starts yet; raises `ProfileError` if there are not enough ports or devices for all servers."""
        self.settings = settings
        self.servers = Servers(settings.profile)
        self._began_s: float | None = None  # when the servers were started, by their clock
        self._start: ServerStart | None = None  # known once the server answers
        self._start_differences: tuple[StartDifference, ...] = ()
        self._provenance: Provenance | None = None
        self._served: Sequence[Served | None] = ()  # each server's identity, None if unknown
        self.fleet = Fleet(self.servers.count)
        self.hosts = hosts
        self.seed = seed
        self._plan = plan
        self._only_watches = all(stage.no_load for stage in plan)
        self._writer = writer
        self._controller = controller
        self._breaker = CircuitBreaker()
        self._preparing: asyncio.Task[None] | None = None  # workers for the first load, while there is none
        self._accepted: Accepted | None = None
        self._noted: set[str] = set()  # what has been said about the servers
        self._clients: list[ServerClient] = []
        self._asked = 0  # prompts apart from the load
        self._driven = False  # whether there were workers for every server
        self._watch: EngineWatch | None = None
        self._canaries: CanaryWatch | None = None
        self._answered: set[int] = set()  # servers, by number, whose metrics have been read
        self._silent: set[int] = set()  # those of them that no longer answer
        self._identifying: asyncio.Task[None] | None = None  # servers that answer again
        self._open = contextlib.AsyncExitStack()

    def another(self, variant: str | None) -> Session:
        """A session to replace it, as it is or with a variant; raises `ProfileError` if that is impossible."""
        if not self.servers.ours:
            raise ProfileError("vramp has only attached to this server; restart it where it was started")
        settings = self.settings
        if variant is not None:
            if variant not in settings.variants:
                raise ProfileError(f"no variant {variant!r}; there are: {', '.join(settings.variants) or 'none'}")
            settings = replace(settings, profile=settings.variants[variant], variant=variant)
        return Session(settings, self._plan, self._writer, self._controller, self.hosts, self.seed)

    # Its life.

    async def preflight(self) -> list[Finding]:
        """Check profile, installation, box and hosts for what would make the start fail."""
        if not self._only_watches:
            await self.hosts.join(self.servers.settings.attached)
        findings = await check_profile(self.settings.profile, self._plan)
        self._writer.log(Checked(t_s=self._writer.clock_s(), findings=tuple(findings)))
        return [finding for finding in findings if finding.severity == "blocks"]

    async def start(self) -> None:
        """Start the servers and wait until they answer; raises `ServerError`."""
        await asyncio.to_thread(load_client)
        self._began_s = self.servers.clock_s
        await self.servers.start(self._writer.folder)
        if not self._only_watches:
            self.servers.claim()
        self.log_state("starting")
        await self.servers.wait_ready()
        server, load = self.settings.profile.server, self.settings.profile.load
        key = api_key(server)
        for url in self.servers.base_urls:
            client = ServerClient(url, key, api_key_env=server.api_key_env, headers=load.headers.static)
            self._clients.append(await self._open.enter_async_context(client))

    async def begin_load(self) -> None:
        """Identify the servers and begin the plan; raises `ServerError`, `ProfileError` or `WorkerError`."""
        if self._controller.load_requested:
            await self._prepare(self._plan)
        else:
            await self._require_metrics()
            self._learnt([await self._identified(client) for client in self._clients])
        await self._note_start()
        self._watch = EngineWatch(self._clients, self._writer.log, self._writer.clock_s)
        self._open.push_async_callback(self._watch.close)
        await self._watch.start()
        await self._tick()
        self._controller.attach(self.fleet, self._boundary)

    async def _note_start(self) -> None:
        """Log the figures of the start and how they differ from those of the last one, and keep them for the next."""
        start = msgspec.structs.replace(self.servers.start_figures, unix_s=time.time())
        with contextlib.suppress(ServerError):  # not every server has the page
            for client in self._clients[:1]:  # none without a server
                start = with_cache_config(start, cache_config(await client.metrics_text()))
        self._start = start
        if self._provenance is None and self.servers.count:
            self._provenance = await asyncio.to_thread(provenance, self.servers.settings)
        last = self.servers.last_start
        self._start_differences = tuple(differences(last, start)) if last is not None else ()
        self.log_state("ready")
        for verdict in start_verdicts(self._start_differences):
            self._writer.event("server", verdict.text)
        problem = self.servers.remember_start(start)
        if problem is not None:
            self._writer.event("server", problem)

    async def turn(self) -> None:
        """Process the next tick; raises `WorkerError` or `LoadError` if the load cannot continue."""
        controller, record = self._controller, self._writer.record
        tick = await self._tick()
        if self._driven and not self.fleet.complete:
            whose = "" if self.servers.count == 1 else " of an instance"
            raise WorkerError(f"all workers{whose} are gone: " + "; ".join(tick.deaths or ("none is left",)))
        self.servers.check()
        if self._preparing is not None and self._preparing.done():
            self._preparing.result()
            self._preparing = None
        stage = controller.awaits_workers
        if stage is not None and self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare_or_refuse(stage))
        controller.observe(tick, record.current)
        if tick.finished is not None and tick.finished == controller.index:
            await self._read_engines()
            # Meanwhile the operator may have paused or changed the load, or its time was up.
            if tick.finished == controller.index and not controller.paused:
                controller.advance(tick.finished_why)
        self._react_to_lost_hosts()
        broken = self._breaker.check(record, self._writer.clock_s())
        if broken is not None:
            self._give_up(broken)
        if self._only_watches and controller.is_idle and self._preparing is None:
            self.servers.free()
            controller.workers_freed()

    def _react_to_lost_hosts(self) -> None:
        lost, on_loss = self.hosts.take_lost(), self.settings.profile.cluster.on_loss
        if not lost:
            return
        if on_loss == "end":
            self._give_up(f'{" and ".join(lost)} did not answer any more, and cluster.on_loss is "end"')
        elif on_loss == "rebalance":
            self._controller.begin_again(f"{' and '.join(lost)} was lost: the others take over its share")

    def _give_up(self, why: str) -> None:
        """Fail a run whose plan sends load; one that only watches continues without load."""
        if not self._only_watches:
            raise LoadError(why)
        self._writer.event("error", why)
        self._controller.change(NO_LOAD, concurrency=0, rate=None)

    async def _require_metrics(self) -> None:
        """Raise `ServerError` if there is nothing to see of a server without load."""
        for client in self._clients:
            await resolve_target(client.base_url)
            page = await optional(client.metrics_text())
            if page.value is None:
                raise ServerError(f"{page.why}; {_NOTHING_TO_SEE}")
            if (await asyncio.to_thread(parse_engine_metrics, page.value)).kind is None:
                known = ", ".join(engine.title for engine in ENGINES.values())
                raise ServerError(f"{client.base_url}/metrics has no figure of {known}; {_NOTHING_TO_SEE}")

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
        server = self.settings.profile.server
        wanted = server.served_model_name or (None if server.engine == "vllm" else server.model)
        notes: list[str] = []
        served = await identify(client, wanted, self.settings.profile.load, notes)
        self._note(notes)
        return served

    def _note(self, notes: Iterable[str]) -> None:
        """Write what is unknown of a server to the journal, once in a session."""
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                self._writer.event("server", note)

    async def _prepare_or_refuse(self, stage: Stage) -> None:
        try:
            await self._prepare([stage])
        except VrampError as error:
            self._controller.refuse_load(str(error))

    async def _prepare(self, stages: Sequence[Stage]) -> None:
        """Lock the servers, and have workers ready for load as in `stages`.

        Raises `ServerError`, `ProfileError`, `ClusterError` or `WorkerError`.
        """
        if not self._clients:
            raise ProfileError("there is no server to send it to; name one: vramp monitor URL")
        self.servers.claim()
        if not self._driven:  # workers, once started, are kept
            await self._first_request_and_workers(stages)
        assert self.served is not None and self._accepted is not None
        self._controller.workers_ready(
            partial(templates_of, self.settings.profile, self.served.model, self._accepted, self.servers.base_urls)
        )

    async def _first_request_and_workers(self, stages: Sequence[Stage]) -> None:
        await self.hosts.join(self.servers.settings.attached)
        await self.hosts.require_reachable(self.servers.base_urls)
        load = self.settings.profile.load
        first, *twins = self._clients
        served = await self._identify(first)
        check_lengths(list(stages), served.shortest_model_len, where=self.settings.where)
        accepted = self._accepted = await probe(first, served, load)
        notes = list(accepted.notes)
        every = [served, *[await probe_twin(twin, served, accepted, load, notes) for twin in twins]]
        self._learnt(every)
        self._note(notes)
        sent = {data.path: data.note for stage in stages if (data := stage.work.source) is not None and data.note}
        for path, note in sent.items():
            self._writer.event("note", f"{plain(path)}: {note}")
        self._start_canaries(served, accepted)
        await self._start_workers(stages, [one.address for one in every], accepted)
        if self._canaries is not None:
            await self._canaries.ready()
        if self._watch is not None:
            await self._read_engines()

    def _start_canaries(self, served: Served, accepted: Accepted) -> None:
        """Send canaries to the idle engines while the workers start."""
        profile, writer = self.settings.profile, self._writer
        if profile.sends_canaries and self._canaries is None:
            self._canaries = CanaryWatch(
                self._clients,
                writer.record,
                writer.log,
                writer.clock_s,
                model=served.model,
                options=accepted.options,
                interval_s=profile.canary.interval_s,
            )
            self._open.push_async_callback(self._canaries.close)
            self._canaries.start()

    async def _start_workers(
        self, stages: Sequence[Stage], addresses: Sequence[ServerAddress], accepted: Accepted
    ) -> None:
        """Start the workers, which send a row per stream if rows are kept."""
        load, servers, cores = self.settings.profile.load, self.servers.count, self.hosts.cores
        first = workers_for(load.workers, stages, servers=servers, cores=cores)
        most = most_workers(load.workers, servers=servers, cores=cores)
        cpus = await self.hosts.place(load.cpus, self.servers.base_urls, addresses, first)
        if cpus:  # more workers than CPUs would only wait for each other
            most = max(first, min(most, len(cpus)))
        chosen = {
            "address": addresses[0],
            "vocabulary": accepted.vocabulary,
            "seed": self.seed,
            "cpus": tuple(sorted(cpus)),
            "realtime_share": realtime_budget(usable_cores(), most) if load.realtime else 0.0,
            "sample_answers": self.settings.profile.sends_canaries,
            "rows": self._writer.keeps_rows,
            "kv_tokens": await self._kv_tokens(),
            "echo_header": load.headers.echo,
        }
        # Every other setting is the key of that name in `[load]`.
        shared = {name: value for name, value in load if name in Configure.__struct_fields__ and name not in chosen}
        settings = msgspec.convert(shared | chosen, Configure)
        await self.fleet.start(settings, addresses, first, most=most, hosts=self.hosts.each)
        await self.fleet.wait_ready()
        self._driven = True

    async def _kv_tokens(self) -> int | None:
        """The tokens that fit into the KV caches of all servers, which are alike; None if they do not say."""
        page = await optional(self._clients[0].metrics_text())
        labels = cache_config(page.value) if page.value is not None else {}
        tokens = with_cache_config(self.servers.start_figures, labels).kv_cache_tokens
        return None if tokens is None else tokens * self.servers.count

    async def _tick(self) -> FleetTick:
        """Wait for the workers' next tick, write it down and return it."""
        tick = await self.fleet.tick()
        self._write(tick, self.fleet.size)
        self.hosts.observe(tick)
        if not self.servers.ours:
            assert self._watch is not None
            answering = {number for number, view in enumerate(self._watch.views) if view is not None}
            back, self._silent = self._silent & answering, self._answered - answering
            self._answered |= answering
            # Servers that answer again may have been restarted with another model.
            if back and (self._identifying is None or self._identifying.done()):
                self._identifying = asyncio.create_task(self._identify_again(back))
        return tick

    async def _identify_again(self, back: Collection[int]) -> None:
        known = [*self._served, *[None] * (len(self._clients) - len(self._served))]
        for number in back:
            known[number] = await self._identified(self._clients[number]) or known[number]
        self._learnt(known)

    def _write(self, tick: FleetTick, workers: int) -> None:
        self._writer.tick(
            tick,
            engine=self._watch.view if self._watch is not None else None,
            engines=self._watch.take_each() if self._watch is not None else (),
            workers=workers,
            model=self.served.model if self.served is not None else None,
            own=sum((client.own_requests() for client in self._clients), OwnRequests()),
            waits_for_worker=self.servers.take_waits_for_worker(),
        )

    @property
    def load_lasts(self) -> bool:
        """Whether streams are open, or what a worker measured last has yet to be reported."""
        return self._writer.record.open_streams > 0 or self.fleet.measures

    async def close(self, reason: str | None = None) -> None:
        """End the workers and disconnect from the servers, after the load has ended; with a `reason`, end that first.

        The stage begins again in the next session.
        """
        if reason is not None:
            self._controller.detach(reason)
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait({self._preparing})
            self._preparing = None
        # Streams that were cut off are reported in the next ticks.
        for _ in range(_LAST_TICKS):
            if not self.fleet.size or not self.load_lasts:
                break
            await self._tick()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_READING_S):
                if self._watch is not None:
                    await self._watch.settle()
        if self._identifying is not None:  # one of the last ticks may have begun it
            self._identifying.cancel()
            await asyncio.wait([self._identifying])
        await self._open.aclose()
        workers = self.fleet.size
        await self.fleet.close()
        rest = self.fleet.rest()
        if rest.stages or rest.deaths:
            self._write(rest, workers)

    async def stop_servers(self, *, leave: bool, show: Callable[[], None]) -> None:
        """After `close`: end the servers that vramp started, or `leave` them; `show` is called when there is news."""
        state = await self.servers.end(leave=leave, event=self._writer.event, show=show)
        if state is not None:
            self.log_state(state)

    async def _read_engines(self) -> None:
        """Read the engines while nothing is open, before the next stage sends anything."""
        assert self._watch is not None
        await self._read_in_silence(self._watch.read_between)

    async def _read_in_silence(self, read: Callable[[], Awaitable[None]]) -> None:
        async with contextlib.AsyncExitStack() as silent:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_READING_S):
                    if self._canaries is not None:
                        await silent.enter_async_context(self._canaries.silence())
                    await read()

    async def load_is_over(self) -> None:
        """Wait for the engines' figures for the stages, and for canaries on the idle servers."""
        if self._watch is not None:
            await self._watch.settle()
            await self._read_in_silence(self._watch.read_after_load)
        if self._canaries is not None and self.servers.claimed:
            await self._canaries.after()

    async def ask(self, prompt: str, *, max_tokens: int, timeout_s: float) -> str:
        """The answer of one server after the other to a prompt; raises `ServerError` if it is refused or incomplete."""
        assert self.served is not None, "there is a load"
        self._asked += 1
        client = self._clients[self._asked % len(self._clients)]
        text: list[str] = []
        answered = await ask(
            client, self.served.model, prompt, max_tokens=max_tokens, timeout_s=timeout_s, on_text=text.append
        )
        if answered.failed is not None:
            raise ServerError(f"{client.base_url}: {answered.failed}")
        return "".join(text)

    # What is known of it.

    @property
    def pages(self) -> dict[str, Callable[[], Awaitable[str]]]:
        return {client.base_url: client.metrics_text for client in self._clients}

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
        wanted, servers, cores = self.settings.profile.load.workers, self.servers.count, self.hosts.cores
        return workers_for(wanted, loads, servers=servers, cores=cores) if loads else 0

    def _boundary(self, ended: int | None, begun: int | None) -> None:
        assert self._watch is not None
        self._watch.boundary(ended, begun)
        if self._canaries is not None:
            self._canaries.boundary()

    def view(self, *, starting: bool) -> ServerView:
        """The servers for the screen; while they start, with signs of life from processes and GPUs."""
        servers, served = self.servers, self.served
        view = servers.view(self._watch.views if self._watch is not None else [], self._silent)
        life, hardware = servers.liveness if starting else None, self._writer.record.hardware
        if life is not None:
            ours = [now for index, now in hardware.latest.items() if index in hardware.now().indices]
            used_bytes = sum(now.hbm_used_bytes or 0 for now in ours) or None
            life = msgspec.structs.replace(life, hbm_used_bytes=used_bytes)
        state: SeenState = view.state
        if not servers.ours and self._watch is not None:
            state = "unreachable" if self._silent and self._silent == self._answered else "ready"
        return msgspec.structs.replace(
            view,
            state=state,
            model=harmless(served.model) if served is not None else view.model,
            version=harmless(served.version or "") or None if served is not None else None,
            variant=self.settings.variant,
            start=self._start,
            uptime_s=servers.clock_s - self._began_s if self._began_s is not None else None,
            liveness=life,
        )

    def log_state(self, state: ServerState) -> None:
        servers, served, described = self.servers, self.served, self.servers.described()
        first = next(iter(described), None)
        identified = [
            instance if one is None else msgspec.structs.replace(instance, model=one.model, version=one.version)
            for instance, one in zip_longest(described, self._served[: len(described)])
        ]
        self._writer.log(
            ServerChanged(
                t_s=self._writer.clock_s(),
                state=state,
                engine=servers.settings.engine,
                url=servers.url,
                model=served.model if served is not None else servers.settings.model,
                version=served.version if served is not None else None,
                pid=first.pid if first is not None else None,
                max_model_len=served.max_model_len if served is not None else None,
                command=first.command if first is not None else None,
                env=first.env if first is not None else servers.settings.env,
                milestones=servers.milestones,
                diagnosis=servers.diagnosis,
                instances=tuple(identified) if servers.count > 1 else (),
                variant=self.settings.variant,
                start=self._start,
                start_differences=self._start_differences,
                provenance=self._provenance,
            )
        )
