"""The answer to one request: streamed, or whole once the engine has finished it.

The step loop calls an answer's `opening` before its first token, `token` for each token but the last, and `end` for the
last. `AnswerStream.token` runs for every token served, so whatever can be prepared is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from loadgen.simulator.engine import Engine, Sequence
from loadgen.simulator.ground_truth import GroundTruth, Outcome, ServedSession, ServedStream
from loadgen.simulator.http import LAST_CHUNK, STREAM_HEAD, Connection, chunk
from loadgen.simulator.scores import Scores
from loadgen.simulator.tokens import ANSWER
from loadgen.simulator.vllm_events import Events, Field, Finish

NEVER = 1 << 62


class BaseAnswer:
    """The interface to the step loop."""

    def opening(self) -> None: ...

    def token(self) -> None:
        """Send one more token, which is not the last."""

    def end(self) -> None:
        """Send the last token; the sequence has left the engine."""


OVER = BaseAnswer()
"""Replaces a settled answer, which otherwise forms a reference cycle with its sequence; collections are rare."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """What all answers share: connection, request, and a record in the ground truth that is settled once."""

    connection: Connection
    sequence: Sequence
    events: Events
    truth: GroundTruth
    engine: Engine
    served: ServedStream
    with_usage: bool
    idle_close: bool
    session: ServedSession | None = None
    headers: str = ""  # of the response, besides its own
    scores: Scores | None = None
    finish: Finish = field(init=False)
    _settled: bool = False

    def __post_init__(self) -> None:
        self.finish = self.sequence.reason
        self.connection.on_lost = lambda: self.settle("aborted")

    def settle(self, outcome: Outcome, output_tokens: int = 0) -> None:
        """Record the outcome once: all is written (or queued for a slow client), a fault struck, or the client left."""
        if self._settled:
            return
        self._settled = True
        self.truth.ended(self.served, outcome)
        if self.session is not None:
            self.session.ended(self.sequence)
        if outcome == "completed":
            self.truth.tokens["input"] += self.sequence.prompt_len
            self.truth.tokens["output"] += output_tokens
        self.engine.abort(self.sequence)
        self.sequence.stream = OVER


class WholeAnswer(BaseAnswer):
    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def end(self) -> None:
        exchange, generated = self.exchange, self.exchange.sequence.generated
        events, scores = exchange.events, None
        if exchange.scores is not None:
            # Without other requests, an engine computes sums in the same order every time, so scores repeat exactly.
            spread = exchange.engine.physics.score_noise if exchange.engine.running else 0.0
            scores = exchange.scores.parts(events.ids(0, generated), spread)
        body = events.whole(generated, exchange.finish, with_usage=exchange.with_usage, scores=scores)
        exchange.truth.written(exchange.served.received_ns, time.time_ns())
        exchange.settle("completed", generated)
        exchange.connection.respond(200, body, headers=exchange.headers, close=exchange.idle_close)


class AnswerStream(BaseAnswer):
    def __init__(self, exchange: Exchange) -> None:
        events, connection = exchange.events, exchange.connection
        self.exchange = exchange
        self.kind: Field = "content" if events.chat else "text"
        self.stamps = exchange.served.stamps
        self.write = connection.write
        self.frame: Callable[[bytes], bytes] = chunk
        self._send, self._out = connection.send, connection.out
        self._sequence = exchange.sequence
        self._prompt = exchange.sequence.prompt_len
        self._start = events.start - 1  # so that token number n is word `_start + n`
        self._head = self._tail = self._format = b""
        self._longer_at = 0 if events.running_usage else NEVER
        if not events.running_usage:
            self._head, self._tail = events.prepared(self.kind)
        self.write(STREAM_HEAD % exchange.headers.encode("latin-1"))

    def opening(self) -> None:
        """Send the role of a chat stream, together with its first token."""
        if self.exchange.events.chat:
            self.write(self.frame(self.exchange.events.role()))

    def token(self) -> None:
        generated = self._sequence.generated
        word = ANSWER[(self._start + generated) % 64]
        if self._longer_at == NEVER:
            data = self._head + word + self._tail
        else:
            if generated >= self._longer_at:
                self._format, self._longer_at = self.exchange.events.template(self.kind, generated)
            data = self._format % (word, self._prompt + generated, generated)
        self.stamps.append(time.time_ns())
        # `Connection.write` inlined to save the call: nine of ten sends complete and end here.
        if not self._out:
            try:
                sent = self._send(data)
            except (BlockingIOError, OSError):
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self.write(data)

    def end(self) -> None:
        """Send the last token, usage and the end of the response."""
        generated = self.exchange.sequence.generated
        event = self.exchange.events.token(self.kind, generated - 1, generated, self.exchange.finish)
        self.stamps.append(time.time_ns())
        self.write(chunk(event))
        self.close(generated)

    def close(self, output_tokens: int) -> None:
        exchange = self.exchange
        events = exchange.events.closing(output_tokens, with_usage=exchange.with_usage)
        exchange.truth.streamed(exchange.served)
        exchange.settle("completed", output_tokens)
        self.write(b"".join(map(self.frame, events)) + LAST_CHUNK)
        exchange.connection.done(close=exchange.idle_close)


class ComposedStream(AnswerStream):
    """An answer whose events are made one by one: those of `/v1/responses`, and of answers in words of their own."""

    def token(self) -> None:
        generated = self.exchange.sequence.generated
        self.stamps.append(time.time_ns())
        self.write(chunk(self.exchange.events.token(self.kind, generated - 1, generated)))
