"""The cockpit in a browser: textual-serve, which starts a process for each browser, behind our own access check.

Invariants: no access without the token, which is new for each server, because other users of the machine can reach the
port too. Cross-origin requests are refused by `Origin`, DNS rebinding by `Host`. The page loads nothing from elsewhere,
and its Content-Security-Policy forbids it. A connection that does not show the token is closed after seconds, and the
oldest of too many at once. A browser's process ends with its socket, and all of them with the server.
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
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp_jinja2
import msgspec
from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager
from textual_serve.server import Server, to_int

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.system import own_variables

MAX_VISITORS = 16  # each is a process
MAX_STRANGERS = 64
MAX_COLUMNS, MAX_ROWS = 500, 200
_STRANGER_S = 10.0  # how long a connection may take to show the token
_MAX_MESSAGE_BYTES = 1 << 20  # a pasted text
_ENDS_WITHIN_S = 5.0
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
        super().__init__(shlex.join(command), host=host, templates_path=_PAGE)
        self._words = list(command)
        self.token = secrets.token_urlsafe(16)
        self._names = {"localhost", host, socket.gethostname()}
        self._sessions: set[asyncio.Task[Any]] = set()
        self._strangers: dict[asyncio.BaseProtocol, asyncio.TimerHandle | None] = {}  # the oldest first

    async def application(self) -> web.Application:
        application = await self._make_app()
        application.router.add_get("/ws/{token}", self.handle_websocket)
        application.router.add_get("/page.js", _script)
        application.middlewares.append(self._check)
        return application

    def connected(self, protocol: web.RequestHandler) -> web.RequestHandler:
        """Call it for each new connection: it is a stranger's until a request on it shows the token."""
        if len(self._strangers) >= MAX_STRANGERS:
            self._close(next(iter(self._strangers)))
        self._expect_token(protocol)
        return protocol

    def _expect_token(self, protocol: asyncio.BaseProtocol) -> None:
        self._strangers[protocol] = asyncio.get_running_loop().call_later(_STRANGER_S, self._close, protocol)

    def _forget(self, protocol: asyncio.BaseProtocol) -> None:
        timer = self._strangers.pop(protocol, None)
        if timer is not None:
            timer.cancel()

    def _close(self, protocol: asyncio.BaseProtocol) -> None:
        self._forget(protocol)
        # Later, because a connection that was accepted just now has no transport yet.
        asyncio.get_running_loop().call_soon(_abort, protocol)

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
        response = await self._handled(request, handler, knows_token=knows_token)
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _handled(self, request: web.Request, handler: _Handler, *, knows_token: bool) -> web.StreamResponse:
        is_stranger = request.protocol in self._strangers
        self._forget(request.protocol)
        if knows_token or not is_stranger:
            return await handler(request)
        # A download takes its time; it still counts among the strangers.
        self._strangers[request.protocol] = None
        try:
            return await handler(request)
        finally:
            self._forget(request.protocol)
            self._expect_token(request.protocol)

    def _is_ours(self, host: str) -> bool:
        """Whether `host` is an address or one of our names; another name could be DNS rebinding."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    @aiohttp_jinja2.template("page.html")
    async def handle_index(self, request: web.Request) -> dict[str, Any]:
        return {"socket_url": f"ws://{request.host}/ws/{self.token}", "font_size": _FONT_SIZE}

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if len(self._sessions) >= MAX_VISITORS:
            raise web.HTTPServiceUnavailable(text=f"{MAX_VISITORS} browsers are connected: close one of them\n")
        session = asyncio.current_task()
        assert session is not None
        self._sessions.add(session)
        try:
            return await self._serve_browser(request)
        finally:
            self._sessions.discard(session)

    async def _serve_browser(self, request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse(heartbeat=15, max_msg_size=_MAX_MESSAGE_BYTES)
        await websocket.prepare(request)
        process = _BrowserProcess(self._words, websocket, self.download_manager)
        try:
            await process.start(to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24))
            async for message in websocket:
                if message.type == WSMsgType.TEXT:
                    await process.receive(message.data)
        finally:
            await process.end()
            await websocket.close()
        return websocket

    async def on_startup(self, app: web.Application) -> None:
        """Print no greeting: standard output is for data."""

    async def on_shutdown(self, app: web.Application) -> None:
        for session in self._sessions:
            session.cancel()
        if self._sessions:
            await asyncio.wait(set(self._sessions), timeout=2 * _ENDS_WITHIN_S)


class _BrowserProcess(AppService):
    """The cockpit of one browser; textual-serve's service, but without a shell and with bounded sizes."""

    def __init__(self, command: Sequence[str], websocket: web.WebSocketResponse, downloads: DownloadManager) -> None:
        super().__init__(
            shlex.join(command),
            write_bytes=websocket.send_bytes,
            write_str=websocket.send_str,
            close=websocket.close,  # type: ignore[arg-type]  # it returns whether it was open
            download_manager=downloads,
        )
        self._words = command
        self._websocket = websocket

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        variables = self._build_environment(*_clamped(width, height))
        # A vramp would take the variables that this one has set for the user's, and pass them on to its server.
        for name in own_variables():
            variables.pop(name, None)
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._words, stdin=pipe, stdout=pipe, stderr=pipe, env=variables
        )
        self._stdin = self._process.stdin
        return self._process

    async def run(self) -> None:
        """Pass its output on; a process that has ended closes its page."""
        with contextlib.suppress(ConnectionError):  # the browser is gone
            await super().run()
            await self._websocket.close()

    async def receive(self, message: str) -> None:
        """Pass on what the page sends; anything else is ignored."""
        try:
            envelope = msgspec.json.decode(message)
        except UNDECODABLE:
            return
        match envelope:
            case ["stdin", str(keys)]:
                await self.send_bytes(keys.encode(errors="replace"))
            case ["resize", {"width": int(width), "height": int(height)}]:
                await self.set_terminal_size(*_clamped(width, height))
            case ["ping", data]:
                await self._websocket.send_json(["pong", data])
            case ["blur", *_]:
                await self.blur()
            case ["focus", *_]:
                await self.focus()

    async def end(self) -> None:
        """Ask it to quit; one that is stopped or busy is killed."""
        try:
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await self.stop()
        except TimeoutError:
            pass
        finally:
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()


def _clamped(width: int, height: int) -> tuple[int, int]:
    """A size that the cockpit can draw at once, whatever a page asks for."""
    return min(max(width, 1), MAX_COLUMNS), min(max(height, 1), MAX_ROWS)


def _abort(protocol: asyncio.BaseProtocol) -> None:
    transport = getattr(protocol, "transport", None)
    if transport is not None:
        transport.abort()


async def _script(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(_PAGE / "page.js")


@contextlib.asynccontextmanager
async def serving(command: Sequence[str], listening: socket.socket, *, host: str) -> AsyncIterator[str]:
    """Serve a Textual command while the block runs; yields the address to open."""
    server = TokenServer(command, host)
    runner = web.AppRunner(await server.application(), access_log=None, shutdown_timeout=1.0)
    server_logger.addFilter(_is_about_us)
    await runner.setup()
    connect = runner.server
    assert connect is not None
    accepting = await asyncio.get_running_loop().create_server(lambda: server.connected(connect()), sock=listening)
    # Standard output is for data, not for the errors of a process that could not start.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            name = f"[{host}]" if ":" in host else host
            yield f"http://{name}:{listening.getsockname()[1]}/?token={server.token}"
        finally:
            accepting.close()
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
