"""Builds the command lines and environment that start servers from `[server]`.

Pure apart from finding the executable: what is shown, recorded and run is the same list, and no shell ever sees it.
Several instances each get their own port and devices, in the order in which they are listed; a single one is left
exactly as the profile has it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.errors import ProfileError, ServerError
from loadgen.places import expanded
from loadgen.profile.schema import Docker, Server
from loadgen.server.vllm.flags import devices_each, list_form
from loadgen.system import inherited_environment
from loadgen.vendors import Vendor, vendor_of

CONTAINER_FLAGS = {
    "--ipc": "ipc",
    "--shm-size": "shm_size",
    "--gpus": "gpus",
    "--device": "devices",
    "--group-add": "groups",
    "--ulimit": "ulimits",
    "--cap-add": "capabilities",
    "--security-opt": "security_options",
    "--volume": "mounts",
}
"""Flags of `docker run`, and their keys in `[server.docker]`."""
_OWN_FLAGS = {"host": "server.host", "port": "server.port", "served-model-name": "server.served_model_name"}


def server_command(server: Server, *, port: int, known_by: Sequence[str] = ()) -> list[str]:
    """The argument list that starts this server on `port`; raises `ServerError` if its executable is missing.

    `known_by` are the flags that identify a container as ours.
    """
    name = server.served_model_name or (server.model if server.engine == "simulator" else None)
    named = ["--served-model-name", name] if name else []
    # In a separate network, a container's loopback is unreachable; its port is published on the host only.
    host = server.host if server.docker is None or server.docker.network == "host" else "0.0.0.0"  # noqa: S104
    flags = [word for name, value in server.args.items() for word in _flag(name.lstrip("-"), value)]
    return [*_head(server, port, known_by), "--host", host, "--port", str(port), *named, *flags]


def _head(server: Server, port: int, known_by: Sequence[str]) -> list[str]:
    if server.engine == "simulator":
        return [sys.executable, "-P", "-m", "loadgen.simulator"]
    assert server.model is not None, "a profile with engine vllm or docker has a model"
    model = expanded(server.model)
    if server.docker is not None:
        return [*run_command(server, server.docker, port, known_by), *server.docker.serve, model]
    return [find_vllm(server), "serve", model]


def server_environment(server: Server) -> dict[str, str]:
    """The environment of the server: vramp's own, overridden by the profile's."""
    return {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **inherited_environment(), **server.env}


def _flag(name: str, value: Any) -> list[str]:  # noqa: ANN401 - any of TOML's types
    if name in _OWN_FLAGS:
        raise ProfileError(f"server.args.{name}: vramp sets this flag itself; use {_OWN_FLAGS[name]}")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    form = list_form(None, name) if isinstance(value, list) else "json"
    values = [value] if form == "json" else value
    texts = [one if isinstance(one, str) else json.dumps(one) for one in values]
    if form == "several":
        return [f"--{name}", *texts]
    # A value that begins with a dash would be read as a flag.
    if not isinstance(value, list) and texts[0].startswith("-"):
        return [f"--{name}={texts[0]}"]
    return [word for text in texts for word in (f"--{name}", text)]


def run_command(server: Server, docker: Docker, port: int, known_by: Sequence[str]) -> list[str]:
    """`docker run` and its flags, up to the image; the command inside the container follows."""
    own_network = [] if docker.network == "host" else ["--publish", f"{server.host}:{port}:{port}"]
    given = docker.model_dump(exclude_none=True) | {"mounts": [expanded(mount) for mount in docker.mounts]}
    flags: list[str] = []
    for flag, key in CONTAINER_FLAGS.items():
        said = given.get(key, [])
        flags += [word for value in ([said] if isinstance(said, str) else said) for word in (flag, value)]
    return [
        *(find_container_program(server, docker), "run", "--rm", *known_by),
        *("--stop-signal", "SIGINT", "--network", docker.network, *own_network),
        *flags,
        # Names only: values are taken from the environment, so that no secret is in a command line.
        *(word for name in server.env for word in ("--env", name)),
        docker.image,
    ]


def find_vllm(server: Server) -> str:
    inside = os.path.join(expanded(server.command), "bin", "vllm")  # noqa: PTH118 - see `_is_there`
    return find_executable(server, inside if _is_there(inside) else server.command, key="server.command")


def find_container_program(server: Server, docker: Docker) -> str:
    return find_executable(server, docker.executable, key="server.docker.executable")


def find_executable(server: Server, name: str, *, key: str) -> str:
    """The path of a program, from the profile's PATH or ours; raises `ServerError` that names the profile's `key`."""
    command = expanded(name)
    search = server.env.get("PATH", os.environ.get("PATH", ""))
    # The folder of our own Python comes last: it has vllm if vramp runs from a virtual environment not activated.
    found = shutil.which(command, path=os.pathsep.join([search, str(Path(sys.executable).parent)]))
    if found is not None:
        return found
    if os.sep in command:
        reason = "is not executable" if _is_there(command) else "does not exist"
        raise ServerError(f"{key} = {name!r}: {reason}; give the path of the executable")
    remedy = "install docker or podman" if key != "server.command" else "install vLLM"
    raise ServerError(f'{key} = {name!r}: not found on PATH; {remedy}, or give its path, such as "~/vllm/bin/vllm"')


def _is_there(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises for what no file can be called


def instance_servers(server: Server) -> list[Server]:
    """One server per instance; raises `ProfileError` if ports or devices do not suffice."""
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


def _pinned(server: Server) -> list[dict[str, str]]:
    """The variables that give each instance its devices; empty if there is nothing to divide."""
    vendor = vendor_of(server.platform)
    if vendor is None or server.engine == "simulator":
        return [{} for _ in range(server.instances)]
    each = devices_each(server.args)
    devices = _devices(server, vendor, each * server.instances)
    slices = [devices[start : start + each] for start in range(0, each * server.instances, each)]
    return [dict.fromkeys(vendor.visible, ",".join(own)) for own in slices]


def _devices(server: Server, vendor: Vendor, needed: int) -> Sequence[str]:
    """The devices chosen for the server by a variable, or the first ones of the box."""
    # vramp's own environment is not passed to a container.
    environments = [server.env] if server.engine == "docker" else [server.env, os.environ]
    for name, environment in itertools.product(vendor.renumbering, environments):
        _listed(server, environment, name, needed)
    for environment, name in itertools.product(environments, vendor.visible):
        if chosen := _listed(server, environment, name, needed):
            return chosen
    return [str(number) for number in range(needed)]


def _listed(server: Server, environment: Mapping[str, str], name: str, needed: int) -> list[str]:
    listed = [device.strip() for device in environment.get(name, "").split(",") if device.strip()]
    if 0 < len(listed) < needed:  # vLLM treats an empty list as none
        raise ProfileError(
            f"server.instances = {server.instances}: they take {needed} devices, and {name} lists {len(listed)}; "
            "lower server.instances, or list more devices in server.env"
        )
    return listed
