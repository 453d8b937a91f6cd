"""`vramp check --hosts`: whether each host can take part, and what it can bring to the load."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence

import distributed

from loadgen.cluster.clock import ClockOffset
from loadgen.cluster.facts import Reached
from loadgen.cluster.start import ask, send_logs_to, started
from loadgen.errors import ClusterError
from loadgen.format import harmless
from loadgen.plan.stage import SLOW_TOKEN_S, Stage, streams_of
from loadgen.profile.schema import Profile
from loadgen.schema.finding import Finding
from loadgen.schema.shared import HostFacts
from loadgen.stream.request import host_and_port

_ANSWER_S = 30.0
_PROBES = 20
_PAYLOAD_BYTES = 4 << 20
_SPARE_FILES = 64


async def check_hosts(profile: Profile, plan: Sequence[Stage]) -> list[Finding]:
    """A finding for each host, and for each thing that keeps one from taking part."""
    send_logs_to(logging.NullHandler())
    try:
        async with started(profile.cluster) as there:
            streams = max((streams_of(stage, SLOW_TOKEN_S) for stage in plan), default=0) // len(there.workers)
            found = []
            if profile.cluster.exposed is not None:
                fix = "have the scheduler listen at tls://, with certificates (distributed.comm.tls)"
                why = "keys and orders travel there"
                found.append(Finding("host-plain", "warns", profile.cluster.exposed, why, fix))
            for facts, address in there.workers:
                found += limit_findings(facts, streams)
                found += await _looked_at(there.client, facts, address, profile.server.attached)
            return found
    except ClusterError as error:
        why = "the load cannot come from these hosts, and nothing is sent"
        found = []
        for line in str(error).splitlines():
            seen, separator, fix = line.rpartition("): ")
            found.append(Finding("host", "blocks", f"{seen})" if separator else line, why, fix if separator else ""))
        return found


def limit_findings(facts: HostFacts, streams: int) -> list[Finding]:
    """Whether a host can hold its share of the streams."""
    found = []
    if facts.open_files < streams + _SPARE_FILES:
        seen = f"{facts.name}: a process may have {facts.open_files} files open, and its share is {streams} streams"
        fix = "raise the hard limit there (ulimit -Hn, /etc/security/limits.conf), or name more hosts"
        found.append(Finding("host-open-files", "warns", seen, "each stream is an open file", fix))
    if facts.ports < streams:
        seen = f"{facts.name}: has {facts.ports} local ports, and its share is {streams} streams"
        fix = "widen net.ipv4.ip_local_port_range there, or name more hosts"
        found.append(Finding("host-ports", "warns", seen, "each stream to a server takes a local port", fix))
    return found


async def _looked_at(client: distributed.Client, facts: HostFacts, address: str, urls: Sequence[str]) -> list[Finding]:
    try:
        async with asyncio.timeout(_ANSWER_S):
            return [one async for one in _measured(client, facts, address, urls)]
    except (OSError, KeyError, TimeoutError, ValueError) as error:
        why = f"no answer within {_ANSWER_S:g} s" if isinstance(error, TimeoutError) else str(error)
        seen = f"{facts.name}: answered at first, and no longer does ({why})"
        return [Finding("host", "blocks", seen, "a host that is lost ends its share of the load", "see what ended it")]


async def _measured(
    client: distributed.Client, facts: HostFacts, address: str, urls: Sequence[str]
) -> AsyncIterator[Finding]:
    clock, rtt_ns = ClockOffset(), []
    for _ in range(_PROBES):
        sent_ns = time.monotonic_ns()
        there_ns = await ask(client, address, int, "monotonic_ns")
        back_ns = time.monotonic_ns()
        clock.add(sent_ns, there_ns, there_ns, back_ns)
        rtt_ns.append(back_ns - sent_ns)
    began_s = time.monotonic()
    await ask(client, address, int, "length", os.urandom(_PAYLOAD_BYTES))
    megabytes_per_s = _PAYLOAD_BYTES / 1e6 / (time.monotonic() - began_s)
    reached = []
    for url in urls:
        there = await ask(client, address, Reached, "connect", *host_and_port(url))
        if there.problem:
            seen = f"{facts.name}: cannot connect to {url} ({harmless(there.problem)})"
            yield Finding(
                "host-server", "blocks", seen, "it sends its load there", "give a URL that every host reaches"
            )
        else:
            reached.append(f"connects to {url} in {there.ms:.2f} ms")
    seen = (
        f"{facts.name} ({facts.address}): {facts.cores:g} cores, {facts.open_files} open files, {facts.ports} local "
        f"ports; round trip {min(rtt_ns) / 1e6:.2f} ms and {megabytes_per_s:.0f} MB/s through Dask; clock "
        f"{clock.offset_ns / 1e6:+.2f} ms from ours, to {clock.uncertainty_ns / 1e6:.2f} ms"
    )
    versions = f"vramp {facts.vramp}, Python {facts.python}, distributed {facts.distributed}, Linux {facts.kernel}"
    yield Finding("host", "info", "; ".join([seen, *reached]), f"it can take part: {versions}")
