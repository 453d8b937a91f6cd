"""The client for everything that is not timed: readiness, models, tokenizing, the engine's metrics.

Every failure becomes a `ServerError` that says what is wrong and what to do; where a path is optional, `optional` turns
it into the reason why its value is unknown. Every answer is bounded in time and size. Only paths under /v1 decide
whether the API key is refused: a proxy may hide all others. Proxies from the environment are ignored,
because what vramp measures must not pass through one. httpx is imported where it is used: it takes 30 ms to load, and
the first frame of the cockpit must not wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.masking import learn
from loadgen.profile.schema import Server
from loadgen.schema.engine import OwnRequests
from loadgen.server.process.log import clean_line, shortened
from loadgen.until import is_set_within

if TYPE_CHECKING:
    import httpx

# httpcore tries to import this at every request: where it is not installed, each search of the path takes 2 ms.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

_CONNECT_S = 5.0
_ANSWER_S = 10.0  # for the whole answer, which might otherwise trickle forever
_METRICS_S = 5.0
MAX_ANSWER_BYTES = 16 << 20  # the /metrics of 64 engines have 4 MiB, the tokens of the longest prompts 10 MiB
MAX_MODEL_LEN = 2**40  # a longer context is no context
_MODELS = "/v1/models"
_HEALTH = "/health"
NAME_MODEL = "; name the model with --model (server.model)"
_BUSY = (502, 503, 504)  # what starts, or a proxy before it, answers
_WRONG_BODY = (200, 400, 422, 500)  # what a server with another schema answers
_INPUT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,15})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,15})')
_Value = TypeVar("_Value")


class ModelInfo(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[dict[str, Any]] | None


class _Version(msgspec.Struct):
    version: Annotated[str, msgspec.Meta(min_length=1)]


_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class _Token(msgspec.Struct):
    id: _Id


class _Tokens(msgspec.Struct):
    tokens: list[_Id] = []
    tokenize_response: list[_Token] = []


_TOKENIZE: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "text": [
        ("/tokenize", "prompt", {"add_special_tokens": False}),  # vLLM, SGLang
        ("/tokenize", "inputs", {}),  # TGI
        ("/tokenize", "content", {}),  # llama.cpp, which answers [] to any other body
        ("/tokenize", "text", {}),  # guidellm's mock server
    ],
    "chat": [
        ("/tokenize", "messages", {}),  # vLLM, SGLang
        ("/chat_tokenize", "messages", {}),  # TGI
    ],
}
"""How each kind of server is asked for tokens: the path, the field for what is to be tokenized, and the rest."""


def _token_ids(content: bytes) -> list[int]:
    """The ids in an answer, which TGI gives as objects."""
    found = msgspec.json.decode(content, type=_Tokens | list[_Token])
    if isinstance(found, _Tokens) and found.tokens:
        return found.tokens
    return [one.id for one in (found.tokenize_response if isinstance(found, _Tokens) else found)]


class Known(NamedTuple, Generic[_Value]):
    """The value of something optional; None if it is unknown, and why."""

    value: _Value | None
    why: str = ""


async def optional(answer: Awaitable[_Value]) -> Known[_Value]:
    """What an optional path answers, or why that is unknown."""
    try:
        return Known(await answer)
    except ServerError as error:
        return Known(None, str(error))


class Reply(NamedTuple):
    """An answer of any status, with its beginning as text and what follows from its status."""

    status: int
    content: bytes
    words: str


def load_client() -> None:
    """Import what a client needs; call it in a thread, or the screen freezes meanwhile.

    httpx itself defers half of these imports until the first request. Its command, which nobody calls here, would take
    longer to import than all the rest; without one it does as where click and rich are not installed.
    """
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    import httpcore
    import httpx
    from anyio import connect_tcp, create_memory_object_stream, lowlevel
    from anyio.streams import stapled, tls

    _ = httpcore, httpx, connect_tcp, create_memory_object_stream, lowlevel, stapled, tls


class ServerClient:
    """Speaks to one OpenAI-compatible server; close it, or use it with `async with`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`base_url` is without `/v1`; `api_key_env` is the key's environment variable, to be named in messages.

        `headers` are sent with every request.

        Raises `ServerError` for a URL that names no host.
        """
        self.base_url = base_url.rstrip("/")
        self._api_key_env = api_key_env
        self._has_key = api_key is not None
        self._authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._open, self._ended = 0, OwnRequests()
        self._schemas = dict(_TOKENIZE)
        import httpx

        try:
            _ = httpx.URL(self.base_url).host  # decodes Punycode, as each request would
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ServerError(f"{self.base_url}: no such host ({error}); check server.url") from error
        self._http = httpx.AsyncClient(
            # The system's certificates and those in SSL_CERT_FILE.
            headers=headers,
            verify=ssl.create_default_context() if base_url.startswith("https") else False,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),  # the rest is bounded as a whole
            # uvicorn closes connections that were idle for 5 s: an older one might break under a request.
            limits=httpx.Limits(keepalive_expiry=2.0),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections: an open one can keep vLLM from stopping."""
        await self._http.aclose()

    async def is_ready(self, may_have_key: Callable[[], Awaitable[bool]] | None = None) -> bool:
        """Whether the server says that it is ready, or answers at all if it has no `/health`.

        The key is sent only once `may_have_key` allows it. Raises `ServerError` if the server refuses the key.
        """
        health = await optional(self._send(_HEALTH))
        if health.value is not None and health.value.status_code in _BUSY:
            return False
        if may_have_key is not None and not await may_have_key():
            return False
        models = await optional(self._send(_MODELS))
        if models.value is None or models.value.status_code in _BUSY:
            return False
        self._require_key(_MODELS, models.value)
        return True

    async def models(self, hint: str = "") -> list[ModelInfo]:
        """The models that the server lists; raises `ServerError`, with `hint` if it has no list."""
        found = self._read(await self._request(_MODELS, hint=hint), _model_list, hint)
        return [
            ModelInfo(name, length if type(length) is int and 0 < length < MAX_MODEL_LEN else None)
            for name, length in ((model.get("id"), model.get("max_model_len")) for model in found)
            if isinstance(name, str) and name
        ]

    async def version(self) -> str:
        response = await self._request("/version")
        return _reported(
            self._read(response, lambda content: msgspec.json.decode(content, type=_Version).version).encode()
        )

    async def tokenize_text(self, model: str, text: str) -> list[int]:
        return await self._tokenize("text", model, text)

    async def tokenize_messages(self, model: str, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The token ids of a chat after applying the server's template."""
        return await self._tokenize("chat", model, list(messages))

    async def metrics_text(self) -> str:
        return (await self._request("/metrics", timeout_s=min(_METRICS_S, _ANSWER_S))).text

    async def try_request(
        self, path: str, body: dict[str, Any], *, timeout_s: float, on_part: Callable[[bytes], None] | None = None
    ) -> Reply:
        """Post a body and wait for the whole answer; `on_part` gets each part of a success as it arrives.

        Raises `ServerError` for a refused key.
        """
        with self._own() as content:
            response, _ = await self._exchange(path, body, timeout_s, content, on_part=on_part)
        whole = _whole(response, content)
        self._require_key(path, whole)
        return Reply(whole.status_code, whole.content, _words(whole))

    async def answer(
        self, path: str, body: dict[str, Any], *, headers: dict[str, str], timeout_s: float
    ) -> tuple[bytes, float]:
        """Post a body and read the whole answer, streamed or not; returns it, and the seconds to its first byte.

        Raises `ServerError` unless it is a success.
        """
        began_s = time.monotonic()
        with self._own() as content:
            response, first_s = await self._exchange(path, body, timeout_s, content, headers)
        if not response.is_success:
            raise ServerError(f"{self.base_url}{path} answered {response.status_code}: {_reported(content)}")
        return bytes(content), first_s - began_s

    def own_requests(self) -> OwnRequests:
        """The requests of `try_request` and `answer`: those open now, and those that ended since the last call."""
        taken, self._ended = self._ended, OwnRequests()
        return replace(taken, open=self._open)

    @contextlib.contextmanager
    def _own(self) -> Iterator[bytearray]:
        """Count a request that the engine computes, with the tokens in its answer."""
        content = bytearray()
        self._open += 1
        try:
            yield content
        finally:
            self._open -= 1
            self._ended += OwnRequests(0, 1, _last_count(_INPUT, content), _last_count(_OUTPUT, content))

    async def _tokenize(self, kind: str, model: str, value: object) -> list[int]:
        """The token ids by the first schema that the server understands, which is the only one from then on."""
        refusal = ""
        for schema in self._schemas[kind]:
            path, field, more = schema
            response = await self._send(path, {"model": model, field: value, **more})
            try:
                if response.is_success and (ids := self._read(response, _token_ids)):
                    self._schemas[kind] = [schema]
                    return ids
                why = f"{self.base_url}{path} answered {response.status_code}: {_words(response)}"
            except ServerError as error:
                why = str(error)
            refusal = refusal or why
            if response.status_code not in _WRONG_BODY:
                break
        raise ServerError(refusal)

    async def _request(self, path: str, *, timeout_s: float | None = None, hint: str = "") -> httpx.Response:
        """A successful answer; raises `ServerError` for any other, with `hint` unless its status has its own."""
        response = await self._send(path, timeout_s=timeout_s)
        if _adds_slash(response):
            # On the same host, wherever it points: a key must not reach another one.
            response = await self._send(f"{path}/", timeout_s=timeout_s)
        self._require_key(path, response)
        if response.is_success:
            return response
        words = _words(response)
        advice = hint if words == _reported(response.content) else ""
        raise ServerError(f"{self.base_url}{path} answered {response.status_code}: {words}{advice}")

    async def _send(
        self, path: str, body: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> httpx.Response:
        """The whole answer, whatever its status; raises `ServerError` if there is none."""
        content = bytearray()
        response, _ = await self._exchange(path, body, timeout_s or _ANSWER_S, content)
        return _whole(response, content)

    async def _exchange(
        self,
        path: str,
        body: dict[str, Any] | None,
        timeout_s: float,
        content: bytearray,
        headers: dict[str, str] | None = None,
        on_part: Callable[[bytes], None] | None = None,
    ) -> tuple[httpx.Response, float]:
        """Append the whole answer to a POST of the body, or to a GET, to `content`.

        Returns the response, and when its first byte arrived.
        """
        import httpx

        if self._http.is_closed:
            raise ServerError(f"{self.base_url}{path}: not sent: the run disconnects from this server")
        method = "GET" if body is None else "POST"
        first_s = None
        # Whatever listens there is asked for its health, before it is known whose it is.
        sent = {**({} if path == _HEALTH else self._authorization), **(headers or {})}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.stream(method, self.base_url + path, json=body, headers=sent) as response,
            ):
                async for part in response.aiter_bytes():
                    first_s = first_s or time.monotonic()
                    content.extend(part)
                    if on_part is not None and response.is_success:
                        on_part(part)
                    if len(content) > MAX_ANSWER_BYTES:
                        most = MAX_ANSWER_BYTES >> 20
                        raise ServerError(
                            f"{response.url}: more than {most} MiB, which no engine answers; is this the right server?"
                        )
        # A TLS failure within an answer is no HTTPError, nor is a redirect to an invalid host.
        except (httpx.HTTPError, UnicodeError, ssl.SSLError) as error:
            raise ServerError(self._explain(path, error)) from error
        except TimeoutError:
            hangs = "the server hangs or is overloaded"
            raise ServerError(f"{self.base_url}{path}: no complete answer within {timeout_s:g} s; {hangs}") from None
        return response, first_s or time.monotonic()

    def _read(self, response: httpx.Response, read: Callable[[bytes], _Value], hint: str = "") -> _Value:
        try:
            return read(response.content)
        except UNDECODABLE:
            what = f"{_reported(response.content)!r}, which vramp cannot read"
            raise ServerError(f"{response.url} answered {what}{hint}") from None

    def _require_key(self, path: str, response: httpx.Response) -> None:
        """Raise `ServerError` if the API refuses the key; other paths may be closed to everybody."""
        if response.status_code not in (401, 403) or not path.startswith("/v1/"):
            return
        where, what = f"{self.base_url}{path}", f"{response.status_code}: {_reported(response.content)}"
        if not self._has_key:
            remedy = "set server.api_key_env (--api-key-env) to the name of the environment variable that holds it"
            raise ServerError(f"{where}: wants an API key ({what}); {remedy}")
        source = f"the environment variable {self._api_key_env}" if self._api_key_env else "server.api_key_env"
        raise ServerError(f"{where}: refused the API key ({what}); check the key in {source}")

    def _explain(self, path: str, error: httpx.HTTPError | UnicodeError | ssl.SSLError) -> str:
        import httpx

        where = self.base_url
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLError):
                remedy = "for a private certificate set SSL_CERT_FILE, without TLS use http://"
                return f"{where}: TLS failed: {cause}; {remedy}"
            if isinstance(cause, socket.gaierror):
                return f"{where}: no such host; check server.url"
        if isinstance(error, httpx.ConnectTimeout):
            return f"{where}: no answer to the connection within {_CONNECT_S:g} s; is a firewall in between?"
        if isinstance(error, httpx.ConnectError):
            return f"{where}: nothing listens there; start the server, or check host and port"
        why = str(error) or type(error).__name__
        return f"{where}{path}: the connection broke off ({why}); is it an HTTP server without TLS?"


