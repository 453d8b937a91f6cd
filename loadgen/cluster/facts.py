"""What a host is: found on the host itself, and compared with the operator's machine before anything is sent.

`python -m loadgen.cluster.facts` prints it as a line of JSON.
"""

from __future__ import annotations

import platform
import resource
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import msgspec

from loadgen import __version__
from loadgen.cores import usable_cores
from loadgen.metrics.journal import HostFacts
from loadgen.metrics.result import SCHEMA


def host_facts(name: str = "", address: str = "") -> HostFacts:
    """The facts of this machine, known to the operator by `name`."""
    return HostFacts(
        name=name or socket.gethostname(),
        address=address,
        hostname=socket.gethostname(),
        identity=_identity(),
        kernel=platform.release(),
        cores=usable_cores(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        ports=_local_ports(),
        vramp=__version__,
        python=platform.python_version(),
        distributed=version("distributed"),
        definitions=SCHEMA,
    )


def _identity() -> str:
    """One for each machine and network: containers of a machine differ by their networks."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/net').readlink()}"


def _local_ports() -> int:
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(last) - int(first) + 1


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(host_facts()).decode() + "\n")
