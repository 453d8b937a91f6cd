"""What is learnt of a server before the load, from servers that have less than vLLM has."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from loadgen.errors import ServerError
from loadgen.run.probe import Accepted, Served, identify, probe, resolve_target
from loadgen.schema.snapshot import Snapshot
from loadgen.server.vllm import client as client_module
from loadgen.server.vllm.client import ServerClient
from loadgen.workload.prompts import FALLBACK_IDS, WORDS
from tests.engines import NOBODY, Simulator, attach, profile, simulator
from tests.run.driving import outcome

STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
)


class Sparse:
    """An OpenAI-compatible server with the two endpoints that it must have, and opinions about fields."""

    def __init__(self, *refused: str, status: int = 400) -> None:
        self.refused = refused
        self.status = status
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
        return plain(self.status, {"error": f"unknown field {unknown[0]}"}) if unknown else STREAM


def plain(status: int, document: Any) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@asynccontextmanager
async def serving(sparse: Sparse, host: str = "127.0.0.1") -> AsyncIterator[str]:
    server = await asyncio.start_server(sparse, host, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def learn(url: str, model: str | None = None, **load: Any) -> tuple[Served, Accepted]:
    parts = profile({"engine": "attach", "url": url}, load=load)
    async with ServerClient(url) as client:
        notes: list[str] = []
        served = await identify(client, model, parts.load, notes)
        accepted = await probe(client, served, parts.load)
        return served, msgspec.structs.replace(accepted, notes=(*notes, *accepted.notes))


async def test_without_a_tokenizer_a_small_range_of_ids_is_used_and_said() -> None:
    async with serving(Sparse()) as url:
        served, accepted = await learn(url)
    assert accepted.vocabulary.ids == FALLBACK_IDS
    assert (served.model, served.max_model_len, served.version) == ("m", None, None)
    assert any("/tokenize answered 404" in note and "the token ids 300 to 999" in note for note in accepted.notes)


async def test_without_a_tokenizer_a_word_is_taken_for_a_token() -> None:
    async with serving(Sparse()) as url:
        _, accepted = await learn(url, endpoint="chat")
    assert accepted.vocabulary.words == tuple(WORDS)
    assert any("usage" in note for note in accepted.notes)


@pytest.mark.parametrize(
    ("refused", "left_out"),
    [
        ((), []),
        (("continuous_usage_stats",), ["usage in every event"]),
        (("ignore_eos",), ["ignore_eos"]),
        (("ignore_eos", "continuous_usage_stats"), ["usage in every event", "ignore_eos"]),
        (("ignore_eos", "stream_options"), ["ignore_eos", "usage (tokens are counted as events"]),
        (("temperature",), ["temperature"]),
    ],
)
@pytest.mark.parametrize("status", [400, 422, 500])
async def test_fields_that_are_refused_are_left_out_in_one_note(
    refused: tuple[str, ...], left_out: list[str], status: int
) -> None:
    sparse = Sparse(*refused, status=status)
    async with serving(sparse) as url:
        _, found = await learn(url)
    notes = [note for note in found.notes if note.startswith("the server refuses what the load does without: ")]
    assert len(notes) == bool(refused)
    given_up = notes[0].split(": ", 1)[1].split("; ") if notes else []
    assert [text for text, start in zip(given_up, left_out, strict=True) if not text.startswith(start)] == []
    assert not any(name in json.dumps(found.options) for name in refused)
    assert set(refused) <= {*found.without, *(["continuous_usage_stats"] if "stream_options" in refused else [])}


@pytest.mark.parametrize("status", [400, 422, 500])
async def test_prompts_become_text_where_token_ids_are_refused(status: int) -> None:
    class TextOnly(Sparse):
        def answer(self, path: str, body: bytes) -> bytes:
            if body and isinstance(json.loads(body).get("prompt"), list):
                return plain(status, {"detail": "prompt must be a string."})
            return super().answer(path, body)

    async with serving(TextOnly()) as url:
        _, found = await learn(url)
    assert found.vocabulary.words == tuple(WORDS)
    assert found.without == ("prompt",)
    assert sum("prompts of token ids (they are text)" in note for note in found.notes) == 1


@pytest.mark.parametrize("hint", ["Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", "no"])
async def test_max_completion_tokens_takes_the_place_of_max_tokens(hint: str) -> None:
    class Newer(Sparse):
        def answer(self, path: str, body: bytes) -> bytes:
            return plain(400, {"error": hint}) if b'"max_tokens"' in body else super().answer(path, body)

    sparse = Newer()
    async with serving(sparse) as url:
        _, found = await learn(url, endpoint="chat")
    assert (found.without, found.osl_name) == (("max_tokens",), "max_completion_tokens")
    assert "max_completion_tokens" in sparse.bodies[-1]


async def test_a_server_that_refuses_everything_is_quoted() -> None:
    async with serving(Sparse("prompt")) as url:
        with pytest.raises(ServerError, match=r"first request failed: HTTP 400.*unknown field prompt"):
            await learn(url)


async def test_the_other_endpoint_is_named_where_it_would_do() -> None:
    class ChatOnly(Sparse):
        def answer(self, path: str, body: bytes) -> bytes:
            return plain(404, {"detail": "Not Found"}) if path == "/v1/completions" else super().answer(path, body)

    async with serving(ChatOnly()) as url:
        with pytest.raises(ServerError, match=r"HTTP 404.*the server has /v1/chat/completions: use --endpoint chat"):
            await learn(url)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n', "out of memory"),
        (b'data: {"choices": [{"text": "", "finish_reason": "abort"}]}\n\ndata: [DONE]\n\n', "'abort'"),
        (b"<html>Welcome</html>", "not an event stream: <html>Welcome"),
        (b'data: {"choices": [{"text": "a"}]}\n\n', "without a finish reason"),
    ],
)
async def test_the_first_request_is_judged_as_a_stream_of_the_load(answer: bytes, words: str) -> None:
    class Failing(Sparse):
        def answer(self, path: str, body: bytes) -> bytes:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            return head + answer if path.endswith("completions") else super().answer(path, body)

    async with serving(Failing()) as url:
        with pytest.raises(ServerError, match=f"the first request failed: .*{re.escape(words)}"):
            await learn(url)


ODD_ANSWERS: dict[str, bytes | None] = {
    "401": plain(401, {"message": "not here"}),
    "403": plain(403, {"message": "not here"}),
    "404": plain(404, {}),
    "400": plain(400, {"error": "bad request"}),
    "500": plain(500, "Internal Server Error"),
    "503": plain(503, "later"),
    "302": b"HTTP/1.1 302 Found\r\nLocation: /login\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    "html": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<!doctype html><title>Welcome</title>",
    "empty": plain(200, None).replace(b"null", b"").replace(b"Content-Length: 4", b"Content-Length: 0"),
    "null": plain(200, None),
    "list": plain(200, []),
    "error": plain(200, {"error": "no"}),
    "types": plain(200, {"version": 7, "tokens": [["a"]], "data": 3}),
    "numbers": plain(200, {"tokens": [10**30], "version": "", "data": [{"id": 5}]}),
    "huge": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(1 << 17),
    "closed": b"",
    "not http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "silent": None,
}


class Odd(Sparse):
    """Answers some paths oddly; None is no answer at all, until the client gives up."""

    def __init__(self, paths: tuple[str, ...], odd: bytes | None) -> None:
        super().__init__()
        self.paths = paths
        self.odd = odd

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.odd is not None:
            await super().__call__(reader, writer)
            return
        head = await reader.read(4096)
        if any(b" %b " % path.encode() in head for path in self.paths):
            await reader.read()
        elif head:
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0)
            body = head.partition(b"\r\n\r\n")[2]
            while len(body) < length:
                body += await reader.read(4096)
            writer.write(super().answer(head.split(b" ")[1].decode(), body))
        writer.close()

    def answer(self, path: str, body: bytes) -> bytes:
        return (self.odd or b"") if path in self.paths else super().answer(path, body)


@pytest.mark.parametrize("odd", ODD_ANSWERS)
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_what_is_optional_may_answer_anything(odd: str, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_ANSWER_S", 0.2)
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 1 << 16)
    # With a model that is named, the list of models is optional, too.
    paths: tuple[str, ...] = ("/version", "/tokenize", "/v1/models")
    async with serving(Odd(paths, ODD_ANSWERS[odd])) as url:
        if odd in ("401", "403"):  # on /v1 it is about the key
            with pytest.raises(ServerError, match=r"/v1/models: wants an API key"):
                await learn(url)
            paths = paths[:2]
    async with serving(Odd(paths, ODD_ANSWERS[odd])) as url:
        served, accepted = await learn(url, "m", endpoint=endpoint)
    assert (served.model, served.version) == ("m", None)
    assert accepted.without == ()
    for what in (
        "the engine's version is unknown",
        "the vocabulary is" if endpoint == "completions" else "the tokens of",
    ):
        assert sum(note.startswith(what) for note in accepted.notes) == 1, (what, accepted.notes)
    assert not any("API key" in note for note in accepted.notes)


@pytest.mark.parametrize("listed", [[], None, [{"id": "unknown"}], [{"object": "model"}]])
async def test_a_named_model_overrules_the_list(listed: Any) -> None:
    async with serving(Odd(("/v1/models",), plain(200, {"data": listed}))) as url:
        served, accepted = await learn(url, "m")
        assert served.model == "m"
        assert sum("m is requested as named" in note for note in accepted.notes) == 1
        if listed == [{"id": "unknown"}]:
            return
        with pytest.raises(ServerError, match=r"/v1/models.*name the model with --model"):
            await learn(url)


async def test_ipv6_and_names() -> None:
    async with serving(Sparse(), "::1") as url:
        target = await resolve_target(url)
        assert target.ip == "::1"
        assert (await learn(url))[0].model == "m"
    async with serving(Sparse()) as url:
        # `localhost` may name both families; the one that answers is taken.
        target = await resolve_target(url.replace("127.0.0.1", "localhost"))
        assert target.ip == "127.0.0.1"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9", "nothing listens"),
        ("http://no.such.host.invalid:80", "no such host"),
        (f"http://{'x' * 300}:80", "no such host"),
    ],
)
async def test_addresses_that_lead_nowhere(url: str, words: str) -> None:
    with pytest.raises(ServerError, match=words):
        await resolve_target(url)


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    with simulator("--served-model-name", "base", "adapter") as engine:
        yield engine


def running(engine: Simulator) -> list[str]:
    """What the engine's own metrics say is running."""
    text = httpx.get(f"{engine.url}/metrics", trust_env=False).text
    return re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)


