"""The certificate of a run: only processes that have it and its key can take part in the run's cluster.

It is generated for each run and never written to a disk: Dask reads it from a file in memory. Dask's ports are open to
the network, and Dask would keep connections without a certificate for ever: here they cost few descriptors, and for
seconds only.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import Security
from distributed.comm.tcp import BaseTCPListener

if TYPE_CHECKING:
    import distributed
    from tornado.iostream import IOStream

    HandleStream = Callable[[IOStream, tuple[str, int]], Awaitable[None]]

MAX_STRANGERS = 64
_HANDSHAKE_S = 10.0
_CLOCKS_DIFFER = timedelta(days=1)
_MAX_RUN = timedelta(days=90)


def make_certificate() -> str:
    """A self-signed certificate and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vramp")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _MAX_RUN)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode() + private.decode()


def security_of(pem: str) -> tuple[Security, int]:
    """Dask's security settings and the in-memory file from which it reads `pem`; close it after the last connection."""
    memory = os.memfd_create("vramp-cluster")
    with open(memory, "w", closefd=False) as file:
        file.write(pem)
    path = f"/proc/{os.getpid()}/fd/{memory}"
    roles = {f"tls_{role}_cert": path for role in ("client", "scheduler", "worker")}
    return Security(require_encryption=True, tls_ca_file=path, **roles), memory


def bound_handshakes(server: distributed.core.Server) -> None:
    """Close connections without a handshake after seconds, and the oldest of too many."""
    for listener in server.listeners:
        assert isinstance(listener, BaseTCPListener)
        tcp_server = listener.tcp_server
        assert tcp_server is not None
        tcp_server.handle_stream = _bounded(tcp_server.handle_stream)


def _bounded(handle_stream: HandleStream) -> HandleStream:
    strangers: dict[IOStream, None] = {}  # the oldest first

    def end(stream: IOStream) -> None:
        if stream in strangers:
            del strangers[stream]
            # A closed stream has no socket.
            has_shaken_hands = isinstance(stream.socket, ssl.SSLSocket) and stream.socket.version() is not None
            if not has_shaken_hands:
                stream.close()

    async def handle(stream: IOStream, address: tuple[str, int]) -> None:
        if len(strangers) >= MAX_STRANGERS:
            end(next(iter(strangers)))
        strangers[stream] = None
        asyncio.get_running_loop().call_later(_HANDSHAKE_S, end, stream)
        await handle_stream(stream, address)

    return handle
