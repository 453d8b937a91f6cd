"""What is learnt of a server before the load, from servers that have less than vLLM has."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.plan.from_profile import stages_of
from loadgen.run.probe import Served, probe, resolve_target
from loadgen.server.vllm.client import ServerClient
from loadgen.workload.prompts import FALLBACK_IDS, WORDS
from tests.engines import profile

STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
)


class Sparse:
    """An OpenAI-compatible server with the two endpoints that it must have, and opinions about fields."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # somebody only looked whether we answer
            writer.close()
            return
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        writer.write(self.answer(head.split(b" ")[1].decode(), await reader.readexactly(length)))
        await writer.drain()
        writer.close()

    def answer(self, path: str, body: bytes) -> bytes:
        if path == "/v1/models":
            return plain(200, {"data": [{"id": "m", "object": "model"}]})
        if not path.endswith("completions"):
            return plain(404, {"error": "no such thing"})
        document = json.loads(body)
        self.bodies.append(document)
        unknown = [name for name in self.refused if name in body.decode()]
        return plain(400, {"error": f"unknown field {unknown[0]}"}) if unknown else STREAM


def plain(status: int, document: Any) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@asynccontextmanager
async def serving(sparse: Sparse, host: str = "127.0.0.1") -> AsyncIterator[str]:
    server = await asyncio.start_server(sparse, host, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def learn(url: str, **load: Any) -> Served:
    parts = profile({"engine": "attach", "url": url}, load=load)
    async with ServerClient(url) as client:
        return await probe(client, None, parts.load, stages_of(parts), where="test")


async def test_without_a_tokenizer_a_small_range_of_ids_is_used_and_said() -> None:
    async with serving(Sparse()) as url:
        served = await learn(url)
    assert served.vocabulary.ids == FALLBACK_IDS
    assert (served.model, served.max_model_len, served.version) == ("m", None, None)
    assert any("no /tokenize" in note for note in served.notes)


async def test_without_a_tokenizer_a_word_is_taken_for_a_token() -> None:
    async with serving(Sparse()) as url:
        served = await learn(url, endpoint="chat")
    assert served.vocabulary.words == tuple(WORDS)
    assert any("usage" in note for note in served.notes)


@pytest.mark.parametrize(
    ("refused", "accepted"),
    [
        ((), {"ignore_eos", "stream_options"}),
        (("continuous_usage_stats",), {"ignore_eos", "stream_options"}),
        (("ignore_eos", "continuous_usage_stats"), {"stream_options"}),
        (("ignore_eos", "stream_options"), set()),
    ],
)
async def test_fields_that_are_refused_are_left_out_and_said(refused: tuple[str, ...], accepted: set[str]) -> None:
    sparse = Sparse(*refused)
    async with serving(sparse) as url:
        served = await learn(url)
    assert set(served.options) == accepted
    assert any("refused some fields" in note for note in served.notes) == bool(refused)
    assert not any(name in json.dumps(sparse.bodies[-1]) for name in refused)


async def test_a_server_that_refuses_everything_is_told_in_its_own_words() -> None:
    async with serving(Sparse("prompt")) as url:
        with pytest.raises(ServerError, match=r"first request failed: HTTP 400.*unknown field prompt"):
            await learn(url)


async def test_ipv6_and_names() -> None:
    async with serving(Sparse(), "::1") as url:
        target = await resolve_target(url)
        assert target.ip == "::1"
        assert (await learn(url)).model == "m"
    async with serving(Sparse()) as url:
        # `localhost` may name both families; the one that answers is taken.
        target = await resolve_target(url.replace("127.0.0.1", "localhost"))
        assert target.ip == "127.0.0.1"


@pytest.mark.parametrize(
    ("url", "words"), [("http://127.0.0.1:9", "nobody listens"), ("http://no.such.host.invalid:80", "no such host")]
)
async def test_addresses_that_lead_nowhere(url: str, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        await resolve_target(url)