async def test_responses_have_the_isl_of_a_chat_and_usage(engine: Simulator) -> None:
    result, error = await outcome(attach(engine, load={"endpoint": "responses", "isl": 64, "osl": 8}))
    stage = result.stages[0]
    assert (error, stage.requests.completed, stage.requests.failed) == (None, 20, 0)
    assert (stage.tokens.input, stage.tokens.output, stage.tokens.source) == (20 * 64, 20 * 8, "usage")
    assert (stage.latency_ms["ttft"].count, stage.latency_ms["itl"].count) == (16, 16 * 7)


@pytest.mark.parametrize("endpoint", ["completions", "chat", "responses"])
async def test_clients_hang_up_and_the_engine_runs_empty(engine: Simulator, endpoint: str) -> None:
    # Long enough that no stream is over before its client hangs up.
    load = {"endpoint": endpoint, "isl": 32, "osl": 300, "cancel": {"share": 0.5, "after": "100ms"}}
    result, error = await outcome(attach(engine, load=load))
    requests = result.stages[0].requests
    assert (error, result.state) == (None, "complete")
    assert requests.cancelled
    assert (requests.sent, requests.completed + requests.cancelled) == (20, 20)
    assert (requests.failed, requests.unfinished, requests.errors) == (0, 0, {})
    # Of the first wave, which is apart, some may have completed.
    assert requests.completed - 4 <= result.stages[0].latency_ms["e2e"].count <= requests.completed
    truth = engine.truth()["requests"]
    # The first request of the probe is complete too.
    assert (truth["aborted"], truth["completed"], truth["open"]) == (requests.cancelled, requests.completed + 1, 0)
    assert running(engine) == ["0.0"]


