"""The table of a profile that says which machines send the load: `[cluster]`."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from loadgen.profile.load import Table

OWN_HOSTS_KEYS = ("python", "listen", "port")
"""Keys for the hosts that vramp reaches by SSH; an existing scheduler has its own."""

_HOST = re.compile(
    r"(?:[^\s@:\[\]-][^\s@:\[\]]*@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
_SCHEDULER = re.compile(r"(?:tcp|tls)://(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


class Cluster(Table):
    """The machines that send the load, in place of this one: see [Several machines](cluster.md)."""

    hosts: list[str] = []
    """`["a", "user@b:2222"]`: reached by SSH with your keys and `~/.ssh/config`; vramp must be installed there."""
    scheduler: str | None = None
    """`"tcp://10.0.0.1:8786"`, in place of `hosts`: the scheduler of a Dask cluster that runs already."""
    python: str | None = None
    """The Python on the hosts that has vramp; default: the path of this one, or that of the host's `vramp`, or
    `python3`."""
    on_loss: Literal["go-on", "rebalance", "end"] = "go-on"
    """What happens when a host is lost: the others go on with their own shares, take over its share, or the run
    ends."""
    listen: str | None = None
    """The address of this machine at which the hosts connect back; default: the one from which SSH reached them."""
    port: int = Field(default=0, ge=0, le=65535)
    """The port at which they connect back; 0 takes a free one."""

    @property
    def remote(self) -> bool:
        """Whether the load comes from other machines."""
        return bool(self.hosts) or self.scheduler is not None

    @property
    def exposed(self) -> str | None:
        """Why others on the network can read and change what goes to the hosts; None if they cannot."""
        scheduler = self.scheduler or ""
        host = scheduler.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        if not scheduler.startswith("tcp://") or host in ("localhost", "::1") or host.startswith("127."):
            return None
        return (
            f"{scheduler} is not encrypted: anybody on that network can read the API key and give orders to the hosts"
        )

    @model_validator(mode="after")
    def _hosts_or_a_scheduler(self) -> Self:
        if self.hosts and self.scheduler is not None:
            raise ValueError("hosts are reached by SSH, and scheduler is a cluster that runs already: give one of them")
        named = [key for key in OWN_HOSTS_KEYS if key in self.model_fields_set]
        if named and self.scheduler is not None:
            raise ValueError(f"{named[0]} is for hosts that vramp reaches by SSH; the scheduler has its own workers")
        if self.scheduler is not None and not _has_form(_SCHEDULER, self.scheduler):
            raise ValueError(f"scheduler must look like tcp://host:port or tls://host:port, not {self.scheduler!r}")
        for host in self.hosts:
            if not _has_form(_HOST, host):
                raise ValueError(f"a host must look like name, user@name or user@name:port, not {host!r}")
        twice = next((host for host in self.hosts if self.hosts.count(host) > 1), None)
        if twice is not None:
            raise ValueError(f"hosts names {twice} twice; each of them takes its share of the load once")
        return self


def _has_form(form: re.Pattern[str], text: str) -> bool:
    match = form.fullmatch(text)
    return match is not None and 1 <= int(match["port"] or 1) <= 65535
