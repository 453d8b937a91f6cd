"""The command line and environment with which a server is started, from `[server]` of a profile.

Pure apart from looking for the executable: what is shown, recorded and run is the same list, and no shell ever sees it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadgen.errors import ProfileError, ServerError
from loadgen.profile import Server

_OWN_FLAGS = {"host": "server.host", "port": "server.port", "served-model-name": "server.served_model_name"}


def server_command(server: Server, *, port: int) -> list[str]:
    """The argument list that starts this server on `port`; raises `ServerError` if its executable is not there."""
    where = ["--host", server.host, "--port", str(port)]
    if server.engine == "simulator":
        name = server.served_model_name or server.model
        head = [sys.executable, "-m", "loadgen.simulator"]
    else:
        assert server.model is not None, "a profile with engine vllm has a model"
        name = server.served_model_name
        head = [_executable(server), "serve", _expanded(server.model)]
    return [*head, *where, *(["--served-model-name", name] if name else []), *_flags(server.args)]


def server_environment(server: Server) -> dict[str, str]:
    """The environment of the server: vramp's own and what the profile sets, which wins."""
    return {"PYTHONUNBUFFERED": "1", **os.environ, **server.env}


def _executable(server: Server) -> str:
    command = _expanded(server.command)
    search = server.env.get("PATH", os.environ.get("PATH", ""))
    # Last, the folder of our own Python: vllm is there if vramp runs from a virtual environment that is not activated.
    found = shutil.which(command, path=os.pathsep.join([search, str(Path(sys.executable).parent)]))
    if found is not None:
        return found
    if os.sep in command:
        reason = "is not executable" if Path(command).exists() else "does not exist"
        raise ServerError(f"server.command = {server.command!r}: {reason}; give the path of the vllm executable")
    raise ServerError(
        f"server.command = {server.command!r}: not found on PATH; install vLLM, "
        'or give its path, such as command = "~/vllm/bin/vllm"'
    )


def _expanded(text: str) -> str:
    return str(Path(text).expanduser()) if text.startswith("~") else text


def _flags(args: Mapping[str, Any]) -> list[str]:
    return [word for name, value in args.items() for word in _flag(name.lstrip("-"), value)]


def _flag(name: str, value: Any) -> list[str]:  # noqa: ANN401 - any of TOML's types
    if name in _OWN_FLAGS:
        raise ProfileError(f"server.args.{name}: vramp sets this flag itself; use {_OWN_FLAGS[name]}")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(_text(entry) for entry in value)]
    text = _text(value)
    # A value that begins with a dash would be read as a flag of its own.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _text(value: Any) -> str:  # noqa: ANN401 - any of TOML's types
    return value if isinstance(value, str) else json.dumps(value)
