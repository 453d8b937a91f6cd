"""Where the programs are that a profile names."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from loadgen.errors import ServerError
from loadgen.profile import Server


def find_executable(server: Server, name: str, *, key: str) -> str:
    """The path of a program, on the profile's PATH or ours; raises `ServerError` that names the profile's `key`."""
    command = expanded(name)
    search = server.env.get("PATH", os.environ.get("PATH", ""))
    # Last, the folder of our own Python: vllm is there if vramp runs from a virtual environment that is not activated.
    found = shutil.which(command, path=os.pathsep.join([search, str(Path(sys.executable).parent)]))
    if found is not None:
        return found
    if os.sep in command:
        reason = "is not executable" if Path(command).exists() else "does not exist"
        raise ServerError(f"{key} = {name!r}: {reason}; give the path of the executable")
    remedy = "install docker or podman" if key != "server.command" else "install vLLM"
    raise ServerError(f'{key} = {name!r}: not found on PATH; {remedy}, or give its path, such as "~/vllm/bin/vllm"')


def vllm_of(command: str) -> str:
    """The executable of a Python environment, if its folder was named."""
    inside = Path(command).expanduser() / "bin" / "vllm"
    return str(inside) if inside.exists() else command


def expanded(text: str) -> str:
    """The text, or the path that a leading `~` stands for."""
    return str(Path(text).expanduser()) if text.startswith("~") else text
