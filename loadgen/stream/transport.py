"""The two ways bytes reach a channel: a plain socket with kernel receive timestamps, and TLS through asyncio.

Plain: a non-blocking socket under `add_reader`; each `recvmsg` brings the time at which the kernel received the last
segment of what it returns, on CLOCK_REALTIME, so the client's own queueing is not in the numbers. A read without a
stamp (the first packets after the option is switched on in a machine, kernels without it) takes the user-space clock
and is counted. TLS: the records hide the segments, so the user-space clock at arrival is all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable

import msgspec

from loadgen.stream.channel import Channel
from loadgen.stream.tally import Meter

_SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_ANCILLARY_BYTES = socket.CMSG_SPACE(16)
_unpack_timespec = struct.Struct("qq").unpack_from

_read_buffer = bytearray(256 * 1024)
_read_view = memoryview(_read_buffer)
# One buffer serves every connection: the parser consumes it before the next read.
_read_buffers = [_read_buffer]


class Target(msgspec.Struct, frozen=True):
    """Where to connect; `address` was resolved once, so that no name lookup is ever timed."""

    family: int
    address: str
    port: int
    tls_name: str | None = None
    """The name to verify for https; None for http."""


def hold_timestamps() -> socket.socket:
    """A socket that keeps the kernel stamping packets for as long as it is open.

    Stamping is switched on in the background when the first socket of a machine asks for it, and off with the last:
    without this, the first reads of a worker would come without stamps.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    _try_timestamps(holder)
    return holder


async def connect(channel: Channel, target: Target, meter: Meter, tls: ssl.SSLContext | None) -> None:
    """Connect a channel, ready for its first request; raises OSError (ssl errors are OSErrors)."""
    if tls is None:
        await _connect_plain(channel, target, meter)
    else:
        await _connect_tls(channel, target, meter, tls)
    meter.connects += 1
    channel.usable = True


async def _connect_plain(channel: Channel, target: Target, meter: Meter) -> None:
    loop = asyncio.get_running_loop()
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A kernel without it is no error: its reads come without stamps.
        _try_timestamps(sock)
        await loop.sock_connect(sock, (target.address, target.port))
    except BaseException:
        sock.close()
        raise
    _attach(channel, sock, loop, meter)


def _try_timestamps(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def _attach(channel: Channel, sock: socket.socket, loop: asyncio.AbstractEventLoop, meter: Meter) -> None:
    descriptor = sock.fileno()
    recvmsg_into = sock.recvmsg_into
    feed = channel.feed
    clock_ns = time.time_ns
    record_lag = meter.read_lag_ns.append
    unsent = bytearray()

    def readable() -> None:
        try:
            size, ancillary, _, _ = recvmsg_into(_read_buffers, _ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            channel.lost("reset", f"connection lost: {os.strerror(error.errno or 0)}")
            return
        if not size:
            channel.lost("reset", "the server closed the connection before the answer was complete")
            return
        now_ns = clock_ns()
        if ancillary:
            seconds, nanoseconds = _unpack_timespec(ancillary[0][2])
            stamp_ns = seconds * 1_000_000_000 + nanoseconds
            record_lag(now_ns - stamp_ns)
        else:
            stamp_ns = now_ns
            meter.unstamped_reads += 1
        feed(_read_view[:size], stamp_ns)

    def write(data: bytes) -> None:
        try:
            sent = sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            # Told from the loop, not from inside `begin`: the caller is still putting the stream on the channel.
            message = f"connection lost while sending: {os.strerror(error.errno or 0)}"
            loop.call_soon(channel.lost, "reset", message)
            return
        if sent < len(data):
            unsent.extend(data[sent:])
            loop.add_writer(descriptor, flush)

    def flush() -> None:
        try:
            del unsent[: sock.send(unsent)]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            channel.lost("reset", f"connection lost while sending: {os.strerror(error.errno or 0)}")
            return
        if not unsent:
            loop.remove_writer(descriptor)

    def close() -> None:
        if sock.fileno() >= 0:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
            sock.close()

    channel.write = write
    channel.read = readable
    channel.close_transport = close
    loop.add_reader(descriptor, readable)


async def _connect_tls(channel: Channel, target: Target, meter: Meter, tls: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(
        lambda: _TlsProtocol(channel, meter), target.address, target.port, ssl=tls, server_hostname=target.tls_name
    )
    write: Callable[[bytes], None] = transport.write
    channel.write = write
    channel.close_transport = transport.abort


class _TlsProtocol(asyncio.Protocol):
    """Hands decrypted bytes to the channel with the user-space time of their arrival."""

    def __init__(self, channel: Channel, meter: Meter) -> None:
        self._channel = channel
        self._meter = meter

    def data_received(self, data: bytes) -> None:
        """Bytes, after decryption."""
        self._meter.unstamped_reads += 1
        self._channel.feed(data, time.time_ns())

    def connection_lost(self, error: Exception | None) -> None:
        """The end of the connection, whoever ended it."""
        reason = str(error) if error else "the server closed the connection before the answer was complete"
        self._channel.lost("reset", reason)
