"""The bytes of answers, shaped like vLLM's.

A stream's events differ only in the word and, if requested, in the usage; everything else is prepared once. Without
running usage all events of a stream have the same length, so even the chunk header is prepared. The named events of
`/v1/responses` are not, since each has a number: they are for testing clients, not for speed.
"""

import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from loadgen.simulator import tokens
from loadgen.simulator.http import chunk
from loadgen.simulator.tokens import ANSWER

Field = Literal["text", "content", "reasoning_content", "tool_calls"]
Finish = Literal["length", "stop", "tool_calls", "abort"]
encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
_HOLE = "\x00"


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


class Events:
    __slots__ = ("_envelope", "_prompt", "cached", "chat", "hidden", "running_usage", "start", "token_at", "zero_usage")

    def __init__(
        self, name: str, model: str, *, chat: bool, prompt: int, start: int, running_usage: bool = False
    ) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._envelope = {"id": name, "object": kind, "created": int(time.time()), "model": model}
        self._prompt = prompt
        self.chat = chat
        self.start = start
        self.token_at: Callable[[int], int] = lambda index: tokens.answer_id(start + index)
        self.cached: Callable[[], int] | None = None  # tokens of the prompt from the prefix cache, if usage has them
        self.running_usage = running_usage
        self.zero_usage = False  # running usage counts nothing
        self.hidden = 0  # tokens that usage counts, although they are not streamed

    def ids(self, first: int, last: int) -> list[int]:
        """Tokens `first` to `last` (exclusive) of the answer."""
        return [self.token_at(index) for index in range(first, last)]

    def text(self, first: int, last: int) -> str:
        return tokens.text(self.ids(first, last))

    def prepared(self, kind: Field) -> tuple[bytes, bytes]:
        """What surrounds the word in every event but the last, without running usage; includes the chunk."""
        before, after = self._around_word(kind, None)
        framed = chunk(before + ANSWER[0] + after)
        return framed.partition(ANSWER[0] + after)[0], after + b"\r\n"

    def template(self, kind: Field, generated: int) -> tuple[bytes, int]:
        """An event with running usage, as a `%` template of (word, total tokens, completion tokens).

        Valid below the number of tokens returned with it, at which a count gets one more digit.
        """
        counts = {"prompt_tokens": self._prompt, "total_tokens": -1, "completion_tokens": -2}
        before, after = self._around_word(kind, counts)
        # Names chosen by users are all before the word.
        event = before.replace(b"%", b"%%") + b"%b" + after.replace(b"-1", b"%d").replace(b"-2", b"%d")
        total = self._prompt + generated
        longer_at = min(10 ** len(str(generated)), 10 ** len(str(total)) - self._prompt)
        return b"%x\r\n%b\r\n" % (len(event % (ANSWER[0], total, generated)), event), longer_at

    def token(self, kind: Field, first: int, last: int, finish: Finish | None = None) -> bytes:
        """One event with tokens `first` to `last` (exclusive), without a chunk around it."""
        choice = self._choice(kind, self.text(first, last), finish)
        if kind == "tool_calls" and not first:
            call = choice["delta"]["tool_calls"][0]
            call |= {"id": "call-0", "type": "function"}
            call["function"]["name"] = "look_up"
        return self._event(choice, self._counts(0 if self.zero_usage else last) if self.running_usage else None)

    def role(self) -> bytes:
        """The first event of a chat stream; for a completion, an event without text."""
        choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        choice["finish_reason"] = None
        if not self.chat:
            choice = self._choice("text", "", None)
        return self._event(choice, usage(self._prompt, 0) if self.running_usage else None)

    def closing(self, completion: int, *, with_usage: bool) -> list[bytes]:
        """What follows the last token: a usage event if requested, and the end."""
        body = self._envelope | {"choices": [], "usage": self._counts(completion) | self._details("prompt")}
        return [b"data: %b\n\n" % encode(body), DONE] if with_usage else [DONE]

    def whole(
        self, completion: int, finish: Finish, *, with_usage: bool, scores: dict[str, Any] | None = None
    ) -> bytes:
        """The response in one piece, with what `scores` has about its tokens."""
        text = self.text(0, completion)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        body: dict[str, Any] = self._envelope | {"choices": [choice]}
        if self.chat:
            body["object"] = "chat.completion"
        if scores is not None and self.chat:
            body["prompt_logprobs"] = scores["prompt_logprobs"]
        elif scores is not None:
            choice |= scores
        if with_usage:
            body["usage"] = usage(self._prompt, completion) | self._details("prompt")
        return encode(body)

    def _details(self, prompt: str) -> dict[str, Any]:
        """What usage has besides, at the end of an answer, under the endpoint's name for a prompt."""
        return {} if self.cached is None else {f"{prompt}_tokens_details": {"cached_tokens": self.cached()}}

    def _counts(self, completion: int) -> dict[str, Any]:
        counts: dict[str, Any] = {**usage(self._prompt, completion + self.hidden if completion else 0)}
        return counts | {"completion_tokens_details": {"reasoning_tokens": self.hidden}} if self.hidden else counts

    def _choice(self, kind: Field, text: str, finish: Finish | None) -> dict[str, Any]:
        carried: Any = [{"index": 0, "function": {"arguments": text}}] if kind == "tool_calls" else text
        content: dict[str, Any] = {kind: carried} if kind == "text" else {"delta": {kind: carried}}
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish, "stop_reason": None}

    def _around_word(self, kind: Field, counts: dict[str, int] | None) -> tuple[bytes, bytes]:
        before, _, after = self._event(self._choice(kind, _HOLE, None), counts).partition(b"\\u0000")
        return before, after

    def _event(self, choice: dict[str, Any], counts: dict[str, Any] | None) -> bytes:
        body: dict[str, Any] = self._envelope | {"choices": [choice]}
        if counts is not None or not self.chat:
            body["usage"] = counts
        return b"data: %b\n\n" % encode(body)


