"""The two transports of a channel: plain sockets with kernel receive timestamps, and TLS through asyncio.

Plain: all sockets of a worker are in one epoll descriptor, the only one that the event loop watches: one wake-up serves
every readable socket, and a token costs no loop callback. Each `recvmsg` returns the CLOCK_REALTIME time at which the
kernel received the last segment of the data, so the client's own queueing is not in the numbers. A read without a stamp
(kernels without the option, or the first packets after it was enabled) is stamped by the user-space clock and counted.
TLS: records hide the segments, so only the user-space clock is left; `loadgen.worker.timing.LoopLag` samples how late
that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from typing import cast

from loadgen.stream.channel import Channel
from loadgen.stream.request import ServerAddress
from loadgen.stream.samples import ClientSamples

_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_IP_BIND_ADDRESS_NO_PORT = 24
_ANCILLARY_BYTES = socket.CMSG_SPACE(16)
_READ_BYTES = 64 * 1024
_BATCH = 1024
_LARGE_BATCH = 32
_LAG_EVERY = 8
_NOTHING = memoryview(b"")
_unpack_timespec = struct.Struct("qq").unpack


class Sockets:
    """The connections of one worker."""

    def __init__(self, client: ClientSamples) -> None:
        self.loop = asyncio.get_running_loop()
        self.client = client
        self.epoll = select.epoll()
        self.plain: dict[int, _PlainSocket] = {}
        self.awaiting: set[int] = set()  # sockets whose stream waits for its first token
        self.unsent_bytes = 0  # of requests that the kernel has not taken completely; they stay in memory until then
        self.rest_taken: Callable[[], None] = lambda: None  # called when `unsent_bytes` has fallen
        self._reads = 0
        # The kernel enables timestamping in the background for the first socket that asks, and disables it with the
        # last: without this socket, a worker's first reads would come without stamps.
        self._stamping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        _try_option(self._stamping, socket.SOL_SOCKET, _SO_TIMESTAMPNS)
        self.send_due: Callable[[], None] = lambda: None
        """Called before each read: a due request must not wait, whereas bytes already carry their arrival time."""
        self.loop.add_reader(self.epoll.fileno(), self._serve)

    async def connect(
        self, channel: Channel, address: ServerAddress, tls: ssl.SSLContext | None, source: str | None = None
    ) -> None:
        """Connect a channel, ready for its first request, from `source` or from an address that the kernel chooses.

        Raises OSError (ssl errors are OSErrors).
        """
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is None:
                # Not an error where the kernel has no such option: reads then come without stamps.
                _try_option(sock, socket.SOL_SOCKET, _SO_TIMESTAMPNS)
            if source is not None:
                # The port is chosen when the server is known: connections to different servers may share it.
                _try_option(sock, socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT)
                sock.bind((source, 0))
            await self.loop.sock_connect(sock, (address.ip, address.port))
            if tls is not None:
                await self.loop.create_connection(
                    lambda: _TlsProtocol(channel, self), sock=sock, ssl=tls, server_hostname=address.tls_name
                )
        except BaseException:
            sock.close()
            raise
        if tls is None:
            plain = _PlainSocket(sock, channel, self)
            channel.output_began = plain.output_began
            channel.write = plain.write
            channel.close_transport = plain.close
        self.client.connects += 1
        channel.usable = True

    def close(self) -> None:
        """Stop serving sockets; open ones are closed by their channels."""
        self.loop.remove_reader(self.epoll.fileno())
        self.epoll.close()
        self._stamping.close()

    def hold(self, count: int) -> None:
        """Count bytes of a request that stay in memory until the kernel takes them."""
        self.unsent_bytes += count

    def free(self, count: int) -> None:
        """Subtract bytes that the kernel has taken, or whose connection is closed."""
        self.unsent_bytes -= count
        self.rest_taken()

    def _serve(self) -> None:
        """Read from all ready sockets; in a large batch, those that wait for a first token come first.

        A read so late that it returns two tokens has the second's stamp, which hurts a TTFT most.
        """
        ready = self.epoll.poll(0, _BATCH)
        if len(ready) >= _LARGE_BATCH and self.awaiting:
            ready.sort(key=lambda item: item[0] not in self.awaiting)
        self._read(ready)

    def _read(self, ready: list[tuple[int, int]]) -> None:
        """Read once from each ready socket; the hot spot. One read in eight is sampled for its lag."""
        clock_ns, client, send_due, find = time.time_ns, self.client, self.send_due, self.plain.get
        for number, (descriptor, events) in enumerate(ready, self._reads):
            plain = find(descriptor)
            # Closed earlier in this batch; if its number has been reused, the new socket has nothing to read yet.
            if plain is None or (events & select.EPOLLOUT and not plain.flush()):
                continue
            send_due()
            try:
                data, ancillary, _, _ = plain.receive(_READ_BYTES, _ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                plain.channel.lost("reset", f"connection lost: {os.strerror(error.errno or 0)}")
                continue
            if not data:
                plain.channel.lost("reset", "the server closed the connection before the answer was complete")
                continue
            if ancillary:
                seconds, nanoseconds = _unpack_timespec(ancillary[0][2])
                stamp_ns = seconds * 1_000_000_000 + nanoseconds
                if not number % _LAG_EVERY:
                    client.read_lag_ns.append(clock_ns() - stamp_ns)
            else:
                stamp_ns = clock_ns()
                client.unstamped_reads += 1
            plain.feed(data, stamp_ns)
        self._reads += len(ready)
        client.reads += len(ready)


class _PlainSocket:
    """A connected socket, registered in its worker's epoll until it is closed."""

    __slots__ = ("_descriptor", "_held", "_resent", "_sock", "_sockets", "_unsent", "channel", "feed", "receive")

    def __init__(self, sock: socket.socket, channel: Channel, sockets: Sockets) -> None:
        self._sock = sock
        self._descriptor = sock.fileno()
        self._sockets = sockets
        self._unsent = _NOTHING  # the part of a request that the kernel has not taken yet
        self._held = 0  # bytes of the whole request, which it keeps in memory
        self._resent = _retransmissions(sock)  # while it was being connected
        self.channel = channel
        # Bound once: both are called for every token.
        self.feed = channel.feed
        self.receive = sock.recvmsg
        sockets.plain[self._descriptor] = self
        sockets.epoll.register(self._descriptor, select.EPOLLIN)

    def write(self, data: bytes) -> bool:
        """Send what the socket takes now and the rest later; True if it took everything."""
        self._sockets.awaiting.add(self._descriptor)
        if self._unsent:
            # The server answered before it had read the whole of the last request.
            self._hold(b"".join((self._unsent, data)), 0)
            return False
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            # Reported from the loop, not from inside `begin`: the caller is still putting the stream on the channel.
            message = f"connection lost while sending: {os.strerror(error.errno or 0)}"
            asyncio.get_running_loop().call_soon(self.channel.lost, "reset", message)
            return False
        if sent == len(data):
            return True
        self._hold(data, sent)
        self._sockets.epoll.modify(self._descriptor, select.EPOLLIN | select.EPOLLOUT)
        return False

    def _hold(self, data: bytes, sent: int) -> None:
        """Keep what comes after the first `sent` bytes, without copying it."""
        self._sockets.hold(len(data) - self._held)
        self._unsent, self._held = memoryview(data)[sent:], len(data)

    def _free(self) -> None:
        held, self._unsent, self._held = self._held, _NOTHING, 0
        if held:
            self._sockets.free(held)

    def flush(self) -> bool:
        """Send more of the rest; False if the connection failed."""
        now_ns = time.time_ns()
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            self.channel.lost("reset", f"connection lost while sending: {os.strerror(error.errno or 0)}")
            return False
        if not self._unsent:
            self._sockets.epoll.modify(self._descriptor, select.EPOLLIN)
            self.channel.sent_late(now_ns)
            self._free()
        return True

    def output_began(self) -> None:
        """Count a first request that the kernel sent again, now that its first token has been read.

        A server whose queue of new connections is full ignores a connection that its client believes to be established:
        the kernel sends the first request again and again, and that time is in its TTFT.
        """
        self._sockets.awaiting.discard(self._descriptor)
        if not self.channel.served and _retransmissions(self._sock) > self._resent:
            self._sockets.client.resent_requests += 1

    def close(self) -> None:
        """Close the socket, which also removes it from the epoll; safe to call twice."""
        if self._sock.fileno() >= 0:
            del self._sockets.plain[self._descriptor]
            self._sockets.awaiting.discard(self._descriptor)
            self._sock.close()
            self._free()
            # Later, because the channel may still be in the middle of a read.
            self._sockets.loop.call_soon(self.channel.free)


