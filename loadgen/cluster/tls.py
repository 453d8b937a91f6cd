"""The certificate of a run: only processes that have it and its key can take part in the run's cluster.

It is generated for each run and never written to a disk: Dask reads it from a file in memory.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import Security

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
