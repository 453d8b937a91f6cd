"""A host that is reached by SSH: its Python, its facts, and the process that runs there for as long as this one.

Uses the operator's `~/.ssh/config`, agent, keys and known hosts, and adds none. Invariant: what is started on a host
ends when the connection does, whoever ended that.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncssh
import msgspec
from msgspec.structs import replace

import loadgen
from loadgen.cluster.dask_worker import SILENCE_S, JoinAnswer, JoinOrders
from loadgen.errors import UNDECODABLE, ClusterError
from loadgen.format import harmless
from loadgen.schema.shared import HostFacts

_CONNECT_S = 15.0
_COMMAND_S = 30.0  # Python on a slow disk, with everything cold
_START_S = 45.0
_BEAT_S = 2.0
_END_S = 3.0
_NO_PYTHON = 3
_LAST_LINES = 20

_FACTS_SCRIPT = f"""\
named="$1"; shift
[ -n "$named" ] || set -- "$@" "$(sed -n '1s/^#! *//p' "$(command -v vramp)" 2>/dev/null)" python3
for python in ${{named:+"$named"}} "$@"; do
  command -v "$python" >/dev/null 2>&1 || continue
  tried="$tried $python"
  version=$("$python" -c 'import loadgen; print(loadgen.__version__)' 2>/dev/null </dev/null) || continue
  echo "vramp-python $python"
  echo "vramp-version $version"
  exec "$python" -P -m loadgen.cluster.facts </dev/null
