"""Sockets and HTTP/1.1, behaving like uvicorn, with no layer between a token and its `send`.

Invariants: responses on one connection never overlap (early requests wait); a full socket buffer neither blocks the
caller nor loses a byte (the rest waits for the socket to drain); once `lost`, a connection makes no more calls. A
request's stamp is the kernel's for the read that completed it, if the kernel provides one.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httptools

SO_TIMESTAMPNS = 35
BACKLOG = 8192
READ_SIZE = 65536
ACCEPTS_AT_ONCE = 256
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n%b\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
_stamp = struct.Struct("qq").unpack_from


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True)
class Request:
    """One complete request; header names are lower case."""

    headers: dict[str, str] = field(default_factory=dict)
    method: str = ""
    path: str = ""
    query: str = ""
    body: bytes = b""
    keep_alive: bool = True
    began_ns: int = 0  # the stamp of the read with its first bytes
    received_ns: int = 0  # the stamp of the read that completed it
    kernel_stamp: bool = False


class Connection:
    """One client's socket: parses requests, writes responses, and handles the end of either side."""

    def __init__(self, server: "HttpServer", sock: socket.socket) -> None:
        self.server = server
        self.fd = sock.fileno()
        self.request: Request | None = None  # the one being answered
        self.served = 0  # requests answered before
        self.answered_ns = 0  # when the last of them was (CLOCK_REALTIME)
        self._status = 200  # of the current answer
        self.on_lost: Callable[[], None] | None = None  # called if the client leaves before its answer is complete
        self.send = sock.send  # bound once: called for every token
        self.out = bytearray()  # bytes that the socket did not take; never replaced by another object
        self._sock = sock
        self._parser: Any = httptools.HttpRequestParser(self)
        self._incoming = Request()
        self._url = b""
        self._body: list[bytes] = []
        self._waiting: deque[Request] = deque()
        self._closing = False
        self._idle: asyncio.TimerHandle | None = None
        self._stamp_ns = 0
        self._kernel_stamp = False
        server.connections.add(self)
        server.loop.add_reader(self.fd, self._readable)

    def on_message_begin(self) -> None:
        self._incoming, self._url, self._body = Request(began_ns=self._stamp_ns), b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Send 100 Continue to a client that waits for it (curl, above a kilobyte)."""
        if self._incoming.headers.get("expect", "").lower() == "100-continue" and self.request is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = self._incoming
        request.method = self._parser.get_method().decode("latin-1")
        request.path, _, request.query = self._url.decode("latin-1").partition("?")
        request.body = b"".join(self._body)
        request.keep_alive = self._parser.should_keep_alive()
        request.received_ns, request.kernel_stamp = self._stamp_ns, self._kernel_stamp
        self._waiting.append(request)  # answered after the parser returns: it swallows exceptions of its callbacks

    def write(self, data: bytes) -> None:
        """Send what the socket takes now and the rest later; never blocks."""
        if self.out:
            self.out += data
            return
        try:
            sent = self.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.lost()
            return
        if sent < len(data):
            self.out += data[sent:]
            self.server.loop.add_writer(self.fd, self._writable)

    def respond(
        self, status: int, body: bytes, *, kind: str = "application/json", headers: str = "", close: bool = False
    ) -> None:
        """Send a whole answer; `close` breaks the promise of a kept-alive connection."""
        self._status = status
        keep = "" if self.request and self.request.keep_alive else "connection: close\r\n"
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nserver: uvicorn\r\ncontent-length: {len(body)}\r\n"
            f"content-type: {kind}\r\n{headers}{keep}\r\n"
        )
        if self.request and self.request.method == "HEAD":
            body = b""
        self.write(head.encode("latin-1") + body)
        self.done(close=close)

    def done(self, *, close: bool = False) -> None:
        """End a complete answer: wait for the next request, or close if agreed or requested."""
        request, self.request, self.on_lost = self.request, None, None
        self.served += 1
        self.answered_ns = time.time_ns()
        if request is not None:
            self.server.answered[request.path, request.method, self._status] += 1
        self._status = 200
        if close or request is None or not request.keep_alive:
            self.close()
        elif self.fd >= 0:
            self._idle = self.server.loop.call_later(self.server.keep_alive_s, self.close)
            if self._waiting:
                self.server.loop.call_soon(self._next)

    def close(self) -> None:
        """Close as soon as the kernel has taken everything written."""
        self._closing = True
        if not self.out:
            self.lost()

    def reset(self) -> None:
        """Close with an RST, discarding what is on its way."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.lost()

    def lost(self) -> None:
        """Release the socket now and tell the answer in progress, if any."""
        if self.fd < 0:
            return
        self.server.loop.remove_reader(self.fd)
        self.server.loop.remove_writer(self.fd)
        self.fd = -1
        self.server.connections.discard(self)
        self._stop_idle()
        self._waiting.clear()
        self._sock.close()
        # Breaks the cycle with its parser, because collections are rare; but later, as a read may be in progress.
        self.server.loop.call_soon(setattr, self, "_parser", None)
        tell, self.on_lost = self.on_lost, None
        if tell is not None:
            tell()

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_SIZE, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self.lost()
            return
        self._kernel_stamp = bool(ancillary)
        if ancillary:
            seconds, nanoseconds = _stamp(ancillary[0][2])
            self._stamp_ns = seconds * 1_000_000_000 + nanoseconds
        else:
            self._stamp_ns = time.time_ns()
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self.request is not None:
                self.lost()
            else:
                self._waiting.clear()
                self.respond(400, b"Invalid HTTP request received.", kind="text/plain; charset=utf-8")
        self._next()

    def _writable(self) -> None:
        try:
            sent = self.send(self.out)
        except BlockingIOError:
            return
        except OSError:
            self.lost()
            return
        del self.out[:sent]
        if not self.out:
            self.server.loop.remove_writer(self.fd)
            if self._closing:
                self.lost()

    def _next(self) -> None:
        if self.request is None and self._waiting and not self._closing:
            self._stop_idle()
            self.request = self._waiting.popleft()
            self.server.handle(self, self.request)

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


class HttpServer:
    """Listens, and hands each complete request to `handle`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handle: Callable[[Connection, Request], None], keep_alive_s: float = 5.0
    ) -> None:
        """As in uvicorn, `keep_alive_s` counts from the end of an answer: a client that sent no request may stay."""
        self.loop = loop
        self.handle = handle
        self.keep_alive_s = keep_alive_s
        self.connections: set[Connection] = set()
        self.answered = Counter[tuple[str, str, int]]()  # by path, method and status
        self._sock: socket.socket | None = None

    def listen(self, host: str, port: int) -> int:
        """Listen and return the port, which the kernel chose if `port` is 0."""
        host.encode("idna")  # raises `UnicodeError` for what no host can be called
        sock = socket.create_server((host, port), backlog=BACKLOG)
        sock.setblocking(False)
        # Accepted sockets inherit both options.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._sock = sock
        self.loop.add_reader(sock.fileno(), self._acceptable)
        return int(sock.getsockname()[1])

    def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._sock is not None:
            self.loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
        for connection in list(self.connections):
            connection.lost()

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._sock is None:
                return
            try:
                sock, _ = self._sock.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of descriptors: the listener stays readable, so retry later instead of spinning.
                self.loop.remove_reader(self._sock.fileno())
                self.loop.call_later(0.1, self._resume)
                return
            sock.setblocking(False)
            Connection(self, sock)

    def _resume(self) -> None:
        if self._sock is not None:
            self.loop.add_reader(self._sock.fileno(), self._acceptable)