class _TlsProtocol(asyncio.Protocol):
    """Passes decrypted bytes to the channel with the user-space time of their arrival."""

    _transport: asyncio.Transport

    def __init__(self, channel: Channel, sockets: Sockets) -> None:
        self._channel = channel
        self._client = sockets.client
        self._sockets = sockets
        self._paused = False
        self._held = 0  # bytes of the request that the transport keeps in memory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the interface, but not the base class.
        self._transport = cast("asyncio.Transport", transport)
        # With a limit of 0, `pause_writing` reports any byte that has to wait: `sent` is when the last one went.
        self._transport.set_write_buffer_limits(0)
        self._channel.write = self._write
        self._channel.close_transport = self._transport.abort

    def _write(self, data: bytes) -> bool:
        self._transport.write(data)
        if self._paused:
            self._sockets.hold(len(data))
            self._held += len(data)
        return not self._paused

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        """Stamp the request: its rest has been sent, as far as this side of the encryption can know."""
        self._paused = False
        self._channel.sent_late(time.time_ns())
        self._free()

    def _free(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._sockets.free(held)

    def data_received(self, data: bytes) -> None:
        self._sockets.send_due()
        self._client.reads += 1
        self._client.unstamped_reads += 1
        self._channel.feed(data, time.time_ns())

    def connection_lost(self, error: Exception | None) -> None:
        """Report the end of the connection, whichever side closed it."""
        reason = str(error) if error else "the server closed the connection before the answer was complete"
        self._free()
        self._channel.lost("reset", reason)
        self._channel.free()


def _try_option(sock: socket.socket, level: int, option: int) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, 1)


def _retransmissions(sock: socket.socket) -> int:
    """The number of retransmissions on this connection (`tcpi_total_retrans`)."""
    return int.from_bytes(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[100:], sys.byteorder)
