"""The client for everything that is not timed: readiness, models, tokenizing, the engine's metrics.

Every failure becomes a `ServerError` that says what is wrong and what to do. Proxies from the environment are ignored,
because what vramp measures must not pass through one. httpx is imported where it is used: it takes 30 ms to load, and
the first frame of the cockpit must not wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import msgspec
from msgspec.structs import replace

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.masking import learn
from loadgen.metrics.engine import OwnRequests
from loadgen.profile.schema import Server
from loadgen.server.process.log import clean_line, shortened
from loadgen.until import is_set_within

if TYPE_CHECKING:
    import httpx

_CONNECT_S = 5.0
_ANSWER_S = 10.0  # for the whole answer, which might otherwise trickle forever
_METRICS_S = 5.0
_LARGEST_ANSWER_BYTES = 16 << 20  # the /metrics of 64 engines have 4 MiB, the tokens of the longest prompts 10 MiB
_MISSING = (404, 405, 501)
_INPUT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,15})')
_OUTPUT = re.compile(rb'"(?:completion|output)_tokens"\s*:\s*(\d{1,15})')
_Answer = TypeVar("_Answer")


class ModelInfo(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[ModelInfo]


class _Version(msgspec.Struct):
    version: str


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Answer(NamedTuple):
    """A complete answer, and the time from its request to its first byte."""

    content: bytes
    first_s: float


def load_client() -> None:
    """Import what a client needs; call it in a thread, or the screen freezes meanwhile.

    httpx itself defers half of these imports until the first request.
    """
    import httpcore
    import httpx
    from anyio import connect_tcp, create_memory_object_stream, lowlevel
    from anyio.streams import stapled, tls

    _ = httpcore, httpx, connect_tcp, create_memory_object_stream, lowlevel, stapled, tls


class ServerClient:
    """Speaks to one OpenAI-compatible server; close it, or use it with `async with`."""

    def __init__(self, base_url: str, api_key: str | None = None, *, api_key_env: str | None = None) -> None:
        """`base_url` is without `/v1`; `api_key_env` is the key's environment variable, to be named in messages.

        Raises `ServerError` for a URL that names no host.
        """
        self.base_url = base_url.rstrip("/")
        self._api_key_env = api_key_env
        self._has_key = api_key is not None
        self._open, self._ended = 0, OwnRequests()
        import httpx

        try:
            _ = httpx.URL(self.base_url).host  # decodes Punycode, as each request would
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ServerError(f"{self.base_url}: no such host ({error}); check server.url") from error
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            # The system's certificates and those in SSL_CERT_FILE.
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

    async def health(self) -> bool:
        """Whether `/health` answers 200; False while nothing listens, as during a start."""
        import httpx

        try:
            answer = await self._http.get(f"{self.base_url}/health", timeout=_ANSWER_S)
            return answer.status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def models(self) -> list[ModelInfo]:
        response = await self._request("GET", "/v1/models")
        if response.status_code in _MISSING:
            raise self._not_openai(f"/v1/models answered {response.status_code}")
        found = self._decode(response, _Models).data
        return [model if (model.max_model_len or 0) > 0 else replace(model, max_model_len=None) for model in found]

    async def version(self) -> str | None:
        response = await self._request("GET", "/version")
        return None if response.status_code in _MISSING else self._decode(response, _Version).version

    async def tokenize_text(self, model: str, text: str) -> list[int] | None:
        """The token ids of a text; None if the server has no `/tokenize`."""
        return await self._tokenize({"model": model, "prompt": text, "add_special_tokens": False})

    async def tokenize_messages(self, model: str, messages: Sequence[dict[str, Any]]) -> list[int] | None:
        """The token ids of a chat after applying the server's template; None if the server has no `/tokenize`."""
        return await self._tokenize({"model": model, "messages": list(messages), "add_generation_prompt": True})

    async def metrics_text(self) -> str | None:
        response = await self._request("GET", "/metrics", timeout_s=_METRICS_S)
        return None if response.status_code in _MISSING else response.text

    async def try_request(self, path: str, body: dict[str, Any], *, timeout_s: float) -> tuple[int, str]:
        """Post a body and wait for the whole answer: status and excerpt. Raises `ServerError` for a refused key."""
        with self._own() as content:
            response = await self._send("POST", path, body, timeout_s, content)
        return response.status_code, _excerpt(response)

    async def answer(self, path: str, body: dict[str, Any], *, headers: dict[str, str], timeout_s: float) -> Answer:
        """Post a body and read the whole answer, streamed or not; raises `ServerError` unless it is a success."""
        began_s = time.monotonic()
        with self._own() as content:
            response, first_s = await self._exchange("POST", path, body, timeout_s, content, headers)
        if not response.is_success:
            raise ServerError(f"{self.base_url}{path} answered {response.status_code}: {_told(content)}")
        return Answer(bytes(content), first_s - began_s)

    def take_own(self) -> OwnRequests:
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

    async def _tokenize(self, body: dict[str, Any]) -> list[int] | None:
        response = await self._request("POST", "/tokenize", body)
        return None if response.status_code in _MISSING else self._decode(response, _Tokens).tokens

    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _ANSWER_S
    ) -> httpx.Response:
        """An answer that is a success or "not found"; raises `ServerError` for any other."""
        response = await self._send(method, path, body, timeout_s)
        if response.is_success or response.status_code in _MISSING:
            return response
        raise ServerError(f"{self.base_url}{path} answered {response.status_code}: {_excerpt(response)}")

    async def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        timeout_s: float,
        content: bytearray | None = None,
    ) -> httpx.Response:
        import httpx

        content = bytearray() if content is None else content
        response, _ = await self._exchange(method, path, body, timeout_s, content)
        if response.status_code in (401, 403):
            raise ServerError(self._refused(response.status_code))
        return httpx.Response(response.status_code, content=bytes(content), request=response.request)

    async def _exchange(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        timeout_s: float,
        content: bytearray,
        headers: dict[str, str] | None = None,
    ) -> tuple[httpx.Response, float]:
        """Append the whole answer to `content`; returns the response, and when its first byte arrived."""
        import httpx

        first_s = None
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.stream(method, self.base_url + path, json=body, headers=headers) as response,
            ):
                async for part in response.aiter_bytes():
                    first_s = first_s or time.monotonic()
                    content.extend(part)
                    if len(content) > _LARGEST_ANSWER_BYTES:
                        most = _LARGEST_ANSWER_BYTES >> 20
                        raise ServerError(
                            f"{response.url}: more than {most} MiB, which no engine answers; is this the right server?"
                        )
        # A TLS failure within an answer is no HTTPError, nor is a redirect to an invalid host.
        except (httpx.HTTPError, UnicodeError, ssl.SSLError) as error:
            raise ServerError(self._explain(error)) from error
        except TimeoutError:
            hangs = "the server hangs or is overloaded"
            raise ServerError(f"{self.base_url}{path}: no complete answer within {timeout_s:g} s; {hangs}") from None
        return response, first_s or time.monotonic()

    def _decode(self, response: httpx.Response, kind: type[_Answer]) -> _Answer:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except UNDECODABLE:
            raise self._not_openai(f"{response.url.path} answered {_excerpt(response)!r}") from None

    def _not_openai(self, what: str) -> ServerError:
        return ServerError(f"{self.base_url}: not an OpenAI-compatible server ({what}); check host, port and prefix")

    def _refused(self, status: int) -> str:
        if not self._has_key:
            remedy = "set server.api_key_env to the name of the environment variable that holds it"
            return f"{self.base_url}: wants an API key ({status}); {remedy}"
        source = f"the environment variable {self._api_key_env}" if self._api_key_env else "server.api_key_env"
        return f"{self.base_url}: refused the API key ({status}); check the key in {source}"

    def _explain(self, error: httpx.HTTPError | UnicodeError | ssl.SSLError) -> str:
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
        return f"{where}: the connection broke off ({error or type(error).__name__}); is it an HTTP server without TLS?"


def pick_model(models: Sequence[ModelInfo], wanted: str | None) -> ModelInfo:
    """The model that is `wanted`, or the first one if None."""
    if not models:
        raise ServerError("the server lists no model; is it the right server?")
    for model in models:
        if wanted in (None, model.id):
            return model
    served = ", ".join(model.id for model in models)
    raise ServerError(f"the server does not serve {wanted!r}; it serves: {served}")


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


def _excerpt(response: httpx.Response) -> str:
    return _told(response.content)


def _told(content: bytes | bytearray) -> str:
    return shortened(clean_line(bytes(content[:1000]).replace(b"\n", b" ")), 200)


async def until_ready(client: ServerClient, ended: asyncio.Event) -> bool:
    """Wait for the server: True once it is ready, False once it has ended; raises `ServerError` for wrong answers."""
    while not ended.is_set():
        try:
            if await client.health():
                await client.models()
                return True
        except ServerError:
            if await is_set_within(ended, 1.0):  # its end explains the error better
                return False
            raise
        await is_set_within(ended, 0.25)
    return False