async def test_the_seed_decides_who_hangs_up_and_every_slot_is_filled_again(engine: Simulator) -> None:
    load = {"osl": 300, "cancel": {"share": 0.3, "after": "50ms"}, "requests": 16, "concurrency": 4}
    results = [await outcome(attach(engine, load=load | {"workers": workers})) for workers in (1, 2)]
    first, second = (result.stages[0].requests for result, _ in results)
    assert first.cancelled == second.cancelled > 0
    assert first.completed == second.completed == 16 - first.cancelled


async def test_all_hang_up_in_open_loop(engine: Simulator) -> None:
    load = {"rate": [100.0], "requests": 20, "osl": 300, "cancel": {"share": 1, "after": "20ms"}}
    result, error = await outcome(attach(engine, load=load))
    requests = result.stages[0].requests
    assert (error, requests.sent, requests.cancelled, requests.completed) == (None, 20, 20, 0)
    assert running(engine) == ["0.0"]


async def test_a_stream_that_is_over_before_its_client_would_hang_up_is_complete(engine: Simulator) -> None:
    result, _ = await outcome(attach(engine, load={"cancel": {"share": 1, "after": "1h"}}))
    assert (result.stages[0].requests.completed, result.stages[0].requests.cancelled) == (20, 0)


async def test_models_by_weight(engine: Simulator) -> None:
    load = {"models": {"base": 1, "adapter": 3}, "requests": 100, "workers": 2}
    results = [(await outcome(attach(engine, load=load)))[0] for _ in range(2)]
    first, second = (result.stages[0].requests for result in results)
    assert first.completed == 100
    assert first.models == second.models
    assert sum(first.models.values()) == 100
    assert 55 <= first.models["adapter"] <= 95


