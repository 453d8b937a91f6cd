"""Determines which of the box's GPUs a server uses, from the devices it is given.

Used by checks before a start, and for measurements. A runtime numbers the devices that are visible to it; each further
list of devices renumbers the rest from 0, and vLLM takes as many as its parallelism needs, from the first on.
Invariant: where a device is named in a way that is not understood here, the answer is None, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from loadgen.profile.schema import Server
from loadgen.schema.samples import GpuStatic
from loadgen.server.vllm.flags import devices_each
from loadgen.vendors import VENDORS, Vendor, is_partition, vendor_of


def environment_of(server: Server, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that the server will see; vramp's own environment is not passed to a container."""
    return {**({} if server.docker is not None else environ), **server.env}


def server_gpus(server: Server, environment: Mapping[str, str], gpus: Sequence[GpuStatic]) -> list[GpuStatic] | None:
    """The GPUs that the server and its instances will use; None if unknown, or if some are split into partitions.

    `environment` is the server's. Raises `ProfileError` for parallel sizes that are not numbers.
    """
    needed = devices_each(server.args) * server.instances
    if any(gpu.engine_devices > 1 or is_partition(gpu.compute_partition) for gpu in gpus):
        return None
    devices = server_devices(server, environment, gpus)
    return None if devices is None else devices[:needed]


def given_indices(
    servers: Iterable[Server], gpus: Sequence[GpuStatic], environ: Mapping[str, str] = os.environ
) -> tuple[int, ...] | None:
    """The numbers of the measured GPUs that these servers use; None if unknown.

    Each server has separate devices, as assigned by `instance_servers`; `environ` is vramp's environment.
    """
    found: set[int] = set()
    for server in servers:
        devices = server_devices(server, environment_of(server, environ), gpus)
        needed = devices_each(server.args)
        if devices is None or len(devices) < needed:
            return None
        found |= {device.index for device in devices[:needed]}
    return tuple(sorted(found))


def server_devices(server: Server, environment: Mapping[str, str], gpus: Sequence[GpuStatic]) -> list[GpuStatic] | None:
    """The GPUs of the devices that the server may use, in its order, one for each partition; None if unknown.

    `environment` is the server's.
    """
    names = {gpu.vendor for gpu in gpus}
    measured = [vendor for vendor in VENDORS if vendor.name in names]
    vendor = vendor_of(server.platform) or (measured[0] if len(measured) == 1 else None)
    own = [gpu for gpu in gpus if vendor is not None and gpu.vendor == vendor.name]
    if vendor is None or not own:
        return None
    seen = [gpu for gpu in sorted(own, key=lambda gpu: gpu.engine_index or 0) for _ in range(gpu.engine_devices)]
    numbered = all(gpu.engine_index is not None for gpu in own)  # whether they are in the runtime's order
    files = [word.partition(":")[0] for word in server.docker.devices] if server.docker is not None else []
    if any("/renderD" in file for file in files):
        if not all(device.device_file for device in seen):
            return None
        seen = [device for device in seen if device.device_file in files]
    for words in _lists(server, vendor, environment):
        if not numbered and any(word.isdecimal() for word in words):
            return None
        named = [_named(word, seen) for word in words]
        seen, numbered = [device for device in named if device is not None], True
        if len(seen) < len(named):
            return None
    return seen if numbered else None


def _lists(server: Server, vendor: Vendor, environment: Mapping[str, str]) -> Iterator[list[str]]:
    """The lists of devices, outermost first: a container's, then those in variables."""
    if server.docker is not None:
        of_image = environment.get("NVIDIA_VISIBLE_DEVICES") if vendor.platform == "cuda" else None
        requested = server.docker.gpus or of_image or "all"
        if requested != "all":
            if requested == server.docker.gpus and requested.isdecimal():
                yield list(map(str, range(int(requested))))
            else:
                listed = re.search(r"device=([^\"']+)", requested)
                yield _words(listed[1] if listed is not None else requested)
    for names in (vendor.renumbering, vendor.visible):
        listing = next((environment[name] for name in names if environment.get(name)), None)
        if listing is not None:
            yield _words(listing)


def _words(listing: str) -> list[str]:
    return [word.strip() for word in listing.split(",")]


def _named(word: str, seen: Sequence[GpuStatic]) -> GpuStatic | None:
    """The device with a number or name; an unambiguous beginning of a name is enough."""
    if word.isdecimal():
        return seen[int(word)] if int(word) < len(seen) else None
    found = [gpu for gpu in dict.fromkeys(seen) if "-" in word and (gpu.engine_name or "").startswith(word)]
    return found[0] if len(found) == 1 else None