_OPENING = 4  # events before the first with text


class ResponseEvents(Events):
    """The event bytes of one stream of `/v1/responses`."""

    __slots__ = ("_item",)

    def __init__(self, name: str, model: str, *, prompt: int, start: int) -> None:
        super().__init__(name, model, chat=True, prompt=prompt, start=start)
        self._item = f"msg_{name}"

    def prepared(self, kind: Field) -> tuple[bytes, bytes]:
        return b"", b""

    def token(self, kind: Field, first: int, last: int, finish: Finish | None = None) -> bytes:
        """The text of tokens `first` to `last` (exclusive); `closing` sends the rest of an answer's end."""
        text = self.text(first, last)
        return self._named("response.output_text.delta", _OPENING + first, delta=text, logprobs=[], **self._place())

    def role(self) -> bytes:
        """The four events before the first text."""
        item = {"id": self._item, "content": [], "role": "assistant", "status": "in_progress", "type": "message"}
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return b"".join(
            (
                self._named("response.created", 0, response=self._response("in_progress")),
                self._named("response.in_progress", 1, response=self._response("in_progress")),
                self._named("response.output_item.added", 2, item=item, output_index=0),
                self._named("response.content_part.added", 3, part=part, **self._place()),
            )
        )

    def closing(self, completion: int, *, with_usage: bool) -> list[bytes]:
        """The whole text, and the response with its usage; no `[DONE]`."""
        text = self.text(0, completion)
        number = _OPENING + completion
        usage = self._usage(completion) if with_usage else None
        return [
            self._named("response.output_text.done", number, text=text, logprobs=[], **self._place()),
            self._named("response.completed", number + 1, response=self._response("incomplete", text, usage)),
        ]

    def whole(
        self, completion: int, finish: Finish, *, with_usage: bool, scores: dict[str, Any] | None = None
    ) -> bytes:
        del scores  # this endpoint has no such fields
        text = self.text(0, completion)
        status = "incomplete" if finish == "length" else "completed"
        return encode(self._response(status, text, self._usage(completion) if with_usage else None))

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item, "output_index": 0}

    def _usage(self, completion: int) -> dict[str, Any]:
        total = self._prompt + completion
        counts = {"input_tokens": self._prompt, "output_tokens": completion, "total_tokens": total}
        return counts | self._details("input")

    def _response(self, status: str, text: str = "", usage: dict[str, Any] | None = None) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output = [{"id": self._item, "type": "message", "role": "assistant", "content": content}] if text else []
        return self._envelope | {"object": "response", "status": status, "output": output, "usage": usage}

    def _named(self, kind: str, number: int, **fields: object) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({**fields, "sequence_number": number, "type": kind}))
