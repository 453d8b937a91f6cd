"""Facts about this machine as a host of a cluster, and what it can reach: the functions that are called on hosts.

`python -m loadgen.cluster.facts` prints it as a line of JSON, for the machine at the other end of an SSH connection.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import loadgen
from loadgen.schema.shared import HostFacts
from loadgen.system import usable_cores
from loadgen.telemetry.backends import package_version

_CONNECT_S = 5.0
_MEASURING = ("stream", "worker", "workload", "schema", "metrics", "plan")
"""The folders of vramp whose code decides what is sent, how it is timed, and how figures are merged."""


def host_facts() -> HostFacts:
    """The facts of this machine; `address` is the one at which SSH reached it, if SSH did."""
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, _, address, *_ = [*os.environ.get("SSH_CONNECTION", "").split(), "", "", ""]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    first_port, last_port = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return HostFacts(
        name=socket.gethostname(),
        address=address,
        hostname=socket.gethostname(),
        # All names of a machine share it, and containers with separate networks do not.
        identity=f"{boot}-{Path('/proc/self/ns/net').stat().st_ino}",
        kernel=platform.release(),
        cores=usable_cores(),
        open_files=open_files,
        ports=last_port - first_port + 1,
        vramp=loadgen.__version__,
        python=platform.python_version(),
        distributed=package_version("distributed") or "",
        definitions=_definitions(),
    )


def _definitions() -> str:
    """A checksum of the code that measures, because builds of one version number can differ."""
    digest = hashlib.sha256()
    package = Path(loadgen.__file__).parent
    for folder in _MEASURING:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(str(path.relative_to(package)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def as_json(name: str, *words: Any) -> bytes:  # noqa: ANN401 - the arguments of any of them
    """What one of the functions that are called on hosts returns, as JSON: what a host sends is never unpickled."""
    return msgspec.json.encode(_CALLED_ON_HOSTS[name](*words))


class Reached(msgspec.Struct, frozen=True):
    """How long it took to connect somewhere, or why that failed."""

    ms: float = 0.0
    problem: str = ""


def connect(host: str, port: int) -> Reached:
    began_s = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Reached(problem=why)
    return Reached((time.monotonic() - began_s) * 1000.0)


def import_problem(module: str) -> str:
    """Why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


_CALLED_ON_HOSTS: dict[str, Callable[..., Any]] = {
    "connect": connect,
    "facts": host_facts,
    "import_problem": import_problem,
    "length": len,
    "monotonic_ns": time.monotonic_ns,
}


if __name__ == "__main__":
    print(msgspec.json.encode(host_facts()).decode(), flush=True)
