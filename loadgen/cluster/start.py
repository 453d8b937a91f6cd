"""Turns the profile's `[cluster]` into hosts on which the fleet can start workers, or says why one cannot take part.

Everything that can be wrong is found here, before anything is sent: errors of several hosts are raised together, one
line each. Invariant: what was started ends with `started`; nothing of an existing cluster is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import dask
import distributed
import msgspec
from distributed.comm.addressing import get_address_host
from msgspec.structs import replace

from loadgen.cluster.actor import HostActor
from loadgen.cluster.dask_worker import QUIET, JoinOrders
from loadgen.cluster.facts import Reached, as_json, host_facts
from loadgen.cluster.link import ClusterHost
from loadgen.cluster.pickles import restrict_pickles
from loadgen.cluster.ssh import HostProcess, SshHost, another_vramp, connected_to, how_to_install
from loadgen.cluster.tls import bound_handshakes, make_certificate, security_of
from loadgen.errors import UNDECODABLE, ClusterError
from loadgen.format import harmless
from loadgen.profile.schema import Cluster
from loadgen.schema.shared import HostFacts
from loadgen.stream.request import host_and_port

T = TypeVar("T")
Reach = Callable[[Sequence[str]], Awaitable[None]]
"""Raises `ClusterError` with a line for each host that cannot connect to one of the URLs."""

_ACTOR_S = 20.0  # until an actor is there: its host imports numpy and vramp
_CLOSE_S = 5.0
_SCHEDULER_S = 10.0
_REACH_S = 5.0
_CALL_S = 15.0


@dataclass(frozen=True)
class StartedHosts:
    """A Dask cluster, and a Dask worker on each of its hosts."""

    client: distributed.Client
    workers: tuple[tuple[HostFacts, str], ...]  # the address is that of the Dask worker
    owned: bool  # vramp started the Dask workers


@contextlib.asynccontextmanager
async def started(settings: Cluster, urls: Sequence[str] = ()) -> AsyncIterator[StartedHosts]:
    """The hosts of the settings, from each of which all `urls` can be reached; raises `ClusterError`."""
    restrict_pickles()
    with dask.config.set(QUIET):
        opened = _by_ssh(settings) if settings.scheduler is None else _by_scheduler(settings.scheduler)
        async with opened as hosts:
            await all_of(_require_importable(hosts.client, facts, address) for facts, address in hosts.workers)
            await require_reachable(hosts, urls)
            yield hosts


async def all_of(waited: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of them; raises one `ClusterError` with a line for each that failed."""
    done = await asyncio.gather(*waited, return_exceptions=True)
    for other in done:
        if isinstance(other, BaseException) and not isinstance(other, ClusterError):
            raise other
    problems = [str(problem) for problem in done if isinstance(problem, ClusterError)]
    if problems:
        raise ClusterError("\n".join(problems))
    return [one for one in done if not isinstance(one, BaseException)]