def pick_model(models: Sequence[ModelInfo]) -> ModelInfo:
    """The first model that a server lists; raises `ServerError` if it lists none."""
    if not models:
        raise ServerError(f"the server lists no model at {_MODELS}{NAME_MODEL}")
    return models[0]


def base_url(host: str, port: int) -> str:
    """The URL of a server that listens on `host`; one that listens on all addresses is reached by loopback."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not bound here
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def api_key(server: Server) -> str | None:
    """The API key from the environment variable that the profile names; raises `ServerError` if that is empty."""
    if server.api_key_env is None:
        return None
    # A key read from a file often ends with a newline.
    key = (server.env.get(server.api_key_env) or os.environ.get(server.api_key_env) or "").strip()
    if not key and not server.api_key_env.isidentifier():
        raise ServerError(
            "server.api_key_env: not the name of an environment variable; put the key into one, and give its name"
        )
    if not key:
        raise ServerError(f"server.api_key_env = {server.api_key_env!r}: this environment variable is not set")
    learn({"api_key": key})  # masked whatever the name of its variable
    if not (key.isascii() and key.isprintable()):
        raise ServerError(
            f"server.api_key_env = {server.api_key_env!r}: this environment variable holds a control character or one "
            "that is not ASCII, which no header can carry; set it to the key alone"
        )
    return key


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _last_count(pattern: re.Pattern[bytes], content: bytearray) -> int:
    """The last count in an answer's usage: in a stream it grows, or comes at the end."""
    found = pattern.findall(content)
    return int(found[-1]) if found else 0


