"""The cockpit in a browser: textual-serve, which starts a process for each browser, behind our own access check.

Invariants: no access without the token, which is new for each server, because other users of the machine can reach the
port too. Cross-origin requests are refused by `Origin`, DNS rebinding by `Host`. The page loads nothing from elsewhere,
and its Content-Security-Policy forbids it. When the server ends, no browser's process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import secrets
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp_jinja2
import psutil
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from textual_serve.server import Server

from loadgen.errors import ServerError
from loadgen.limits import own_variables

_PATIENCE_S = 5.0
_REAPED_S = 0.05
_FONT_SIZE = 14
_PAGE = Path(__file__).parent
_OPEN_TO_ALL = ("/static/", "/page.js", "/download/")
"""Paths served without a token: they reveal nothing of the run, or have an unguessable name."""
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self' 'unsafe-inline'",  # xterm.js adds its own
    "font-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
)
_HEADERS = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TokenServer(Server):
    """Serves a command to browsers that know the token."""

    def __init__(self, command: Sequence[str], host: str) -> None:
        # textual-serve runs the command in a shell: it is quoted, and `exec` replaces the shell. A vramp would take
        # the variables that this one has set for the user's, and pass them on to its server.
        unset = "".join(f"unset {name}; " for name in sorted(own_variables()))
        super().__init__(f"{unset}exec {shlex.join(command)}", host=host, templates_path=_PAGE)
        self._words = list(command)
        self.token = secrets.token_urlsafe(16)
        self._names = {"localhost", host, socket.gethostname()}
        self._sessions: set[asyncio.Task[Any]] = set()

    async def application(self) -> web.Application:
        application = await self._make_app()
        application.router.add_get("/ws/{token}", self.handle_websocket)
        application.router.add_get("/page.js", _script)
        application.middlewares.append(self._check)
        return application

    @web.middleware
    async def _check(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not self._is_ours(request.host):
            raise web.HTTPForbidden(text=f"{request.host!a}: not a name of this machine\n")
        if request.headers.get("Origin", f"http://{request.host}") != f"http://{request.host}":
            raise web.HTTPForbidden(text="cross-origin requests are refused\n")
        token = request.match_info.get("token") or request.query.get("token", "")
        knows_token = hmac.compare_digest(token.encode(), self.token.encode())
        if not knows_token and not request.path.startswith(_OPEN_TO_ALL):
            raise web.HTTPForbidden(text="open the address printed by vramp web: its token is missing or outdated\n")
        response = await handler(request)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    def _is_ours(self, host: str) -> bool:
        """Whether `host` is an address or one of our names; another name could be DNS rebinding."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or _is_address(name)

    @aiohttp_jinja2.template("page.html")
    async def handle_index(self, request: web.Request) -> dict[str, Any]:
        return {"socket_url": f"ws://{request.host}/ws/{self.token}", "font_size": _FONT_SIZE}

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        session = asyncio.current_task()
        assert session is not None
        self._sessions.add(session)
        try:
            return await super().handle_websocket(request)
        finally:
            self._sessions.discard(session)

    async def on_startup(self, app: web.Application) -> None:
        """Print no greeting: standard output is for data."""

    async def on_shutdown(self, app: web.Application) -> None:
        for session in self._sessions:
            session.cancel()
        if self._sessions:
            await asyncio.wait(set(self._sessions), timeout=_PATIENCE_S)
        # A process that is stopped or hangs has not reacted to the cancellation.
        left = [child for child in psutil.Process().children() if _words_of(child) == self._words]
        for child in left:
            child.kill()
        for _ in range(round(_PATIENCE_S / _REAPED_S)):
            await asyncio.sleep(_REAPED_S)  # the loop must reap each of them, or it complains when it is closed
            if not any(child.is_running() for child in left):
                break


def _words_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it is gone, or dead and not yet reaped by the loop."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def _script(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(_PAGE / "page.js")


@contextlib.asynccontextmanager
async def serving(command: Sequence[str], listening: socket.socket, *, host: str) -> AsyncIterator[str]:
    """Serve a Textual command while the block runs; yields the address to open."""
    server = TokenServer(command, host)
    runner = web.AppRunner(await server.application(), access_log=None, shutdown_timeout=1.0)
    server_logger.addFilter(_is_about_us)
    await runner.setup()
    # Standard output is for data, not for the errors of a process that could not start.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            await web.SockSite(runner, listening).start()
            name = f"[{host}]" if ":" in host else host
            yield f"http://{name}:{listening.getsockname()[1]}/?token={server.token}"
        finally:
            await runner.cleanup()


def _is_about_us(record: logging.LogRecord) -> bool:
    """Whether a log record is about more than a malformed request, such as a port scanner sends."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket for `serving`; raises `ServerError` if the port cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        host.encode("idna")  # raises `UnicodeError` for what no host can be called
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ServerError(f"{host}:{port}: cannot listen: {why}; choose another with --host and --port") from error


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