@contextlib.asynccontextmanager
async def connected(
    settings: Cluster, urls: Sequence[str], log_path: Path
) -> AsyncIterator[tuple[Sequence[ClusterHost], Reach]]:
    """The hosts, each with its actor and able to reach all `urls`; Dask logs to `log_path`.

    Raises `ClusterError` before anything is sent.
    """
    log_path.touch(mode=0o600)  # noqa: ASYNC240 - once, before anything is timed
    handler = logging.FileHandler(log_path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    send_logs_to(handler)
    async with started(settings, urls) as there, joined(there) as hosts:
        yield hosts, partial(require_reachable, there)


@contextlib.asynccontextmanager
async def joined(there: StartedHosts) -> AsyncIterator[Sequence[ClusterHost]]:
    """The hosts with an actor each; raises `ClusterError`."""
    async with contextlib.AsyncExitStack() as open_hosts:
        yield await all_of(_with_actor(there, facts, address, open_hosts) for facts, address in there.workers)


def send_logs_to(handler: logging.Handler) -> None:
    """Send Dask's log there and not to the terminal, which shows the cockpit or findings."""
    for name in ("distributed", "distributed.client", "tornado", "asyncssh"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False


async def _with_actor(
    there: StartedHosts, facts: HostFacts, address: str, open_hosts: contextlib.AsyncExitStack
) -> ClusterHost:
    future = there.client.submit(
        HostActor,
        ends_process=there.owned,
        actor=True,
        workers=[address],
        allow_other_workers=False,
        pure=False,
        retries=0,
    )
    try:
        async with asyncio.timeout(_ACTOR_S):
            actor = await future
    except TimeoutError:
        raise ClusterError(f"{facts.name}: its actor did not start within {_ACTOR_S:g} s") from None
    with there.client.as_current():
        # Looking up a method ties the proxy to this client, which is not everybody's default.
        host = ClusterHost(facts, actor.exchange)
    open_hosts.push_async_callback(_close_host, host, actor)
    try:
        await host.start()
    except (OSError, RuntimeError, TimeoutError) as error:
        raise ClusterError(f"{host.name}: its actor does not answer: {error or 'no answer in time'}") from None
    return host


async def _close_host(host: ClusterHost, actor: Any) -> None:  # noqa: ANN401 - Dask's proxy
    await host.close()
    if host.lost is None:
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await actor.close()


# Hosts that are reached by SSH.


@contextlib.asynccontextmanager
async def _by_ssh(settings: Cluster) -> AsyncIterator[StartedHosts]:
    async with contextlib.AsyncExitStack() as stack:
        opening = (connected_to(name, settings.python) for name in settings.hosts)
        hosts = await all_of(stack.enter_async_context(host) for host in opening)
        require_comparable([host.facts for host in hosts])
        pem = make_certificate()
        scheduler = await _scheduler(settings, hosts, pem, stack)
        addresses = await all_of(_joined(host, settings, scheduler, pem, stack) for host in hosts)
        client = await _client(scheduler.address, scheduler.security, stack)
        workers = tuple(zip((host.facts for host in hosts), addresses, strict=True))
        await all_of(_require_answer(client, facts, address) for facts, address in workers)
        yield StartedHosts(client, workers, owned=True)


def require_comparable(hosts: Sequence[HostFacts]) -> None:
    """Raise `ClusterError` unless they are distinct machines with the versions of this one."""
    ours = host_facts()
    problems = [problem for host in hosts if (problem := difference(host, ours)) is not None]
    by_identity: dict[str, list[str]] = {}
    for host in hosts:
        by_identity.setdefault(host.identity, []).append(host.name)
    problems += [
        f"{', '.join(names)}: are names of one machine ({names[0]}); name each machine once"
        for names in by_identity.values()
        if len(names) > 1
    ]
    if problems:
        raise ClusterError("\n".join(problems))


def difference(host: HostFacts, ours: HostFacts) -> str | None:
    """Which version of a host is not ours, with what to install; None if all are the same.

    The patch version of Python may differ; anything else could measure or talk differently.
    """
    install = f"{how_to_install()} there"
    if host.vramp != ours.vramp:
        return f"{host.name}: {another_vramp(host.vramp)}"
    if not ours.distributed:
        return f"this machine has no distributed: {how_to_install()} here"
    if not host.distributed:
        return f"{host.name}: has no distributed: {install}"
    if host.distributed != ours.distributed:
        exactly = f"pip install distributed=={ours.distributed}"
        return f"{host.name}: has distributed {host.distributed}, and this machine {ours.distributed}: {exactly} there"
    if host.python.split(".")[:2] != ours.python.split(".")[:2]:
        minor = ".".join(ours.python.split(".")[:2])
        return (
            f"{host.name}: has Python {host.python}, and this machine {ours.python}: {how_to_install()} "
            f"with Python {minor} there"
        )
    if host.definitions != ours.definitions:
        return (
            f"{host.name}: its vramp {host.vramp} is another build, whose figures may mean something else "
            f"({host.definitions}, here {ours.definitions}): install the same build there"
        )
    return None


async def _scheduler(
    settings: Cluster, hosts: Sequence[SshHost], pem: str, stack: contextlib.AsyncExitStack
) -> distributed.Scheduler:
    """Start the scheduler in this process, so that no host's death takes the others with it."""
    listen = settings.listen or await _own_address(hosts)
    _require_bindable(listen, settings.port)
    security, memory = security_of(pem)
    stack.callback(os.close, memory)
    scheduler = distributed.Scheduler(
        host=listen,
        port=settings.port,
        protocol="tls://",
        security=security,
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    )
    scheduler.http_server.stop()
    stack.push_async_callback(_close, scheduler)
    await scheduler
    bound_handshakes(scheduler)
    return scheduler


def _require_bindable(listen: str, port: int) -> None:
    """Raise `ClusterError` if nothing can listen there; Dask would leave its socket open and hide the reason."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    try:
        socket.create_server((listen, port), family=family).close()
    except OSError as error:
        raise ClusterError(
            f"cannot listen on {listen}, port {port or 'any'}, for the hosts ({_why(error)}): "
            "name another with cluster.listen or cluster.port"
        ) from None


async def _close(scheduler: distributed.Scheduler) -> None:
    try:
        await scheduler.close()
    except RuntimeError:
        # Dask cannot abandon a connection attempt that is timing out, such as to a lost host. Do what it left undone:
        scheduler.stop()
        await distributed.core.Server.close(scheduler)


async def _own_address(hosts: Sequence[SshHost]) -> str:
    addresses = {host.operator_address: host.name for host in hosts}
    if "" in addresses:
        raise ClusterError(f"{addresses['']}: is reached through a proxy: name our address with cluster.listen")
    if len(addresses) > 1:
        listed = ", ".join(f"{name} from {address}" for address, name in addresses.items())
        raise ClusterError(f"the hosts are reached from several addresses ({listed}): name one with cluster.listen")
    return next(iter(addresses))


async def _joined(
    host: SshHost, settings: Cluster, scheduler: distributed.Scheduler, pem: str, stack: contextlib.AsyncExitStack
) -> str:
    """The address of the Dask worker on a host."""
    process = await HostProcess.start(host)
    stack.push_async_callback(process.close)
    # The one port to open is the same on all machines; on this machine the scheduler has it.
    port = 0 if host.facts.identity == host_facts().identity else settings.port
    return await process.begin(JoinOrders(host.name, scheduler.address, host.facts.address, port, pem))


async def _client(
    address: str, security: distributed.Security | None, stack: contextlib.AsyncExitStack
) -> distributed.Client:
    with warnings.catch_warnings():
        # Versions are compared by us, and what differs in a way that matters is refused.
        warnings.simplefilter("ignore", distributed.versions.VersionMismatchWarning)
        client = distributed.Client(
            address, security=security, asynchronous=True, timeout=_SCHEDULER_S, set_as_default=False, name="vramp"
        )
        stack.push_async_callback(client.close)
        await client
    return client


async def ask(client: distributed.Client, address: str, kind: type[T], name: str, *words: Any) -> T:  # noqa: ANN401
    """What a function of `facts.as_json` returns on a host, checked to be of this kind.

    Raises `OSError`, or `ValueError` for any other answer.
    """
    try:
        answers = await client.run(as_json, name, *words, workers=[address])
    except pickle.UnpicklingError as error:
        raise ValueError(str(error)) from None
    return _decoded(answers[address], kind)


def _decoded(answer: object, kind: type[T]) -> T:
    if not isinstance(answer, bytes):
        raise ValueError(f"it answered with {type(answer).__name__}, not with JSON")
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNDECODABLE as error:
        raise ValueError(f"it answered with what vramp cannot read: {error}") from None


async def _require_answer(client: distributed.Client, facts: HostFacts, address: str) -> None:
    """Raise `ClusterError` if the Dask worker cannot be reached from here."""
    try:
        async with asyncio.timeout(_CALL_S):
            await ask(client, address, HostFacts, "facts")
    except (OSError, TimeoutError, ValueError) as error:
        port = address.rpartition(":")[2]
        raise ClusterError(
            f"{facts.name}: its port {port} cannot be reached from here ({error or 'no answer'}): open it, "
            "or name one that is open with cluster.port"
        ) from None


# A cluster that runs already.


@contextlib.asynccontextmanager
async def _by_scheduler(address: str) -> AsyncIterator[StartedHosts]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            await _require_listener(address)
        except (OSError, TimeoutError) as error:
            raise ClusterError(f"{address}: cannot be reached: {_why(error)}; is the scheduler running?") from None
        security = distributed.Security() if address.startswith("tls:") else None
        try:
            async with asyncio.timeout(2 * _SCHEDULER_S):
                client = await _client(address, security, stack)
        except Exception as error:  # noqa: BLE001 - Dask may raise anything for an answer that is not Dask's
            raise _no_scheduler(address, _why(error)) from None
        workers = _one_a_host(await _facts_by_worker(client, address))
        require_comparable([facts for facts, _ in workers])
        yield StartedHosts(client, workers, owned=False)


async def _require_listener(address: str) -> None:
    """Raise `OSError` or `TimeoutError` if nothing listens there, `ClusterError` if it is no Dask."""
    parts = urlsplit(address)
    async with asyncio.timeout(_REACH_S):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        if parts.scheme == "tcp":
            # Dask sends a greeting on connection; most other servers wait, and Dask's client would wait for them.
            async with asyncio.timeout(_REACH_S):
                await reader.readexactly(8)
    except (OSError, EOFError, TimeoutError):
        raise _no_scheduler(address, "it does not greet as Dask does") from None
    finally:
        writer.close()


def _no_scheduler(address: str, why: str) -> ClusterError:
    return ClusterError(
        f"{address}: what listens there is no Dask scheduler, or one of another version or with other certificates "
        f"than yours ({why})"
    )


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return error.strerror or "unknown host"
    return str(error).partition("\n")[0] or type(error).__name__


async def _facts_by_worker(client: distributed.Client, scheduler: str) -> dict[str, HostFacts]:
    """The facts of each Dask worker's machine, by the worker's address; raises `ClusterError`."""
    try:
        async with asyncio.timeout(_CALL_S):
            found = await client.run(as_json, "facts", on_error="return")
    except (OSError, TimeoutError, pickle.UnpicklingError) as error:
        raise ClusterError(f"{scheduler}: its workers do not answer: {_why(error)}") from None
    if not found:
        raise ClusterError(f"{scheduler}: has no workers yet; start some, and try again")
    problems = [
        f"{get_address_host(address)}: its Dask worker cannot load vramp ({_why(problem)}): "
        f"{how_to_install()} in its environment"
        for address, problem in found.items()
        if isinstance(problem, BaseException)
    ]
    if problems:
        raise ClusterError("\n".join(dict.fromkeys(problems)))
    try:
        return {address: _decoded(answer, HostFacts) for address, answer in found.items()}
    except ValueError as error:
        raise ClusterError(f"{scheduler}: a worker does not answer as vramp's: {error}") from None


def _one_a_host(found: dict[str, HostFacts]) -> tuple[tuple[HostFacts, str], ...]:
    """One Dask worker per machine, with the facts under the machine's own name."""
    chosen: dict[str, tuple[HostFacts, str]] = {}
    names: set[str] = set()
    for address, facts in sorted(found.items()):
        if facts.identity not in chosen:
            reached_at = get_address_host(address)
            name = facts.hostname if facts.hostname not in names else f"{facts.hostname} ({reached_at})"
            names.add(name)
            chosen[facts.identity] = (replace(facts, name=name, address=reached_at), address)
    return tuple(chosen.values())


# What they have to import and to reach.


async def _require_importable(client: distributed.Client, facts: HostFacts, address: str) -> None:
    """Raise `ClusterError` if the actor cannot be imported there: Dask would end the worker, and never say why."""
    try:
        async with asyncio.timeout(_ACTOR_S):
            problem = await ask(client, address, str, "import_problem", HostActor.__module__)
    except (KeyError, OSError, TimeoutError, ValueError) as error:
        problem = _why(error)
    if problem:
        why = harmless(problem).replace("\n", " ")
        raise ClusterError(f"{facts.name}: its Dask worker cannot load vramp ({why}): {how_to_install()} there")


async def require_reachable(hosts: StartedHosts, urls: Sequence[str]) -> None:
    """Raise `ClusterError` with a line for each host that cannot connect to one of the URLs."""
    await all_of(_require_urls(hosts.client, facts, address, urls) for facts, address in hosts.workers)


async def _require_urls(client: distributed.Client, facts: HostFacts, address: str, urls: Sequence[str]) -> None:
    for url in urls:  # one by one, as the Dask worker tries them: each has the whole time limit
        try:
            async with asyncio.timeout(_CALL_S):
                reached = await ask(client, address, Reached, "connect", *host_and_port(url))
        except (OSError, TimeoutError, ValueError) as error:
            raise ClusterError(
                f"{facts.name}: no longer answers ({_why(error)}): see whether it still runs and can be reached, "
                "and start again"
            ) from None
        if reached.problem:
            why = harmless(reached.problem)
            raise ClusterError(
                f"{facts.name}: cannot connect to {url} ({why}): give a URL that every host can reach; "
                "127.0.0.1 and localhost are each machine's own"
            )
