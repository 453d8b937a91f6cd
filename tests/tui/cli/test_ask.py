"""`vramp ask` as one types it: the answer on stdout, its figures on stderr, refusals in one line."""

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator

import pytest

from loadgen.run.ask import Answered
from loadgen.run.ask import ask as ask_server
from loadgen.server.vllm.client import ServerClient
from tests.engines import NOBODY, Simulator, simulator
from tests.run.test_optional import Server
from tests.tui.cli.commands import Said
from tui.cli.ask import _print_part


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_answer_and_its_figures(engine: Simulator, said: Said, endpoint: str) -> None:
    words = ("--url", engine.url, "--endpoint", endpoint, "--max-tokens", "7", "Why \x1b[31mis\x00 it so?")
    code, out, err = said("ask", *words)
    assert code == 0
    assert len(out.split()) == 7
    figures = r"\S+, TTFT [\d.]+ ms, 7 tokens in [\d,]+ ms, TPOT [\d.]+ ms, prompt \d+ tokens, finish reason length\n"
    assert re.fullmatch(figures, err)
    assert engine.truth()["requests"]["received"] == 1


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ((), 2, "which server? Name a profile, or give --url"),
        (("--url", NOBODY, ""), 2, "the prompt is empty"),
        (("--url", NOBODY, "two", "words"), 2, "put it in quotes"),
        (("--url", NOBODY, "\udcff"), 2, "not valid UTF-8"),
        (("--url", NOBODY, "hello"), 3, "nothing listens there"),
        (("--url", "nowhere", "hello"), 2, "url must look like http://host:port"),
        (("simulator", "hello"), 2, "simulator: no server of it runs here; start one (vramp simulator), or give --url"),
        (("no-such-profile", "hello"), 2, "no such profile"),
        (("--url", NOBODY, "--max-tokens", "0", "hello"), 2, "0: expected a number of tokens"),
    ],
)
def test_refusals(said: Said, words: tuple[str, ...], code: int, complaint: str) -> None:
    refused, out, err = said("ask", *words)
    assert (refused, out) == (code, "")
    assert complaint in err


def test_a_model_that_is_not_served_is_one_line(engine: Simulator, said: Said) -> None:
    code, out, err = said("ask", "--url", engine.url, "--model", "nope", "hello")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert f"{engine.url}: nope: the prompt was refused: HTTP 404" in err


def test_an_answer_is_at_most_half_of_the_context(said: Said) -> None:
    with simulator("--max-model-len", "64") as engine:
        code, out, err = said("ask", "--url", engine.url, "--max-tokens", "50", "hello")
    assert (code, len(out.split())) == (0, 32)
    assert "at most 32 tokens: half of max_model_len, 64" in err


def test_a_prompt_from_stdin(engine: Simulator, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    with _stdin(monkeypatch, b"a long prompt\nof two lines\n"):
        code, out, _ = said("ask", "--url", engine.url, "--max-tokens", "3")
    assert code == 0
    assert len(out.split()) == 3


@contextlib.contextmanager
def _stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> Iterator[None]:
    readable, writable = os.pipe()
    os.write(writable, content)
    os.close(writable)
    with os.fdopen(readable) as file:
        monkeypatch.setattr("sys.stdin", file)
        yield


STREAM = b'data: {"choices":[{"delta":{"content":"\\u001b[2Jhi"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def answered(post: dict[str, tuple[int, bytes]]) -> tuple[list[str], Answered]:
    """What a server's answers, by a word of the request's body, become."""
    texts: list[str] = []

    def reply(path: str, body: dict[str, object]) -> tuple[int, bytes] | None:
        return next((answer for word, answer in post.items() if word in f"{path} {body}"), None)

    async def scenario() -> Answered:
        server = await asyncio.start_server(Server(reply), "127.0.0.1", 0)
        async with server, ServerClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            return await ask_server(client, "m", "hi", max_tokens=5, timeout_s=10, on_text=texts.append)

    return texts, asyncio.run(scenario())


def test_what_a_server_does_not_say_is_not_known() -> None:
    texts, answer = answered({"chat": (200, STREAM + END)})
    assert texts == ["\x1b[2Jhi"]
    assert answer.output_tokens is None
    assert answer.tpot_ms is None
    assert (answer.finish_reason, answer.failed) == ("stop", None)


def test_no_answer_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    _print_part("\x1b[2Jhi\r\nthere\x9b1A")
    out = capsys.readouterr().out
    assert not {"\x1b", "\r", "\x9b"} & set(out)
    assert "hi" in out


def test_a_form_that_is_refused_gives_way_to_the_next() -> None:
    texts, _ = answered({"chat": (400, b"no chat template"), "include_usage": (422, b"extra"), "": (200, STREAM + END)})
    assert texts == ["\x1b[2Jhi"]


def test_an_answer_that_breaks_off_is_not_complete() -> None:
    _, answer = answered({"": (200, STREAM + b'data: {"error":{"message":"out of memory"}}\n\n')})
    assert answer.failed == "out of memory"


def test_an_answer_that_is_not_streamed_has_no_ttft() -> None:
    body = b'{"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}],"usage":{"completion_tokens":3}}'
    texts, answer = answered({"": (200, body)})
    assert texts == ["whole"]
    assert (answer.ttft_ms, answer.output_tokens) == (None, 3)
