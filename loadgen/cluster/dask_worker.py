"""The process on a host that was started by SSH: a Dask worker, in which the host's actor will live.

Its first line on stdin says where to connect, and holds the run's key, so that no command line or file does. Its first
line on stdout says where it listens, or why it cannot. After that, stdin is its lifeline: the process ends when stdin
is closed, or has been silent for `SILENCE_S`. Invariants: nothing listens but at the address at which SSH reached this
host; nothing stays on its disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import ClusterError

SILENCE_S = 20.0
_CONNECT_S = 5.0
_START_S = 20.0
_ROOM_BYTES = 1 << 20  # for Dask's lock files
_MAKE_ROOM = "make room there, or set TMPDIR on the host"


class JoinOrders(msgspec.Struct, frozen=True):
    """What the process needs to join the run's cluster."""

    name: str
    scheduler: str  # tls://address:port
    listen: str  # an address of this host
    port: int  # 0: any
    pem: str  # the run's certificate and key


class JoinAnswer(msgspec.Struct, frozen=True):
    """The first line on stdout: where the Dask worker listens, or why there is none."""

    pid: int
    address: str = ""  # of the Dask worker
    problem: str = ""  # why there is none


def main() -> None:
    orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=JoinOrders)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        asyncio.run(_serve(orders))
    except ClusterError as error:
        _answer(JoinAnswer(os.getpid(), problem=str(error)))
        os._exit(1)
    os._exit(0)


def _answer(answer: JoinAnswer) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


def _end_with_stdin() -> None:
    """Exit once stdin ends; from a thread, as Dask's loop may be busy or waiting for a scheduler that is gone."""
    while True:
        readable, _, _ = select.select([0], [], [], SILENCE_S)
        if not readable or not os.read(0, 4096):
            # This closes the pipes of its workers, so they exit, too.
            os._exit(1)


async def _serve(orders: JoinOrders) -> None:
    """Work until the scheduler is gone; raises `ClusterError` if it cannot begin."""
    await _require_scheduler(orders.scheduler)
    try:
        folder = Path(tempfile.mkdtemp(prefix="vramp-"))
    except OSError as error:
        raise ClusterError(f"cannot write to its temporary folder: {error.strerror}; {_MAKE_ROOM}") from None
    try:
        _require_room(folder)
        worker = await _started_worker(orders, folder)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(f"its Dask worker did not start: {error or 'no answer in time'}") from None
    finally:
        # Dask keeps its locks open, and spills nothing: these files are not opened by name again.
        shutil.rmtree(folder, ignore_errors=True)
    _answer(JoinAnswer(os.getpid(), address=worker.address))
    await worker.finished()


async def _require_scheduler(scheduler: str) -> None:
    host, _, port = scheduler.partition("://")[2].rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ClusterError(
            f"cannot connect back to {host}:{port} ({why}): open that port on this machine, "
            "or name another address or port with cluster.listen and cluster.port"
        ) from None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _require_room(folder: Path) -> None:
    try:
        (folder / "room").write_bytes(bytes(_ROOM_BYTES))
    except OSError as error:
        raise ClusterError(f"cannot write to {folder.parent}: {error.strerror}; {_MAKE_ROOM}") from None


async def _started_worker(orders: JoinOrders, folder: Path) -> Any:  # noqa: ANN401 - Dask has no types
    import dask
    from distributed import Worker

    from loadgen.cluster.tls import bound_handshakes, security_of

    dask.config.set(QUIET)
    security, _ = security_of(orders.pem)
    worker = Worker(
        orders.scheduler,
        name=orders.name,
        host=orders.listen,
        port=orders.port,
        protocol="tls://",
        security=security,
        nthreads=1,
        memory_limit=0,
        dashboard_address="127.0.0.1:0",
        death_timeout=_START_S,
        local_directory=str(folder),
    )
    async with asyncio.timeout(_START_S):
        await worker
    bound_handshakes(worker)
    worker.http_server.stop()
    return worker


QUIET: dict[str, Any] = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.system-monitor.disk": False,
    "distributed.worker.preload": [],
    "distributed.scheduler.preload": [],
}
"""Dask without what costs CPU time, listens, or belongs to clusters of other kinds."""


if __name__ == "__main__":
    main()