done
echo "$tried" >&2
exit {_NO_PYTHON}
"""
"""Finds a Python that has vramp and prints its path, its version, and the facts unless it is older than they are."""


@dataclass(frozen=True)
class SshHost:
    name: str
    connection: asyncssh.SSHClientConnection
    python: str
    facts: HostFacts
    operator_address: str  # from which it was reached


@contextlib.asynccontextmanager
async def connected_to(name: str, python: str | None) -> AsyncIterator[SshHost]:
    """The host `[user@]name[:port]`, with its Python, `python` if that is named; raises `ClusterError`."""
    user, _, rest = name.rpartition("@")
    host, separator, port = rest.rpartition(":")
    if not separator or rest.endswith("]"):
        host, port = rest, ""
    try:
        async with asyncio.timeout(_CONNECT_S):
            connection = await asyncssh.connect(
                host.strip("[]"),
                port=int(port) if port else (),
                username=user or (),
                keepalive_interval=SILENCE_S / 2,
                keepalive_count_max=2,
            )
    except (OSError, TimeoutError, asyncssh.Error, ValueError) as error:
        raise ClusterError(f"{name}: {_ssh_problem(error, name)}") from None
    try:
        yield await find_vramp(name, connection, python)
    finally:
        connection.abort()


def _ssh_problem(error: Exception, name: str) -> str:
    reported = harmless(str(error)).partition("\n")[0]
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return f"its host key is unknown, or differs from the known one ({reported}): check it with ssh {name}"
        case asyncssh.PermissionDenied():
            return f"SSH refused your keys: make `ssh {name} true` work without a password first, with ssh-copy-id"
        case TimeoutError():
            return f"no answer by SSH within {_CONNECT_S:g} s: check the name, and that port 22 (or yours) is open"
        case OSError():
            return f"cannot be reached by SSH: {error.strerror or reported}"
        case asyncssh.Error():
            return f"SSH failed: {reported}"
    return f"SSH cannot be used: {reported}; look at ~/.ssh/config"


async def find_vramp(name: str, connection: asyncssh.SSHClientConnection, python: str | None) -> SshHost:
    """The host with its Python and its facts; raises `ClusterError`."""
    words = ["sh", "-c", _FACTS_SCRIPT, "sh", python or "", *([] if python else [sys.executable])]
    try:
        done = await connection.run(f"exec {shlex.join(words)}", timeout=_COMMAND_S, stdin=asyncssh.DEVNULL)
    except (OSError, asyncssh.Error, asyncssh.TimeoutError) as error:
        why = "no answer in time" if isinstance(error, asyncssh.TimeoutError) else harmless(str(error))
        raise ClusterError(f"{name}: no command could be run there: {why}") from None
    lines, complaint = str(done.stdout or "").splitlines(), str(done.stderr or "")
    reported = dict(line.split(" ", 1) for line in lines if line.startswith("vramp-") and " " in line)
    if "vramp-python" not in reported:
        raise ClusterError(f"{name}: {_no_vramp(python, done.exit_status, complaint)}")
    version = reported.get("vramp-version", "")
    if version != loadgen.__version__:
        # Checked before the facts, which an older vramp may lack.
        raise ClusterError(f"{name}: {another_vramp(version)}")
    try:
        facts = msgspec.json.decode(next((line for line in lines if line.startswith("{")), ""), type=HostFacts)
    except UNDECODABLE:
        why = harmless(complaint.strip().rpartition("\n")[2]) or "it said nothing"
        raise ClusterError(f"{name}: vramp does not run with {reported['vramp-python']}: {why}") from None
    reached = facts.address or str(connection.get_extra_info("peername", ("",))[0])
    ours = connection.get_extra_info("sockname") or ("",)
    return SshHost(name, connection, reported["vramp-python"], replace(facts, name=name, address=reached), str(ours[0]))


def _no_vramp(python: str | None, status: int | None, complaint: str) -> str:
    if status != _NO_PYTHON:
        return f"its shell does not run commands: {harmless(complaint.strip().partition(chr(10))[0]) or status}"
    tried = ", ".join(harmless(complaint.strip().rpartition("\n")[2]).split())
    where = f"cluster.python = {python}" if python else "the same path as here, vramp on the PATH, python3"
    found = f"{tried} has no vramp" if tried else "there is no such Python"
    return f"{found} ({where}): {how_to_install()} there, or name its Python with cluster.python"


def how_to_install() -> str:
    return f"pip install '.[cluster]' in a checkout of vramp {loadgen.__version__}"


def another_vramp(version: str) -> str:
    return f"has vramp {version}, and this machine {loadgen.__version__}: {how_to_install()} there"


class HostProcess:
    """The Dask worker's process on a host."""

    def __init__(self, host: SshHost, process: asyncssh.SSHClientProcess[str]) -> None:
        self._host = host
        self._process = process
        self._pid = 0
        self._log: deque[str] = deque(maxlen=_LAST_LINES)
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._read_log())]

    @classmethod
    async def start(cls, host: SshHost) -> HostProcess:
        """Start it; raises `ClusterError`."""
        words = [host.python, "-P", "-m", "loadgen.cluster.dask_worker"]
        try:
            async with asyncio.timeout(_COMMAND_S):
                return cls(host, await host.connection.create_process(f"exec {shlex.join(words)}"))
        except (OSError, TimeoutError, asyncssh.Error) as error:
            raise ClusterError(f"{host.name}: no process could be started there: {error or 'no answer'}") from None

    async def begin(self, orders: JoinOrders) -> str:
        """Hand the process its orders; returns the address of its Dask worker. Raises `ClusterError`."""
        self._process.stdin.write(msgspec.json.encode(orders).decode() + "\n")
        try:
            async with asyncio.timeout(_START_S):
                answer = await self._answer()
        except TimeoutError:
            raise ClusterError(f"{self._host.name}: its Dask worker did not start within {_START_S:g} s") from None
        if not answer.address:
            raise ClusterError(f"{self._host.name}: {harmless(answer.problem)}")
        return answer.address

    async def _answer(self) -> JoinAnswer:
        async for line in self._process.stdout:
            with contextlib.suppress(*UNDECODABLE):  # what a shell prints at login comes before it
                answer = msgspec.json.decode(line, type=JoinAnswer)
                self._pid = answer.pid
                return answer
        await self._process.wait_closed()
        said = next((line for line in reversed(self._log) if line.strip()), "it said nothing")
        return JoinAnswer(0, problem=f"its Dask worker ended at once: {said.strip()}")

    async def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while not self._process.is_closing():
                self._process.stdin.write("\n")
                await asyncio.sleep(_BEAT_S)

    async def _read_log(self) -> None:
        async for line in self._process.stderr:
            self._log.append(line)

    async def close(self) -> None:
        """End it, even if it is stopped; on a host that cannot be reached any more it ends by itself."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(OSError, TimeoutError, asyncssh.Error):
            self._process.stdin.write_eof()
            if not await self._gone():
                # It may be stopped (SIGSTOP), so that nothing reads its stdin.
                if self._pid:
                    # sshd makes it the leader of a process group; its workers are in there.
                    kill = shlex.quote(f"kill -KILL -{self._pid} {self._pid}")
                    await self._host.connection.run(f"exec sh -c {kill}", timeout=_END_S, stdin=asyncssh.DEVNULL)
                else:
                    self._process.kill()
                await self._gone()
        self._process.close()

    async def _gone(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._process.wait_closed()
                return True
        return False
