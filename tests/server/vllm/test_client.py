"""The client against a small real server, one answer at a time."""

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.profile.schema import Server
from loadgen.schema.engine import OwnRequests
from loadgen.server.process.ports import free_port
from loadgen.server.vllm.client import ModelInfo, ServerClient, api_key, base_url, optional, pick_model
from tests.conftest import Certificate

Answer = tuple[int, bytes]


SILENCE: Answer = (0, b"")


@asynccontextmanager
async def answering(
    answer: Callable[[str, bytes], Answer | None], tls: ssl.SSLContext | None = None, location: str | None = None
) -> AsyncIterator[str]:
    """A server that answers (request line and headers, body) with (status, body); None closes without an answer."""
    handlers: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(line.split(":")[1]) for line in head.lower().splitlines() if "content-length" in line), 0)
        reply = answer(head, await reader.readexactly(length))
        if reply is SILENCE:
            await reader.read()
        elif reply is not None:
            status, body = reply
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n".encode())
            if location is not None:
                writer.write(f"Location: {location}\r\n".encode())
            writer.write(b"Connection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()
        # Otherwise the loop may be closed before the socket is, which a later test would be blamed for.
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        await asyncio.gather(*(handler for handler in handlers if handler is not None))


def always(status: int, body: bytes = b"{}") -> Callable[[str, bytes], Answer]:
    return lambda head, sent: (status, body)


async def test_tls_that_breaks_within_an_answer_is_reported(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        # A record that was not encrypted with the key of the connection, past asyncio's own layer.
        os.write(writer.get_extra_info("socket").fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(break_off, "127.0.0.1", 0, ssl=certificate.server) as server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        async with ServerClient(url) as client:
            with pytest.raises(ServerError, match="TLS failed"):
                await client.metrics_text()


async def test_the_happy_path_under_a_prefix() -> None:
    bodies: list[dict[str, Any]] = []

    def answer(head: str, body: bytes) -> Answer:
        # Whatever listens there is asked for its health, before it is known whose it is.
        assert ("authorization: bearer k" in head.lower()) is not head.startswith("GET /p/health ")
        if body:
            bodies.append(json.loads(body))
        return 200, {
            "GET /p/health": b"",
            "GET /p/v1/models": b'{"object": "list", "data": [{"id": "m", "max_model_len": 8, "x": 1}, {"id": "n"}]}',
            "GET /p/version": b'{"version": "0.32.0"}',
            "GET /p/metrics": b"a 1\n",
            "POST /p/tokenize": b'{"count": 2, "tokens": [1, 2]}',
        }[head.partition(" HTTP")[0]]

    async with answering(answer) as url, ServerClient(f"{url}/p/", "k") as client:
        assert await client.is_ready() is True
        assert await client.models() == [ModelInfo("m", 8), ModelInfo("n")]
        assert await client.version() == "0.32.0"
        assert await client.metrics_text() == "a 1\n"
        assert await client.tokenize_text("m", "hi") == [1, 2]
        assert await client.tokenize_messages("m", [{"role": "user", "content": "hi"}]) == [1, 2]
    assert bodies[0] == {"model": "m", "prompt": "hi", "add_special_tokens": False}
    assert bodies[1]["messages"] == [{"role": "user", "content": "hi"}]


async def test_optional_endpoints_may_be_missing() -> None:
    async with answering(always(404)) as url, ServerClient(url) as client:
        assert await client.is_ready() is True  # it answers
        requested = [client.version(), client.metrics_text(), client.tokenize_text("m", "hi"), client.models()]
        paths = ["/version", "/metrics", "/tokenize", "/v1/models"]
        for path, found in zip(paths, [await optional(one) for one in requested], strict=True):
            assert found.value is None
            assert found.why == f"{url}{path} answered 404: {{}}"


@pytest.mark.parametrize(
    ("request_line", "schema"),
    [
        ("prompt", b'{"count": 2, "tokens": [1, 2], "max_model_len": 8}'),
        ("inputs", b'[{"id": 1, "text": "a", "start": 0, "stop": 1}, {"id": 2, "text": "b", "start": 1, "stop": 2}]'),
        ("content", b'{"tokens": [1, 2]}'),
        ("text", b'{"tokens": [1, 2], "count": 2}'),
    ],
)
@pytest.mark.parametrize("refusal", [(422, b"missing field"), (400, b'{"error": 1}'), (200, b'{"tokens": []}')])
async def test_the_tokenize_schemas_of_several_servers(request_line: str, schema: bytes, refusal: Answer) -> None:
    requested: list[str] = []

    def answer(head: str, body: bytes) -> Answer:
        fields = json.loads(body)
        requested.append(next(name for name in ("prompt", "inputs", "content", "text") if name in fields))
        return (200, schema) if request_line in fields else refusal

    async with answering(answer) as url, ServerClient(url) as client:
        for _ in range(2):
            assert await client.tokenize_text("m", "hi there") == [1, 2]
    assert requested[-2:] == [request_line] * 2  # once it is known, it is the only one


@pytest.mark.parametrize(
    "content", [b"{}", b"null", b"[]", b'{"tokens": [[1, 2]]}', b'{"tokens": ["a"]}', b'{"tokens": [1e400]}', b"<html>"]
)
async def test_an_odd_tokenize_answer_is_none(content: bytes) -> None:
    async with answering(always(200, content)) as url, ServerClient(url) as client:
        found = await optional(client.tokenize_text("m", "hi"))
        assert found.value is None
        assert f"{url}/tokenize answered" in found.why


@pytest.mark.parametrize(
    ("answer", "key", "message"),
    [
        (always(404), None, r"/v1/models answered 404"),
        (always(200, b"<html>\x1b[31mhello"), None, "/v1/models answered '<html>hello', which vramp cannot read"),
        (always(200, b'{"data": 1}'), None, "which vramp cannot read"),
        (always(401), None, "wants an API key .*server.api_key_env"),
        (always(403), "k", "refused the API key .*environment variable MY_KEY"),
        (always(500, b"x" * 300), None, "answered 500: x+…"),
        (lambda head, sent: None, None, r"the connection broke off \(.+\)"),
    ],
)
async def test_answers_that_explain_themselves(
    answer: Callable[[str, bytes], Answer], key: str | None, message: str
) -> None:
    async with answering(answer) as url, ServerClient(url, key, api_key_env="MY_KEY") as client:
        with pytest.raises(ServerError, match=message) as caught:
            await client.models()
    assert str(caught.value).startswith(url)


async def test_a_trial_request_gives_status_and_excerpt() -> None:
    async with answering(always(400, b"too long")) as url, ServerClient(url) as client:
        assert await client.try_request("/v1/completions", {}, timeout_s=20) == (400, b"too long", "too long")
    async with answering(always(401)) as url, ServerClient(url) as client:
        with pytest.raises(ServerError, match="wants an API key"):
            await client.try_request("/v1/completions", {}, timeout_s=20)
    async with answering(lambda head, sent: None) as url, ServerClient(url) as client:
        with pytest.raises(ServerError, match="broke off"):
            await client.try_request("/v1/completions", {}, timeout_s=20)


@pytest.mark.parametrize(
    ("answer", "input_tokens", "output_tokens"),
    [
        (b'{"usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": null}}', 7, 2),
        (b'data: {"usage":{"input_tokens":9,"output_tokens":1}}\n\ndata: {"usage":{"output_tokens":16}}\n\n', 9, 16),
        (b'{"text": "\\"prompt_tokens\\": 5"}', 0, 0),
    ],
)
async def test_what_the_engine_is_sent_during_the_load_is_counted(
    answer: bytes, input_tokens: int, output_tokens: int
) -> None:
    async with answering(always(200, answer)) as url, ServerClient(url) as client:
        await client.is_ready()
        await client.try_request("/v1/completions", {}, timeout_s=20)
        await client.answer("/v1/completions", {}, headers={}, timeout_s=20)
        twice = OwnRequests(requests=2, input_tokens=2 * input_tokens, output_tokens=2 * output_tokens)
        assert [client.own_requests(), client.own_requests()] == [twice, OwnRequests()]
    async with answering(lambda head, sent: SILENCE) as url, ServerClient(url) as client:
        requested = asyncio.create_task(client.try_request("/v1/completions", {}, timeout_s=20))
        await asyncio.sleep(0)
        assert client.own_requests() == OwnRequests(open=1)
        requested.cancel()
        await asyncio.gather(requested, return_exceptions=True)
        assert client.own_requests() == OwnRequests(requests=1)


async def test_nobody_listens() -> None:
    async with ServerClient(base_url("127.0.0.1", free_port("127.0.0.1"))) as client:
        assert await client.is_ready() is False
        with pytest.raises(ServerError, match="nothing listens there"):
            await client.models()


async def test_no_such_host() -> None:
    async with ServerClient("http://no.such.host.invalid") as client:
        with pytest.raises(ServerError, match="no such host"):
            await client.models()


async def test_an_answer_that_does_not_come() -> None:
    async with answering(lambda head, sent: SILENCE) as url, ServerClient(url) as client:
        with pytest.raises(ServerError, match=r"/v1/completions: no complete answer within 0.05 s"):
            await client.try_request("/v1/completions", {}, timeout_s=0.05)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Writes lines of metrics until the other side has enough."""
    with contextlib.suppress(ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(b"vllm:prompt_tokens_total 1\n" * 10_000)
            await writer.drain()


async def test_a_page_without_an_end() -> None:
    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server, ServerClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(ServerError, match=r"/metrics: more than 16 MiB"):
            await client.metrics_text()


async def test_tls(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(always(200, b'{"data": []}'), certificate.server) as url:
        async with ServerClient(url) as client:
            with pytest.raises(ServerError, match=r"TLS failed: .*SSL_CERT_FILE"):
                await client.models()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.authority))
        async with ServerClient(url) as client:
            assert await client.models() == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with answering(always(200)) as url, ServerClient(url) as client:
        assert await client.is_ready() is True


def test_picking_a_model() -> None:
    assert pick_model([ModelInfo("a"), ModelInfo("b", 8)]) == ModelInfo("a")
    with pytest.raises(ServerError, match="no model at /v1/models; name the model with --model"):
        pick_model([])


@pytest.mark.parametrize(
    ("content", "models"),
    [
        (b'{"data": null}', []),
        (b'{"data": []}', []),
        (b'{"data": [{"id": "a"}, {"id": 7}, {"id": ""}, {}, {"id": "b", "max_model_len": "x"}]}', ["a", "b"]),
        (b'{"data": [{"id": "a", "max_model_len": 1e99}, {"id": "b", "max_model_len": -4}]}', ["a", "b"]),
    ],
)
async def test_odd_lists_of_models(content: bytes, models: list[str]) -> None:
    async with answering(always(200, content)) as url, ServerClient(url) as client:
        assert await client.models() == [ModelInfo(name) for name in models]


@pytest.mark.parametrize(
    ("health", "models", "ready"),
    [(200, 200, True), (404, 404, True), (403, 200, True), (503, 200, False), (200, 503, False), (500, 200, True)],
)
async def test_ready_is_whoever_answers_and_does_not_say_otherwise(health: int, models: int, *, ready: bool) -> None:
    def answer(head: str, body: bytes) -> Answer:
        return (health if "/health" in head else models), b"<html>"

    async with answering(answer) as url, ServerClient(url) as client:
        assert await client.is_ready() is ready


async def test_nothing_is_sent_once_it_is_closed() -> None:
    async with ServerClient("http://127.0.0.1:1") as client:
        pass
    with pytest.raises(ServerError, match="not sent: the run disconnects"):
        await client.metrics_text()


async def test_a_slash_is_added_on_the_same_host_only() -> None:
    def answer(head: str, body: bytes) -> Answer:
        if head.startswith("GET /metrics/ "):
            return 200, b"a 1\n"
        return 307, b"\r\n"

    async with answering(answer, location="/metrics/") as url, ServerClient(url, "secret-key") as client:
        assert await client.metrics_text() == "a 1\n"
    async with answering(answer, location="http://127.0.0.2:9/login") as url, ServerClient(url, "secret-key") as client:
        with pytest.raises(ServerError, match=r"answered 307.*http://127.0.0.2:9/login"):
            await client.metrics_text()


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("gpu-box", "http://gpu-box:80"),
    ],
)
def test_where_a_host_is_reached(host: str, url: str) -> None:
    assert base_url(host, 80) == url


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "from us")
    monkeypatch.delenv("UNSET", raising=False)
    attach = {"engine": "attach", "url": "http://h"}
    assert api_key(Server.model_validate(attach)) is None
    assert api_key(Server.model_validate({**attach, "api_key_env": "OURS"})) == "from us"
    assert api_key(Server.model_validate({**attach, "api_key_env": "A", "env": {"A": "profile"}})) == "profile"
    with pytest.raises(ServerError, match="'UNSET': this environment variable is not set"):
        api_key(Server.model_validate({**attach, "api_key_env": "UNSET"}))


@pytest.mark.parametrize("around", ["\n", "\r\n", " "])
def test_white_space_around_a_key_is_not_the_keys(monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    monkeypatch.setenv("OURS", f"{around}from us{around}")
    assert api_key(Server(engine="attach", url="http://h", api_key_env="OURS")) == "from us"


@pytest.mark.parametrize("key", ["one\ntwo", "one\0two", "schlüssel", "one\u00a0two"])
def test_a_key_that_no_header_can_carry_is_refused_without_telling_it(key: str) -> None:
    server = Server(engine="attach", url="http://h", api_key_env="A", env={"A": key})
    with pytest.raises(ServerError, match=r"^server\.api_key_env = 'A': this environment variable holds") as caught:
        api_key(server)
    assert key not in str(caught.value)
