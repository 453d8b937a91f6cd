"""Servers that answer optional paths with anything, and refuse requests in any form: the load goes on, and says so."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ServerError
from loadgen.profile.document import build_profile, load_document
from loadgen.profile.load import Load
from loadgen.run.engine_watch import EngineWatch
from loadgen.run.probe import Accepted, identify, probe
from loadgen.schema.journal import Happened, Line
from loadgen.server.vllm.client import ServerClient, until_ready
from loadgen.workload.prompts import FALLBACK_IDS, WORDS
from tests.engines import profile
from tests.run.driving import outcome, texts

ENDLESS, SILENT, HANGS_UP = "endless", "silent", "hangs up"
ODD: dict[str, tuple[int, bytes] | str] = {
    "403": (403, b"{}"),
    "401": (401, b"{}"),
    "404": (404, b"{}"),
    "302": (302, b""),
    "429": (429, b""),
    "500": (500, b"oops"),
    "503": (503, b"loading"),
    "html": (200, b"<!doctype html><title>Welcome</title>"),
    "null": (200, b"null"),
    "list": (200, b"[]"),
    "nested lists": (200, b"[" * 5000 + b"]" * 5000),
    "error": (200, b'{"error": {"message": "no"}}'),
    "wrong types": (200, b'{"data": 1, "version": 1, "tokens": [["a"]]}'),
    "huge numbers": (200, b'{"data": [1%b], "version": 1e999, "tokens": [1%b]}' % (b"0" * 400, b"0" * 400)),
    "empty": (200, b""),
    HANGS_UP: HANGS_UP,
    SILENT: SILENT,
    ENDLESS: ENDLESS,
}


class Server:
    """Serves completions and chat by `post`, and answers each path of `odd` oddly."""

    def __init__(
        self,
        post: Callable[[str, dict[str, Any]], tuple[int, bytes] | None] = lambda path, body: None,
        odd: dict[str, tuple[int, bytes] | str] | None = None,
    ) -> None:
        self.post, self.odd = post, odd or {}
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-l")), 0)
            body = await reader.readexactly(length)
            answer = self.answer(head.split(" ")[1], body)
            if answer == SILENT:
                await reader.read()
            elif answer == ENDLESS:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    writer.write(b"{" * 1_000_000)
                    await writer.drain()
            elif not isinstance(answer, str):
                kind = "Location: /login\r\n" if answer[0] == 302 else ""
                lines = f"HTTP/1.1 {answer[0]} X\r\n{kind}Connection: close\r\nContent-Length: {len(answer[1])}\r\n\r\n"
                writer.write(lines.encode() + answer[1])
                await writer.drain()
        writer.close()

    def answer(self, path: str, body: bytes) -> tuple[int, bytes] | str:
        if path in self.odd:
            return self.odd[path]
        if path == "/v1/models":
            return 200, b'{"data": [{"id": "m"}]}'
        if not path.endswith("/completions"):
            return 404, b"{}"
        document = json.loads(body)
        self.bodies.append(document)
        return self.post(path, document) or (200, streamed(document))


def streamed(document: dict[str, Any]) -> bytes:
    """An answer of one event, with usage in it."""
    choice = {"index": 0, "text": "a", "delta": {"content": "a"}, "finish_reason": "length"}
    event = {"choices": [choice], "usage": {"prompt_tokens": 16, "completion_tokens": 1}}
    return b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(event).encode()


@asynccontextmanager
async def serving(server: Server, host: str = "127.0.0.1") -> AsyncIterator[str]:
    async with await asyncio.start_server(server, host, 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def learn(url: str, *, model: str | None = "m", key: str | None = None, **load: Any) -> Accepted:
    """What is accepted, with all notes."""
    settings = Load(isl=16, osl=8, **load)
    notes: list[str] = []
    async with ServerClient(url, key) as client:
        accepted = await probe(client, await identify(client, model, settings, notes), settings)
    return Accepted(accepted.vocabulary, accepted.options, (*notes, *accepted.notes), accepted.without)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer is not waited for."""
    monkeypatch.setattr("loadgen.server.vllm.client._ANSWER_S", 0.5)
    monkeypatch.setattr("loadgen.server.vllm.client.MAX_ANSWER_BYTES", 1 << 20)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("path", ["/version", "/tokenize", "/v1/models"])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_what_an_optional_path_answers_is_noted_once(endpoint: str, path: str, odd: str) -> None:
    async with serving(Server(odd={path: ODD[odd]})) as url:
        accepted = await learn(url, endpoint=endpoint, key="secret")
    assert accepted.without == ()
    if path == "/v1/models" and odd == "list":
        assert accepted.notes[0] == "/v1/models lists no model; m is requested as named"
    else:
        assert len([note for note in accepted.notes if f"{url}{path}" in note]) == 1
    assert not any("API key" in note for note in accepted.notes) or path == "/v1/models"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("odd", ODD)
