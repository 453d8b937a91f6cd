"""Which of the GPUs that telemetry measures are a server's, by the devices that it was given.

A runtime numbers the devices that it may use, each list of devices below it numbers what is left from 0 again, and vLLM
takes the first of them, as many as its parallelism needs. Invariant: a device that is named in a way that telemetry
does not know makes the answer None, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from loadgen.metrics.samples import GpuStatic
from loadgen.profile.schema import Server
from loadgen.server.vllm.command import devices_each
from loadgen.vendors import VENDORS, Vendor, vendor_of


def given_indices(
    servers: Iterable[Server], gpus: Sequence[GpuStatic], environ: Mapping[str, str] = os.environ
) -> tuple[int, ...] | None:
    """The numbers of the GPUs that these servers take; None if that cannot be told.

    Each has devices of its own, as `instance_servers` shares them out; `environ` is vramp's.
    """
    found: set[int] = set()
    for server in servers:
        seen, needed = _seen(server, gpus, environ), devices_each(server.args)
        if seen is None or len(seen) < needed:
            return None
        found |= {gpu.index for gpu in seen[:needed]}
    return tuple(sorted(found))


def _seen(server: Server, gpus: Sequence[GpuStatic], environ: Mapping[str, str]) -> list[GpuStatic] | None:
    """The devices as the server's process numbers them; one that stands for several is there so often."""
    vendor = _vendor(server, gpus)
    devices = [gpu for gpu in gpus if vendor is not None and gpu.vendor == vendor.name]
    if vendor is None or not devices:
        return None
    numbered = all(gpu.engine_index is not None for gpu in devices)
    seen = [gpu for gpu in sorted(devices, key=lambda gpu: gpu.engine_index or 0) for _ in range(gpu.engine_devices)]
    files = [word.partition(":")[0] for word in server.docker.devices] if server.docker is not None else []
    if any("/renderD" in file for file in files):
        seen = [gpu for gpu in seen if gpu.device_file in files]
    for words in _lists(server, vendor, environ):
        if not numbered and any(word.isdecimal() for word in words):
            return None
        named = [_named(word, seen) for word in words]
        seen, numbered = [gpu for gpu in named if gpu is not None], True
        if len(seen) < len(named):
            return None
    return seen if numbered else None


def _vendor(server: Server, gpus: Sequence[GpuStatic]) -> Vendor | None:
    names = {gpu.vendor for gpu in gpus}
    measured = [vendor for vendor in VENDORS if vendor.name in names]
    return vendor_of(server.platform) or (measured[0] if len(measured) == 1 else None)


def _lists(server: Server, vendor: Vendor, environ: Mapping[str, str]) -> Iterator[list[str]]:
    """What was said about devices, from the outside to the inside: a container's, then the variables."""
    environment = {**environ, **server.env}
    if server.docker is not None:
        environment = server.env  # vramp's own gets into no container
        asked = server.docker.gpus or server.env.get("NVIDIA_VISIBLE_DEVICES") or "all"
        if vendor.platform == "cuda" and asked != "all":
            listed = re.search(r"device=([^\"']+)", asked)
            count = int(asked) if asked == server.docker.gpus and asked.isdecimal() else None
            yield _words(listed[1] if listed is not None else asked) if count is None else list(map(str, range(count)))
    for names in (vendor.renumbering, vendor.visible):
        listing = next((environment[name] for name in names if environment.get(name)), None)
        if listing is not None:
            yield _words(listing)


def _words(listing: str) -> list[str]:
    return [word.strip() for word in listing.split(",")]


def _named(word: str, seen: Sequence[GpuStatic]) -> GpuStatic | None:
    """The device of a number, or of a name, of which a beginning is enough if it is that of one device only."""
    if word.isdecimal():
        return seen[int(word)] if int(word) < len(seen) else None
    found = [gpu for gpu in dict.fromkeys(seen) if "-" in word and (gpu.engine_name or "").startswith(word)]
    return found[0] if len(found) == 1 else None
