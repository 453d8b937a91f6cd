"""The faults: one row each, with what vramp's answer to it has to be.

Exit code 0 is always right: a fault may come when it no longer matters. `says` is what the message has to match if the
fault alone came under load and the run did not end well.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Literal

from tests.faults import strikes
from tests.faults.subject import Mode, Role, ServerMode, Subject

Moment = Literal["start", "load", "stop"]
KILLED = -signal.SIGKILL
INTERRUPTED = 130
FAILED, USAGE, NO_SERVER = 1, 2, 3  # `docs/results.md` has them all
_ANY_SERVER: tuple[ServerMode, ...] = ("managed", "attached", "relayed", "tls")
_ENDS = (FAILED, NO_SERVER)


@dataclass(frozen=True)
class Kind:
    name: str
    what: str  # is done, for the table of the manual
    strike: Callable[[Subject, Random], bool]
    codes: tuple[int, ...] = ()  # besides 0
    says: str = ""  # a pattern, without regard to case
    moments: tuple[Moment, ...] = ("start", "load", "stop")
    modes: tuple[Mode, ...] = ("headless", "cockpit")
    servers: tuple[ServerMode, ...] = _ANY_SERVER
    preload: bool = False  # needs the libraries that break calls and move clocks

    @property
    def group(self) -> str:
        """Two of one group are no pair."""
        return self.name.partition(":")[0]


# Processes. The guard and the server take SIGTERM, SIGINT and SIGHUP as a wish to end.

_ROLES: dict[Role, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    # exit codes after kill -9 and the like, after the other signals, and what the message says of a death
    "vramp": ((KILLED,), (INTERRUPTED,), ""),
    "guard": (_ENDS, _ENDS, "guard|server"),
    "worker": (_ENDS, _ENDS, r"worker \d"),
    "server": (_ENDS, _ENDS, "server|engine"),
    "engine": ((), (), ""),  # a process of the server's that ignores SIGTERM and outlives it, as vLLM's may
    "telemetry": ((), (), ""),  # the run goes on without
    "browser": ((), (), ""),
}
_SIGNALS: dict[str, tuple[int, ...]] = {
    "kill -9": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGHUP": (signal.SIGHUP,),
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
}


def _of_processes() -> list[Kind]:
    kinds = []
    for role, (killed, requested, says) in _ROLES.items():
        modes: tuple[Mode, ...] = ("web",) if role == "browser" else ("headless", "cockpit", "web")
        servers = _ANY_SERVER if role in ("vramp", "worker", "telemetry") else ("managed",)
        row = partial(Kind, modes=modes, servers=servers)
        for name, numbers in _SIGNALS.items():
            codes, words = (killed, says) if numbers[0] == signal.SIGKILL else (requested, "")
            kinds.append(
                row(
                    f"{role}: {name}",
                    f"{name} to one of them" if role == "worker" else name,
                    partial(strikes.send, role, numbers),
                    codes,
                    words,
                )
            )
        pause, stop = partial(strikes.pause, role), partial(strikes.stop, role)
        kinds.append(row(f"{role}: pause", "SIGSTOP, and SIGCONT after 0.3 to 7 s", pause, requested))
        what = "SIGSTOP, kill -9 after 2 s" if role == "vramp" else "SIGSTOP for good"
        kinds.append(row(f"{role}: SIGSTOP", what, stop, killed, says if role == "worker" else ""))
    return kinds


# Everything else.

_DISK = (FAILED, USAGE, NO_SERVER)  # usage: there is no place for the result, so that nothing is started
_OUTPUTS = (
    Kind(
        "output: closed", "the terminal closes, or who reads the pipe goes", strikes.close_output, (INTERRUPTED, FAILED)
    ),
    Kind("output: unread", "nobody reads, for 3 s or for good", strikes.leave_unread, (INTERRUPTED, FAILED)),
    Kind("output: 1x1", "the terminal shrinks to one cell", strikes.shrink, modes=("cockpit",)),
)
_DISKS = (
    Kind("disk: full", "no block is left", strikes.fill_disk, _DISK, "no space"),
    Kind("disk: no inodes", "no file can be made", strikes.take_inodes, _DISK, "no space"),
    Kind("disk: read-only", "remounted: what is opened from now on", strikes.make_read_only, _DISK, "read-only"),
    Kind("disk: removed", "the run's folder, or all runs", strikes.remove_folder, _DISK),
    Kind(
        *("disk: write fails", "each write to a file: EROFS", partial(strikes.break_calls, errno.EROFS, 0)),
        *(_DISK, "read-only"),
        preload=True,
    ),
    Kind("disk: fsync fails", "each fsync: EIO", partial(strikes.break_calls, 0, errno.EIO), _DISK, preload=True),
)
_LIMITS = (
    Kind(
        *("limit: vramp's descriptors", "it may open 0 to 5 more", partial(strikes.take_descriptors, "vramp")),
        *(_ENDS, "too many open files|cannot"),
    ),
    Kind("limit: worker's descriptors", "it may open 0 to 5 more", partial(strikes.take_descriptors, "worker"), _ENDS),
    Kind("limit: vramp's memory", "a control group of 1 MiB", partial(strikes.take_memory, "vramp"), (KILLED,)),
    Kind("limit: workers' memory", "a control group of 1 MiB", partial(strikes.take_memory, "worker"), _ENDS, "worker"),
    Kind(
        *(
            "limit: server's memory",
            "a control group of 1 MiB",
            partial(strikes.take_memory, "server"),
            _ENDS,
            "server",
        ),
        servers=("managed",),
    ),
    Kind(
        *("limit: vramp's address space", "RLIMIT_AS", partial(strikes.take_address_space, "vramp"), _ENDS),
        moments=("load", "stop"),
    ),
    Kind(
        *("limit: worker's address space", "RLIMIT_AS", partial(strikes.take_address_space, "worker"), _ENDS),
        moments=("load", "stop"),
    ),
    Kind("limit: processes", "a control group with room for 0 to 3 more", strikes.take_pids, (*_ENDS, INTERRUPTED)),
)
_CLOCKS = (
    Kind("clock: wall", "the time of day is stepped", strikes.step_wall, _ENDS, preload=True),
    Kind("clock: monotonic", "as if the machine was paused", strikes.step_monotonic, _ENDS, preload=True),
)
_PORTS = (
    Kind(
        *("port: stolen", "another listens between check and start", strikes.steal_port, (NO_SERVER,), "port|in use"),
        moments=("start",),
        servers=("managed",),
    ),
    Kind(
        *("port: two vramps", "two at the same instant", strikes.start_twin, _ENDS),
        moments=("start",),
        modes=("headless",),
        servers=("managed",),
    ),
)


def _of_servers() -> list[Kind]:
    """What the simulator does by itself, and what only a relay in front of it does."""
    simulated = {
        "reset": ("connections are reset", "reset|connection", ("reset:after=3", "reset:share=0.3,after=2")),
        "429": ("status 429", "429", ("http_429", "http_429:share=0.5")),
        "garbage": ("events that are not JSON", "json|event|invalid", ("garbage", "garbage:share=0.3")),
        "not HTTP": ("answers that are not HTTP", "http", ("not_http", "not_http:share=0.3")),
        "silent": ("not a byte, or no more", "stall|no event|timeout", ("silent:share=0.3", "stall:share=0.5,after=3")),
        "truncated": ("streams end too early", "closed|end|incomplete", ("truncate", "early_end:share=0.4")),
    }
    relayed = {
        "slow headers": "a byte every 0.1 s",
        "endless event": "an event without an end",
        "wrong length": "a body shorter than promised",
        "compressed": "gzip, which nobody asked for",
        "redirect": "status 307",
        "broken TLS": "bytes that are no record, in mid-stream",
    }
    kinds = [
        Kind(
            *(f"server: {name}", what, partial(strikes.misbehave, texts), _ENDS, says),
            moments=("start", "load"),
            servers=("managed", "attached"),
        )
        for name, (what, says, texts) in simulated.items()
    ]
    for name, what in relayed.items():
        servers: tuple[ServerMode, ...] = ("tls",) if name == "broken TLS" else ("relayed",)
        strike = partial(strikes.spoil, name)
        kinds.append(Kind(f"server: {name}", what, strike, _ENDS, moments=("load",), servers=servers))
    gone = Kind("server: half-open", "packets to it vanish (iptables)", strikes.drop_packets, _ENDS)
    again = "killed, and mostly started again"
    return [
        *kinds,
        replace(gone, servers=("managed", "attached")),
        Kind(
            "server: restarted", again, strikes.restart_server, _ENDS, moments=("load", "stop"), servers=("attached",)
        ),
    ]


KINDS = (*_of_processes(), *_OUTPUTS, *_DISKS, *_LIMITS, *_CLOCKS, *_PORTS, *_of_servers())
