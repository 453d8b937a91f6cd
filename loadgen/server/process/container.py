"""The container in which engine `docker` runs a server: how it is started, and how it is stopped by its name."""

from __future__ import annotations

import os
from collections.abc import Iterable

from loadgen.profile import Docker, Server
from loadgen.server.process.executable import expanded, find_executable

_KEY = "server.docker.executable"


def container_name(port: int) -> str:
    """The name of the container whose server listens on `port`: by it, it is stopped, so it must be nobody else's."""
    return f"vramp-{port}-{os.getpid()}"


def stop_commands(server: Server, *, port: int) -> tuple[list[str], list[str]] | None:
    """What asks a container to end, and what ends it; None for servers that are plain processes."""
    if server.docker is None:
        return None
    executable, name = find_executable(server, server.docker.executable, key=_KEY), container_name(port)
    return [executable, "stop", "-t", str(round(server.stop_timeout_s)), name], [executable, "rm", "--force", name]


def run_command(server: Server, docker: Docker, port: int) -> list[str]:
    """`docker run` and its flags, up to the image; what the container executes comes after it."""
    executable = find_executable(server, docker.executable, key=_KEY)
    own_network = [] if docker.network == "host" else ["--publish", f"{server.host}:{port}:{port}"]
    return [
        *(executable, "run", "--rm", "--name", container_name(port), "--stop-signal", "SIGINT"),
        *("--network", docker.network, *own_network),
        *_each("--ipc", [docker.ipc]),
        *_each("--shm-size", [docker.shm_size]),
        *_each("--gpus", [docker.gpus]),
        *_each("--device", docker.devices),
        *_each("--group-add", docker.groups),
        *_each("--cap-add", docker.capabilities),
        *_each("--security-opt", docker.security_options),
        *_each("--volume", [expanded(mount) for mount in docker.mounts]),
        # Names only: the values come from the environment, so that no secret stands in a command line.
        *_each("--env", server.env),
        docker.image,
    ]


def _each(flag: str, values: Iterable[str | None]) -> list[str]:
    return [word for value in values if value is not None for word in (flag, value)]
