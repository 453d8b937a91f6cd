"""The bytes of a request: a template that httpx built once, filled with a prompt ahead of time.

httpx decides the URL, the headers and their encoding; a worker only joins bytes. Each stage has a template of its own,
because OSL is part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec


class _Endpoint(NamedTuple):
    """The path of an endpoint, and its names for the prompt and for the token limit."""

    path: str
    prompt_name: str
    osl_name: str


_ENDPOINTS = {
    "completions": _Endpoint("/v1/completions", "prompt", "max_tokens"),
    "chat": _Endpoint("/v1/chat/completions", "messages", "max_tokens"),
    "responses": _Endpoint("/v1/responses", "input", "max_output_tokens"),
}


_NO_HEADERS: Mapping[str, str] = {}


class ServerAddress(msgspec.Struct, frozen=True):
    """Where to connect; `ip` was resolved once, so that no name lookup is ever timed."""

    family: int
    ip: str
    port: int
    tls_name: str | None = None  # the name to verify for https; None for http


def host_and_port(url: str) -> tuple[str, int]:
    """Host and port of a URL; the scheme's default port where it names none."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


class Cancellation(msgspec.Struct, frozen=True):
    """The client hangs up on this share of the streams, this long after sending their requests."""

    share: float
    after_s: float


class SessionHeaders(msgspec.Struct, frozen=True, omit_defaults=True):
    """The names of the headers that tell a router to which session a request belongs; None is not sent."""

    session: str | None = None  # of the chain of requests: a conversation, or one agent of a session
    parent: str | None = None  # of the chain that started this one
    root: str | None = None  # of the whole session
    echo: str | None = None
    """A header of the response, whose value the session's next requests repeat."""

    def lines(self, session: SessionIds) -> bytes:
        """The lines of a request's head."""
        named = ((self.session, session.chain), (self.parent, session.parent), (self.root, session.root))
        lines = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in named if name and value)
        return lines + b"%b: %b\r\n" % (self.echo.encode(), session.token) if self.echo and session.token else lines


class SessionIds(NamedTuple):
    """To which session a request belongs."""

    chain: bytes
    root: bytes
    parent: bytes = b""
    token: bytes = b""  # what the server returned in the `echo` header of an earlier response


class RequestTemplate(msgspec.Struct, frozen=True):
    """A request without its prompt; travels to the workers (msgspec writes bytes as base64)."""

    head: bytes  # request line and headers, up to the value of Content-Length
    fields: bytes  # the fields of the body that all requests share, without its closing brace
    prompt_name: bytes
    osl_name: bytes
    osl: int
    exact_osl: bool = False  # answers of exactly this length are requested, so that shorter ones are a fault
    models: tuple[tuple[str, float], ...] = ()  # as in `model_shares`, to draw from; `fields` then has no model
    cancel: Cancellation | None = None
    headers: SessionHeaders | None = None  # None: requests name no session

    def fill(
        self,
        prompt: bytes,
        model: str | None = None,
        *,
        osl: int | None = None,
        messages: bool = False,
        session: SessionIds | None = None,
    ) -> bytes:
        """The complete request; `prompt` is JSON: a text, token ids, or with `messages` a list of messages.

        `model` is needed if there are several; `osl` if it differs from the template's.
        """
        if self.prompt_name == b"messages" and not messages:
            prompt = b'[{"role":"user","content":%b}]' % prompt
        fields = self.fields if model is None else b'{"model":%b,%b' % (_json(model), self.fields[1:])
        limit = self.osl if osl is None else osl
        body = b'%b,"%b":%b,"%b":%d}' % (fields, self.prompt_name, prompt, self.osl_name, limit)
        lines = b"" if self.headers is None or session is None else self.headers.lines(session)
        return b"%b%d\r\n%b\r\n%b" % (self.head, len(body), lines, body)

    def model_of(self, drawn: float) -> str:
        """The model for a draw between 0 and 1; only where there are several models."""
        return next((name for name, end in self.models if drawn < end), self.models[-1][0])


def model_shares(weights: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Each model with the end of its share, one after another from 0 to 1."""
    total = sum(weights.values())
    return tuple((name, end / total) for name, end in zip(weights, accumulate(weights.values()), strict=True))


def common_fields(
    endpoint: str, *, model: str | None, temperature: float, options: Mapping[str, object], extra: Mapping[str, object]
) -> dict[str, object]:
    """The body of a streamed request without its prompt and OSL; `options` and `extra` are added as they are.

    Without `model` the body has none: each request brings its own.
    """
    fields: dict[str, object] = {} if model is None else {"model": model}
    fields |= {"temperature": temperature, "stream": True, **options, **extra}
    # By default the server would store the answer in memory.
    return fields | {"store": False} if endpoint == "responses" else fields


def own_fields(endpoint: str, prompt: object, osl: int, *, osl_name: str | None = None) -> dict[str, object]:
    """The fields that differ per request: its prompt (as one message where the endpoint takes messages) and its OSL.

    `osl_name` replaces the endpoint's own name for the token limit.
    """
    place = _ENDPOINTS[endpoint]
    requested = [{"role": "user", "content": prompt}] if place.prompt_name == "messages" else prompt
    return {place.prompt_name: requested, osl_name or place.osl_name: osl}


def request_template(
    base_url: str,
    endpoint: str,
    fields: Mapping[str, object],
    *,
    osl: int,
    api_key: str | None,
    osl_name: str | None = None,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> RequestTemplate:
    """A template from a request that httpx built, without its length and its own fields; `headers` are added."""
    # Imported here: workers import this module but build no template, and httpx would be a quarter of their start-up.
    import httpx

    own = {"Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "vramp"}
    if api_key is not None:
        own["Authorization"] = f"Bearer {api_key}"
    request = httpx.Request("POST", endpoint_url(base_url, endpoint), headers=own)
    request.headers.update(headers)
    lines = [b"POST %b HTTP/1.1" % request.url.raw_path]
    lines += [b"%b: %b" % (name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    place = _ENDPOINTS[endpoint]
    return RequestTemplate(
        head=b"\r\n".join([*lines, b"Content-Length: "]),
        fields=_json(fields).removesuffix(b"}"),
        prompt_name=place.prompt_name.encode(),
        osl_name=(osl_name or place.osl_name).encode(),
        osl=osl,
    )


def endpoint_url(base_url: str, endpoint: str) -> str:
    """The URL of a streaming endpoint under a server's base URL."""
    return base_url.rstrip("/") + _ENDPOINTS[endpoint].path


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