async def test_metrics_that_cannot_be_read_are_noted_once(odd: str) -> None:
    lines: list[Line] = []
    async with serving(Server(odd={"/metrics": ODD[odd]})) as url, ServerClient(url, "secret") as client:
        watch = EngineWatch([client], lines.append, lambda: 0.0)
        await watch.start()
        await watch.read_between()
        await watch.close()
    (said,) = [line.text for line in lines if isinstance(line, Happened)]
    assert url in said and "API key" not in said


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("odd", sorted(set(ODD) - {"503"}))
async def test_a_readiness_wait_does_not_need_health(odd: str) -> None:
    async with serving(Server(odd={"/health": ODD[odd]})) as url, ServerClient(url) as client:
        assert await until_ready(client, asyncio.Event())


async def test_a_run_says_on_screen_and_in_the_result_what_is_unknown() -> None:
    odd: dict[str, tuple[int, bytes] | str] = dict.fromkeys(("/version", "/tokenize", "/metrics"), (403, b"no"))
    said: set[str] = set()
    async with serving(Server(odd=odd)) as url:
        parts = profile({"engine": "attach", "url": url}, load={"endpoint": "chat"})
        result, error = await outcome(parts, lambda _, seen: said.update(event.text for event in seen.events))
    assert (error, result.state, result.stages[0].requests.completed) == (None, "complete", 20)
    notes = [*texts(result, "server"), *texts(result, "engine")]
    for path in odd:
        assert len([note for note in notes if f"{path} answered 403: no" in note]) == 1
    assert set(notes) <= said


# The first request.


