"""A simulator in a process of its own, as its users have it."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

MODEL = "simulated"
TIMEOUT_S = 20


class Running:
    """A simulator that listens."""

    def __init__(self, process: "subprocess.Popen[str]", lines: list[str], port: int) -> None:
        self.process = process
        self.lines = lines
        self.port = port
        # One for all: making a client costs more than most tests, for TLS that nobody needs here.
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=False, timeout=TIMEOUT_S)

    def faults(self, *texts: str) -> None:
        self.client.post("/admin/faults", json={"faults": texts}).raise_for_status()

    def truth(self) -> Any:
        return self.client.get("/truth").json()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)

    def stream(self, tokens: int, *, chat: bool = False, **fields: Any) -> bytes:
        """All bytes of the response to a streaming request, until the server closes."""
        with self.connect() as sock:
            sock.sendall(request(tokens, chat=chat, close=True, **fields))
            return read_all(sock)


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
def simulator(*flags: str, preset: str = "fast") -> Iterator[Running]:
    argv = [sys.executable, "-m", "loadgen.simulator", "--preset", preset, "--port", "0"]
    process = subprocess.Popen(
        [*argv, "--served-model-name", MODEL, *flags], stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            if "Application startup complete." in line:
                break
        match = re.search(r"Starting vLLM server on http://127\.0\.0\.1:(\d+)", "\n".join(lines))
        assert match, lines
        running = Running(process, lines, int(match[1]))
        with running.client:
            yield running
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()


@pytest.fixture(scope="package")
def shared() -> Iterator[Running]:
    """One simulator for all tests that can share it; the tests of other packages count what is left running."""
    with simulator() as running:
        yield running


@pytest.fixture
def server(shared: Running) -> Iterator[Running]:
    """The shared one, with an empty account and no faults."""
    shared.client.post("/truth/reset").raise_for_status()
    yield shared
    shared.faults()


@pytest.fixture
def client(server: Running) -> httpx.Client:
    return server.client
