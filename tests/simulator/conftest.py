"""A simulator in a process of its own, as its users have it."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.engines import Simulator, started

MODEL = "simulated"
TIMEOUT_S = 20


class Running(Simulator):
    """A simulator that listens, and raw connections to it."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def stream(self, tokens: int, *, chat: bool = False, **fields: Any) -> bytes:
        """All bytes of the response to a streaming request, until the server closes."""
        with self.connect() as sock:
            sock.sendall(request(tokens, chat=chat, close=True, **fields))
            return read_all(sock)

    def await_abort(self) -> None:
        """Wait until it has noticed that a client is gone: it answers from a later turn of the loop that sees it."""
        for _ in range(1000):
            if self.truth()["requests"]["aborted"]:
                return


def request(tokens: int, *, chat: bool = False, close: bool = False, **fields: Any) -> bytes:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": [5] * 20}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = json.dumps({"max_tokens": tokens, "stream": True, "ignore_eos": True, **prompt, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{'connection: close' if close else 'x-x: y'}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes; a reset raises."""
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def read_response(sock: socket.socket) -> bytes:
    """One whole chunked response from a connection that stays open."""
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        more = sock.recv(65536)
        assert more, data
        data += more
    return data


def body_of(response: bytes) -> bytes:
    """A chunked response's body; fails if the framing is wrong or incomplete."""
    head, _, rest = response.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if not length:
            assert rest == b"\r\n"
            return body
        body, rest = body + rest[:length], rest[length + 2 :]


def events_of(body: bytes) -> list[Any]:
    """The JSON events of a stream; [DONE] comes out as None."""
    texts = [event.removeprefix(b"data: ") for event in re.split(rb"\r?\n\r?\n", body) if event.startswith(b"data: ")]
    return [None if text == b"[DONE]" else json.loads(text) for text in texts]


@contextmanager
def simulator(*flags: str) -> Iterator[Running]:
    with started("--served-model-name", MODEL, *flags) as (process, lines, url):
        running = Running(process, lines, url)
        with running.client:
            yield running


@pytest.fixture(scope="package")
def shared() -> Iterator[Running]:
    """One simulator for all tests that can share it; the tests of other packages count what is left running."""
    with simulator() as running:
        yield running


@pytest.fixture
def server(shared: Running) -> Iterator[Running]:
    """The shared one, with an empty account and no faults."""
    shared.forget()
    yield shared
    shared.faults()


@pytest.fixture
def client(server: Running) -> httpx.Client:
    return server.client