def refusing(
    names: Collection[str], *, named: bool, status: int = 400
) -> Callable[[str, dict[str, Any]], tuple[int, bytes] | None]:
    """Refuse requests with any of these fields, or a prompt of token ids; in words that name the first or none."""

    def post(path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        sent = json.dumps({name: value for name, value in body.items() if name not in ("prompt", "messages")})
        bad = [name for name in names if f'"{name}"' in sent]
        bad += ["prompt"] if "prompt" in names and isinstance(body.get("prompt"), list) else []
        return (status, f"unsupported: {bad[0] if named else 'something'}".encode()) if bad else None

    return post


@pytest.mark.parametrize(("named", "status"), [(True, 400), (False, 400), (True, 422), (False, 500)])
@pytest.mark.parametrize(
    ("endpoint", "names"),
    [
        ("completions", ["prompt"]),
        ("completions", ["ignore_eos", "continuous_usage_stats"]),
        ("completions", ["prompt", "ignore_eos"]),
        ("completions", ["continuous_usage_stats", "temperature"]),
        ("completions", ["prompt", "ignore_eos", "temperature"]),
        ("chat", ["max_tokens"]),
        ("chat", ["max_tokens", "temperature"]),
        ("chat", ["ignore_eos", "continuous_usage_stats", "max_tokens"]),
        ("chat", ["temperature"]),
    ],
)
async def test_only_what_is_refused_is_given_up(endpoint: str, names: list[str], named: bool, status: int) -> None:
    server = Server(refusing(names, named=named, status=status))
    async with serving(server) as url:
        accepted = await learn(url, endpoint=endpoint)
    assert sorted(accepted.without) == sorted(names)
    assert len(server.bodies) <= 12
    (note,) = [note for note in accepted.notes if note.startswith("the server refuses")]
    assert all(name in note for name in names if name not in ("prompt", "continuous_usage_stats"))
    assert bool(accepted.vocabulary.words) == (endpoint == "chat" or "prompt" in names)
    assert accepted.osl_name == ("max_completion_tokens" if "max_tokens" in names else None)
    assert not any(name in json.dumps(accepted.options) for name in names)


async def test_usage_that_is_refused_takes_that_of_every_event_with_it() -> None:
    async with serving(Server(refusing(["stream_options"], named=True))) as url:
        accepted = await learn(url)
    (note,) = [note for note in accepted.notes if note.startswith("the server refuses")]
    assert note.endswith("does without: usage (tokens are counted as events unless it is sent anyway)")
    assert "stream_options" not in accepted.options


async def test_prompts_without_a_tokenizer() -> None:
    async with serving(Server()) as url:
        ids, words = await learn(url), await learn(url, endpoint="chat")
    assert ids.vocabulary.ids == FALLBACK_IDS
    assert any("/tokenize answered 404" in note and "the token ids 300 to 999" in note for note in ids.notes)
    assert words.vocabulary.words == tuple(WORDS)
    assert any("usage" in note for note in words.notes)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'data: {"error": {"message": "out of memory", "code": 507}}\n\ndata: [DONE]\n\n', "out of memory"),
        (b'data: {"choices": [{"text": "", "finish_reason": "abort"}]}\n\ndata: [DONE]\n\n', "'abort'"),
        (b"<html>Welcome</html>", "not an event stream: <html>Welcome"),
        (b'data: {"choices": [{"text": "a"}]}\n\n', "without a finish reason"),
    ],
)
async def test_the_first_request_is_judged_as_a_stream_of_the_load(answer: bytes, words: str) -> None:
    async with serving(Server(lambda path, body: (200, answer))) as url:
        with pytest.raises(ServerError, match=f"the first request failed: .*{re.escape(words)}"):
            await learn(url)


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"message": "Token id 985 is out of vocabulary", "type": "BadRequestError", "code": 400}}',
        b'data: {"object": "error", "message": "no token ids", "code": "422"}',
        b'event: error\ndata: {"message": "no token ids"}',
        b"error: no token ids",
    ],
)
async def test_token_ids_refused_inside_a_stream_become_text(error: bytes) -> None:
    def post(path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        return (200, error + b"\n\ndata: [DONE]\n\n") if isinstance(body["prompt"], list) else None

    server = Server(post)
    async with serving(server) as url:
        accepted = await learn(url)
    (note,) = [note for note in accepted.notes if note.startswith("the server refuses")]
    assert note.endswith("does without: prompts of token ids (they are text)")
    assert accepted.vocabulary.words and len(server.bodies) == 2


async def test_an_engine_that_is_only_busy_inside_a_stream_is_asked_once() -> None:
    busy = b'data: {"error": {"message": "paused", "code": 503}}\n\ndata: [DONE]\n\n'
    server = Server(lambda path, body: (200, busy))
    async with serving(server) as url:
        with pytest.raises(ServerError, match=r"the first request failed: paused \(503\)$"):
            await learn(url)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("endpoint", "names"), [("chat", ["max_tokens", "temperature"]), ("completions", ["prompt", "ignore_eos"])]
)
async def test_the_load_is_sent_in_the_form_that_was_accepted(endpoint: str, names: list[str]) -> None:
    server = Server(refusing(names, named=False))
    async with serving(server) as url:
        result, error = await outcome(profile({"engine": "attach", "url": url}, load={"endpoint": endpoint}))
    assert (error, result.stages[0].requests.completed) == (None, 20)
    assert not any(name in body for body in server.bodies[-20:] for name in names if name != "prompt")
    assert not any(isinstance(body.get("prompt"), list) for body in server.bodies[-20:])
    assert {body.get("max_tokens", body.get("max_completion_tokens")) for body in server.bodies[-20:]} == {8}


