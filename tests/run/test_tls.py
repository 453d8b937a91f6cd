"""A whole load over TLS, through a proxy that ends the encryption in front of the simulator."""

import asyncio
import contextlib

import pytest

from tests.conftest import Certificate
from tests.engines import Simulator, profile
from tests.run.driving import finish, run_of


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # ssl.SSLError is one.
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_tls_load_is_timed_in_user_space(
    engine: Simulator, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
    behind = engine.url.rpartition(":")[2]
    forwarding: list[asyncio.Task[None] | None] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        forwarding.append(asyncio.current_task())
        upstream, downstream = await asyncio.open_connection("127.0.0.1", int(behind))
        await asyncio.gather(pump(reader, downstream), pump(upstream, writer))

    async with await asyncio.start_server(forward, "127.0.0.1", 0, ssl=certificate.server) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        run = run_of(profile({"engine": "attach", "url": f"https://localhost:{port}"}))
        result = await finish(run)
        served = engine.truth()
        await asyncio.gather(*filter(None, forwarding))
    (stage,) = result.stages
    assert run.error is None
    assert stage.requests.sent == stage.requests.completed == 20
    assert result.client.timestamps == "user"
    assert result.client.read_lag_ms.count > 0
    # Of every stream but the first wave's four.
    assert stage.latency_ms["ttft"].count == 16
    assert (stage.tokens.source, stage.tokens.output) == ("usage", 20 * 8)
    # The probe's own request, and nothing was sent twice.
    assert served["requests"]["completed"] == 20 + 1
