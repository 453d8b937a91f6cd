"""Several servers of one profile: each with its own port and its own devices.

One server with everything it sees is the usual case and is left exactly as the profile has it. Devices are shared out
in the order in which they are listed, so that those of one instance are neighbours.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from loadgen.errors import ProfileError
from loadgen.profile import Server

# vLLM on ROCm refuses to start when both of its variables are set and differ.
_VISIBLE = {"rocm": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), "cuda": ("CUDA_VISIBLE_DEVICES",)}
_RENUMBERING = {"rocm": ("ROCR_VISIBLE_DEVICES",)}
"""Variables below the others: what they leave is numbered from 0 again."""
_PARALLEL = (
    ("tensor-parallel-size", "tensor-parallel", "tp"),
    ("pipeline-parallel-size", "pipeline-parallel", "pp"),
    ("data-parallel-size", "dp"),
    ("prefill-context-parallel-size", "pcp"),
)


def instance_servers(server: Server) -> list[Server]:
    """One server for each instance; raises `ProfileError` if ports or devices do not suffice."""
    if server.instances == 1:
        return [server]
    if server.port + server.instances - 1 > 65535:
        raise ProfileError(
            f"server.port = {server.port}: {server.instances} instances need as many ports from there on"
        )
    return [
        server.model_copy(
            update={"instances": 1, "port": server.port and server.port + number, "env": server.env | pinned}
        )
        for number, pinned in enumerate(_pinned(server))
    ]


def devices_each(args: Mapping[str, Any]) -> int:
    """How many devices a server with these flags takes; raises `ProfileError` for what is no number."""
    given = {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}
    return math.prod(_size(name, given[name]) for names in _PARALLEL for name in names if name in given)


def _size(name: str, value: Any) -> int:  # noqa: ANN401 - any of TOML's types
    if not str(value).isdecimal() or int(value) < 1:
        raise ProfileError(f"server.args.{name} = {value!r}: expected a whole number of at least 1")
    return int(value)


def _pinned(server: Server) -> list[dict[str, str]]:
    """The variables that give each instance its devices; none where there is nothing to share out."""
    platform = server.platform or ""
    if platform not in _VISIBLE or server.engine == "simulator":
        return [{} for _ in range(server.instances)]
    each = devices_each(server.args)
    devices = _devices(server, platform, each * server.instances)
    slices = [devices[start : start + each] for start in range(0, each * server.instances, each)]
    return [dict.fromkeys(_VISIBLE[platform], ",".join(own)) for own in slices]


def _devices(server: Server, platform: str, needed: int) -> Sequence[str]:
    """The devices that somebody chose for the server, or the first of the box."""
    # What is set around vramp does not get into a container.
    environments = [server.env] if server.engine == "docker" else [server.env, os.environ]
    for name, environment in itertools.product(_RENUMBERING.get(platform, ()), environments):
        _require(server, needed, name, _listed(environment, name))
    for environment, name in itertools.product(environments, _VISIBLE[platform]):
        chosen = _listed(environment, name)
        if chosen:
            _require(server, needed, name, chosen)
            return chosen
    return [str(number) for number in range(needed)]


def _listed(environment: Mapping[str, str], name: str) -> list[str]:
    return [device.strip() for device in environment.get(name, "").split(",") if device.strip()]


def _require(server: Server, needed: int, name: str, listed: list[str]) -> None:
    # To vLLM, an empty list is none.
    if 0 < len(listed) < needed:
        raise ProfileError(
            f"server.instances = {server.instances}: they take {needed} devices, and {name} lists {len(listed)}; "
            "lower server.instances, or list more devices in server.env"
        )