async def test_the_deciding_refusal_is_shown_and_not_the_first() -> None:
    def post(path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        if "ignore_eos" in body:
            return 422, b"unexpected field ignore_eos"
        if "max_completion_tokens" in body:
            return 422, b"unexpected field max_completion_tokens"
        return 422, b"this account has no credit"

    async with serving(Server(post)) as url:
        with pytest.raises(ServerError, match=r"m: the first request failed: HTTP 422: this account has no credit$"):
            await learn(url, endpoint="chat")


@pytest.mark.parametrize("refusal", [(404, b"no such path"), (422, b"not for chat models")])
@pytest.mark.parametrize(("endpoint", "other"), [("completions", "chat"), ("chat", "completions")])
async def test_the_endpoint_that_the_server_has_is_named(endpoint: str, other: str, refusal: tuple[int, bytes]) -> None:
    def post(path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        return None if ("chat" in path) == (other == "chat") else refusal

    async with serving(Server(post)) as url:
        with pytest.raises(ServerError, match=f"use --endpoint {other}$"):
            await learn(url, endpoint=endpoint)


async def test_no_endpoint_is_named_where_the_other_is_refused_too() -> None:
    async with serving(Server(lambda path, body: (400, b"min_tokens: not a number"))) as url:
        with pytest.raises(ServerError, match=r"HTTP 400: min_tokens: not a number$"):
            await learn(url)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_key_that_the_first_request_needs_is_named(key: str | None) -> None:
    async with serving(Server(lambda path, body: (401, b"who are you"))) as url:
        with pytest.raises(ServerError, match=r"/v1/completions: .* API key \(401: who are you\)"):
            await learn(url, key=key)


async def test_usage_that_is_missing_is_noted() -> None:
    bare = b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\n'
    last = b'data: {"choices": [], "usage": {"prompt_tokens": 16, "completion_tokens": 1}}\n\ndata: [DONE]\n\n'
    for content, words in ((bare, ["sends no usage"]), (bare + last, ["usage only at the end"])):
        async with serving(Server(lambda path, body, content=content: (200, content))) as url:  # type: ignore[misc]
            notes = (await learn(url)).notes
        assert [word for word in words if any(word in note for note in notes)] == words
    async with serving(Server()) as url:
        assert not any("sends" in note for note in (await learn(url)).notes)


async def test_without_a_model_or_a_list_the_option_is_named() -> None:
    for answer in ((404, b""), (200, b'{"data": null}'), (200, b'{"data": []}'), (200, b"<html>")):
        async with serving(Server(odd={"/v1/models": answer})) as url:
            with pytest.raises(ServerError, match=r"/v1/models.*; name the model with --model \(server.model\)$"):
                await learn(url, model=None)
    async with serving(Server(odd={"/v1/models": (401, b"{}")})) as url:
        with pytest.raises(ServerError, match="/v1/models: wants an API key"):
            await learn(url, model=None)


@pytest.mark.parametrize("listed", [[], None, [{"id": "unknown"}], [{"object": "model"}]])
async def test_a_named_model_overrules_the_list(listed: Any) -> None:
    async with serving(Server(odd={"/v1/models": (200, json.dumps({"data": listed}).encode())})) as url:
        accepted = await learn(url)
    assert sum("m is requested as named" in note for note in accepted.notes) == 1


async def test_the_profile_of_tgi_runs_against_its_tokenize() -> None:
    """Its counts are those of a tokenizer that splits at spaces, with a token before a text, and 5 before a chat."""

    def tokens(text: str) -> list[dict[str, object]]:
        return [{"id": at, "text": word, "start": 0, "stop": 1} for at, word in enumerate(["<s>", *text.split()])]

    class Tgi(Server):
        def answer(self, path: str, body: bytes) -> tuple[int, bytes] | str:
            document = json.loads(body or b"{}")
            if path == "/tokenize":
                found = tokens(document["inputs"]) if "inputs" in document else None
                return (200, json.dumps(found).encode()) if found else (422, b"missing field `inputs`")
            if path == "/chat_tokenize":
                found = [*tokens("a b c d"), *tokens(document["messages"][0]["content"])[1:]]
                return 200, json.dumps({"tokenize_response": found, "templated_text": ""}).encode()
            return super().answer(path, body)

    shipped = load_document(Path(__file__).parents[2] / "profiles/tgi-llama-3.1-405b.toml")
    async with serving(Tgi()) as url:
        changes = [f'server.url="{url}"', "load.rate=[200]", "load.requests=20", "canary.enabled=false"]
        parts = build_profile(shipped, overrides=changes, where="test")
        result, error = await outcome(parts)
        accepted = await learn(url, endpoint="chat")
    assert (error, result.stages[0].requests.completed) == (None, 20)
    assert accepted.vocabulary.overhead == 5 + 1  # with the first word
    assert not any("tokens of" in note for note in accepted.notes)
