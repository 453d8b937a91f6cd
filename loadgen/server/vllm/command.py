"""The command line and environment with which a server is started, from `[server]` of a profile.

Pure apart from looking for the executable: what is shown, recorded and run is the same list, and no shell ever sees it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from loadgen.errors import ProfileError
from loadgen.profile import Server
from loadgen.server.preflight.flags import list_form
from loadgen.server.process.container import run_command
from loadgen.server.process.executable import expanded, find_executable, vllm_of

_OWN_FLAGS = {"host": "server.host", "port": "server.port", "served-model-name": "server.served_model_name"}


def server_command(server: Server, *, port: int) -> list[str]:
    """The argument list that starts this server on `port`; raises `ServerError` if its executable is not there."""
    name = server.served_model_name or (server.model if server.engine == "simulator" else None)
    named = ["--served-model-name", name] if name else []
    return [*_head(server, port), "--host", _inner_host(server), "--port", str(port), *named, *_flags(server.args)]


def _head(server: Server, port: int) -> list[str]:
    if server.engine == "simulator":
        return [sys.executable, "-m", "loadgen.simulator"]
    assert server.model is not None, "a profile with engine vllm or docker has a model"
    model = expanded(server.model)
    if server.docker is not None:
        return [*run_command(server, server.docker, port), *server.docker.serve, model]
    return [find_executable(server, vllm_of(server.command), key="server.command"), "serve", model]


def _inner_host(server: Server) -> str:
    # Behind a network of its own, a container's loopback cannot be reached; its port is published on the host's only.
    return server.host if server.docker is None or server.docker.network == "host" else "0.0.0.0"  # noqa: S104


def server_environment(server: Server) -> dict[str, str]:
    """The environment of the server: vramp's own and what the profile sets, which wins."""
    return {"PYTHONUNBUFFERED": "1", **os.environ, **server.env}


def _flags(args: Mapping[str, Any]) -> list[str]:
    return [word for name, value in args.items() for word in _flag(name.lstrip("-"), value)]


def _flag(name: str, value: Any) -> list[str]:  # noqa: ANN401 - any of TOML's types
    if name in _OWN_FLAGS:
        raise ProfileError(f"server.args.{name}: vramp sets this flag itself; use {_OWN_FLAGS[name]}")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return _list_flag(name, value)
    text = _text(value)
    # A value that begins with a dash would be read as a flag of its own.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _list_flag(name: str, values: list[Any]) -> list[str]:
    """As JSON, repeated, or with several values, as the newest vLLM that is recorded wants it."""
    match list_form(None, name):
        case "json":
            return [f"--{name}", json.dumps(values)]
        case "repeat":
            return [word for value in values for word in (f"--{name}", _text(value))]
        case "several":
            return [f"--{name}", *(_text(value) for value in values)]


def _text(value: Any) -> str:  # noqa: ANN401 - any of TOML's types
    return value if isinstance(value, str) else json.dumps(value)