def _model_list(content: bytes) -> list[dict[str, Any]]:
    found = msgspec.json.decode(content, type=_Models | list[dict[str, Any]])
    return found if isinstance(found, list) else found.data or []


def _words(response: httpx.Response) -> str:
    """The beginning of an answer, and what its status means for the user."""
    reported, location = _reported(response.content), response.headers.get("location", "")
    after = _reported(response.headers.get("retry-after", "").encode())
    if response.status_code == 503:
        return f"{reported}; the server may still be loading its model: try again later"
    if response.status_code == 429:
        limited = f"the server limits requests: try again {f'after {after} s' if after.isdigit() else 'later'}"
        return f"{reported}; {limited}, or with another key"
    if response.is_redirect:
        advice = "; attach to the address that it leads to" if "/v1/" in response.url.path else ""
        return f"a redirect to {_reported(location.encode())}{advice}"
    return reported


def _whole(response: httpx.Response, content: bytearray) -> httpx.Response:
    """A streamed response with its content, and of its headers those that say what to do."""
    import httpx

    headers = {name: response.headers[name] for name in ("location", "retry-after") if name in response.headers}
    return httpx.Response(response.status_code, headers=headers, content=bytes(content), request=response.request)


def _adds_slash(response: httpx.Response) -> bool:
    """Whether an answer redirects to the same path with a slash, as `/metrics` of vLLM does."""
    try:
        wanted = urlsplit(response.headers.get("location", "")).path
    except ValueError:
        return False
    return response.is_redirect and wanted == f"{response.url.path}/"


def _reported(content: bytes | bytearray) -> str:
    return shortened(clean_line(bytes(content[:1000]).replace(b"\n", b" ")), 200)


async def until_ready(
    client: ServerClient, ended: asyncio.Event, may_have_key: Callable[[], Awaitable[bool]] | None = None
) -> bool:
    """Wait for the server: True once it is ready, False once it has ended.

    The key is sent only once `may_have_key` allows it. Raises `ServerError` for a refused key.
    """
    while not ended.is_set():
        try:
            if await client.is_ready(may_have_key):
                return True
        except ServerError:
            if await is_set_within(ended, 1.0):  # its end explains the error better
                return False
            raise
        await is_set_within(ended, 0.25)
    return False
