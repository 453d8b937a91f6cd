"""The stream of `/v1/responses`, as vLLM writes it: named events with a type, numbered, usage only in the last.

Nothing of it is prepared, since every event has a number: it is for tests of what a client makes of it, not of speed.
"""

import time
from typing import Any

from loadgen.simulator.answers import Stream
from loadgen.simulator.events import Events, Field, Finish, encode, words
from loadgen.simulator.http import chunk

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
        """The text of tokens `first` to `last` (not included); what else ends an answer comes with `closing`."""
        text = words(self.start, first, last).decode()
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
        """The text once more, and the response with its usage; no `[DONE]`."""
        text = words(self.start, 0, completion).decode()
        number = _OPENING + completion
        usage = self._usage(completion) if with_usage else None
        return [
            self._named("response.output_text.done", number, text=text, logprobs=[], **self._place()),
            self._named("response.completed", number + 1, response=self._response("incomplete", text, usage)),
        ]

    def whole(self, completion: int, finish: Finish, *, with_usage: bool) -> bytes:
        """The body of an answer that is not streamed."""
        text = words(self.start, 0, completion).decode()
        status = "incomplete" if finish == "length" else "completed"
        return encode(self._response(status, text, self._usage(completion) if with_usage else None))

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": self._item, "output_index": 0}

    def _usage(self, completion: int) -> dict[str, int]:
        total = self._prompt + completion
        return {"input_tokens": self._prompt, "output_tokens": completion, "total_tokens": total}

    def _response(self, status: str, text: str = "", usage: dict[str, int] | None = None) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output = [{"id": self._item, "type": "message", "role": "assistant", "content": content}] if text else []
        return self._envelope | {"object": "response", "status": status, "output": output, "usage": usage}

    def _named(self, kind: str, number: int, **fields: object) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({**fields, "sequence_number": number, "type": kind}))


class ResponseStream(Stream):
    """An answer in the events of `/v1/responses`."""

    __slots__ = ()

    def token(self) -> None:
        generated = self.exchange.sequence.generated
        self.stamps.append(time.time_ns())
        self.write(chunk(self.exchange.events.token(self.kind, generated - 1, generated)))
