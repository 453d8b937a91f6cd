"""The bytes of a request: built once with httpx, completed with a prompt before its time.

httpx decides the URL, the headers and their encoding; a worker only joins bytes. The template is made anew for each
stage, because OSL is part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import httpx
import msgspec

_PROMPT_MARK = "\x00prompt\x00"


class RequestTemplate(msgspec.Struct, frozen=True):
    """Everything of a request but its prompt; travels to the workers (msgspec writes bytes as base64)."""

    head: bytes
    """Request line and headers, up to the value of Content-Length."""
    body_start: bytes
    body_end: bytes

    def fill(self, prompt: bytes) -> bytes:
        """The whole request with a prompt that is already JSON."""
        length = len(self.body_start) + len(prompt) + len(self.body_end)
        return b"%b%d\r\n\r\n%b%b%b" % (self.head, length, self.body_start, prompt, self.body_end)


def stream_body(
    endpoint: str, *, model: str, osl: int, temperature: float, options: Mapping[str, object]
) -> dict[str, object]:
    """The JSON body of a streamed request with a mark in the prompt's place; `options` go in as they are."""
    body: dict[str, object] = {"model": model, "max_tokens": osl, "temperature": temperature, "stream": True, **options}
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": _PROMPT_MARK}]
    else:
        body["prompt"] = _PROMPT_MARK
    return body


def request_template(url: str, body: Mapping[str, object], *, api_key: str | None) -> RequestTemplate:
    """Cut a request that httpx built where the prompt belongs."""
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "vramp"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    request = httpx.Request("POST", url, headers=headers)
    lines = [b"POST %b HTTP/1.1" % request.url.raw_path]
    lines += [b"%b: %b" % (name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    start, _, end = json.dumps(body, separators=(",", ":")).partition(json.dumps(_PROMPT_MARK))
    return RequestTemplate(
        head=b"\r\n".join([*lines, b"Content-Length: "]), body_start=start.encode(), body_end=end.encode()
    )


def endpoint_url(base_url: str, endpoint: str) -> str:
    """The URL of a streaming endpoint under a server's base URL."""
    path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    return base_url.rstrip("/") + path
