"""One typed prompt and its streamed answer, for a first look at a server: no load, no result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.server.vllm.client import Reply, ServerClient
from loadgen.stream.ending import read_answer, worse_reason
from loadgen.stream.events import DONE, EventSplitter, EventTooLong, read_event, text_of
from loadgen.stream.request import endpoint_url, own_fields

ENDPOINTS = ("chat", "completions")
"""Which endpoints are tried, in this order: a base model has no chat template."""
_REFUSED = (400, 404, 405, 422, 500, 501)
_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}


class Answered(NamedTuple):
    """The figures of an answer; what is unknown is None."""

    ttft_ms: float | None
    e2e_ms: float
    input_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None
    failed: str | None  # why it is no complete answer

    @property
    def tpot_ms(self) -> float | None:
        """The time per output token after the first."""
        if self.ttft_ms is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.e2e_ms - self.ttft_ms) / (self.output_tokens - 1)


class _Reading:
    """Reads an answer part by part, and passes its text on."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._splitter = EventSplitter()
        self.began_s = time.monotonic()
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.finish_reason: str | None = None

    def feed(self, part: bytes) -> None:
        now_s = time.monotonic()
        try:
            events = self._splitter.feed(part)
        except EventTooLong:
            return  # the whole answer is read again at its end, which says what is wrong
        for event in events:
            if event.data.strip() == DONE:
                continue
            try:
                choices = read_event(event).choices
            except UNDECODABLE:
                continue
            for choice in choices:
                self.finish_reason = worse_reason(self.finish_reason, choice.finish_reason)
                text = text_of(choice)
                if text != "":  # None: a tool call
                    self.first_s, self.last_s = self.first_s or now_s, now_s
                    self._on_text(text or "")

    def answered(self, content: bytes) -> Answered:
        """The figures, now that the answer is complete."""
        ended_s = time.monotonic()
        answer = read_answer(content)
        if self.first_s is None and answer.text:
            self._on_text(answer.text)  # it was not streamed
        last_s = self.last_s or ended_s
        return Answered(
            ttft_ms=None if self.first_s is None else 1e3 * (self.first_s - self.began_s),
            e2e_ms=1e3 * (last_s - self.began_s),
            input_tokens=answer.usage.prompt_tokens or None,
            output_tokens=answer.usage.completion_tokens or None,
            finish_reason=self.finish_reason,
            failed=None if answer.failed is None else answer.failed.message,
        )


async def ask(
    client: ServerClient,
    model: str,
    prompt: str,
    *,
    endpoints: Sequence[str] = ENDPOINTS,
    max_tokens: int,
    timeout_s: float,
    on_text: Callable[[str], None],
) -> Answered:
    """Send a prompt by the first form of request that the server accepts, and call `on_text` with its answer's text.

    Raises a `ServerError` of one line if it accepts none.
    """
    first: Reply | None = None
    for path, body in _forms(model, prompt, endpoints, max_tokens):
        reading = _Reading(on_text)
        reply = await client.try_request(path, body, timeout_s=timeout_s, on_part=reading.feed)
        if reply.status == 200:
            return reading.answered(reply.content)
        first = first or reply
        if reply.status not in _REFUSED:
            break
    assert first is not None
    raise ServerError(f"{client.base_url}: {model}: the prompt was refused: HTTP {first.status}: {first.words}")


def _forms(model: str, prompt: str, endpoints: Sequence[str], max_tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for endpoint in endpoints:
        plain = {"model": model, "stream": True}
        limited = own_fields(endpoint, prompt, max_tokens)
        newer = own_fields(endpoint, prompt, max_tokens, osl_name="max_completion_tokens")
        bodies = [_USAGE | limited, limited, *([_USAGE | newer] if endpoint == "chat" else [])]
        yield from ((endpoint_url("", endpoint), plain | body) for body in bodies)
