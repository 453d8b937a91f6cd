"""`vramp stop`: end a server that vramp started and left running; `--list` shows which there are.

One that a vramp drives at this moment is somebody's measurement: it is stopped only by its port and with `--force`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from loadgen.errors import ProfileError, ServerError
from loadgen.format import harmless

if TYPE_CHECKING:
    from loadgen.server.process.locks import ServerRecord


def stop(words: list[str]) -> int:
    """Stop one server or all; 0 if nothing of them is left."""
    options = _parser().parse_args(words)
    from loadgen.server.process.locks import list_servers

    servers = list_servers()
    if options.list:
        print("\n".join(_line(record) for record in servers))
        return 0
    clean = [_stop_one(record, options.timeout) for record in _chosen(servers, options)]
    return 0 if all(clean) else ServerError.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vramp stop",
        description="End a server that vramp started and left running. Servers of others are never touched, "
        "and one that a vramp drives only with --force.",
        epilog="exit codes: 0 nothing of it is left; 2 usage; 3 there is no such server, or something of it is left",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("port", nargs="?", type=int, metavar="PORT", help="not needed if there is only one")
    which.add_argument("--all", action="store_true", help="every one of them")
    which.add_argument("--list", action="store_true", help="show them and stop none")
    parser.add_argument("--force", action="store_true", help="the one on PORT although a vramp drives it")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="until it is killed (default: 60)")
    return parser


def _chosen(servers: list[ServerRecord], options: argparse.Namespace) -> list[ServerRecord]:
    if options.port is not None:
        return [_on_port(servers, options.port, force=options.force)]
    driven = [record for record in servers if _driver(record)]
    chosen = [record for record in servers if record not in driven]
    if not options.all and len(chosen) > 1:
        listed = "\n".join(f"  {_line(record)}" for record in servers)
        raise ProfileError(f"several servers are running; name a port, or use --all:\n{listed}")
    for record in driven:
        print(harmless(f"not touched: {_line(record)}"), file=sys.stderr)
    if not chosen:
        print("no server that vramp left is running", file=sys.stderr)
    return chosen


def _on_port(servers: list[ServerRecord], port: int, *, force: bool) -> ServerRecord:
    for record in servers:
        if record.port == port:
            driver = _driver(record)
            if driver and not force:
                raise ServerError(f"{driver}; --force stops it all the same")
            return record
    others = ", ".join(str(record.port) for record in servers) or "none"
    raise ServerError(f"no server that vramp started listens on port {port}; running ones: {others}")


def _driver(record: ServerRecord) -> str:
    """Who drives it at this moment, in a sentence; empty if nobody does."""
    from loadgen.server.process.locks import drive_lock

    try:
        drive_lock("localhost", record.port).release()
    except ServerError as error:
        return str(error)
    return ""


def _stop_one(record: ServerRecord, timeout_s: float) -> bool:
    import asyncio

    from loadgen.server.process.guard_client import stop_server

    print(harmless(f"stopping {_line(record)}"), file=sys.stderr)
    report = asyncio.run(stop_server(record, timeout_s=timeout_s))
    print(harmless(report.sentence), file=sys.stderr)
    return report.clean


def _line(record: ServerRecord) -> str:
    minutes = max(0.0, time.time() - record.started_unix_s) / 60
    kind = "in use by a vramp" if _driver(record) else "left running"
    return f"port {record.port}  {record.profile or '-'}  {record.model or '-'}  up {minutes:.0f} min  {kind}"