async def test_a_model_that_is_not_served_is_told_before_the_load(engine: Simulator) -> None:
    result, error = await outcome(attach(engine, load={"models": {"base": 1, "nope": 3}}))
    assert isinstance(error, ServerError)
    assert "/v1/models lists base, adapter; name the model with --model" in str(error)
    assert result.stages == []


async def test_extra_fields_reach_the_server_and_its_refusal_is_told(engine: Simulator) -> None:
    result, error = await outcome(attach(engine, load={"extra_body": {"min_tokens": 2}}))
    assert (error, result.stages[0].requests.completed) == (None, 20)
    _, error = await outcome(attach(engine, load={"extra_body": {"min_tokens": "many"}}))
    assert isinstance(error, ServerError)
    assert "the first request failed: HTTP 400" in str(error)
    assert "min_tokens" in str(error)


@pytest.mark.parametrize("kind", [{"concurrency": 4}, {"rate": [200.0]}])
async def test_several_urls_take_turns(engine: Simulator, kind: dict[str, object]) -> None:
    seen: list[Snapshot] = []
    with simulator("--served-model-name", "base", "adapter") as other:
        urls = [engine.url, other.url]
        parts = profile({"engine": "attach", "urls": urls}, load={"requests": 20, **kind})
        result, error = await outcome(parts, lambda _, snapshot: seen.append(snapshot))
        truths = [each.truth()["requests"]["completed"] for each in (engine, other)]
    assert (error, result.client.workers) == (None, 2)
    stage = result.stages[0]
    assert [(part.url, part.requests.completed) for part in stage.instances] == [(url, 10) for url in urls]
    assert stage.requests.completed == 20
    assert truths == [11, 11]
    assert [instance["url"] for instance in result.environment["server_instances"]] == urls
    assert [(view.url, view.state, view.pid) for view in seen[-1].server.instances] == [
        (url, "ready", None) for url in urls
    ]
    assert result.profile["server"]["urls"] == urls


async def test_one_of_several_urls_that_nobody_serves(engine: Simulator) -> None:
    parts = profile({"engine": "attach", "urls": [engine.url, NOBODY]})
    _, error = await outcome(parts)
    assert isinstance(error, ServerError)
    assert f"{NOBODY}: nothing listens there" in str(error)
