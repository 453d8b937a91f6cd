"""Answers that go wrong: what the faults of `faults` do to a stream, and to an answer in one piece.

They stand where a good answer would, use its parts, and cost the good ones nothing.
"""

import time
from random import Random

from loadgen.simulator.answers import Stream, Whole
from loadgen.simulator.events import DONE, encode
from loadgen.simulator.faults import ENDS, Fault
from loadgen.simulator.http import LAST_CHUNK, STREAM_HEAD, chunk

PING = b": ping\n\n"
GARBAGE = b'data: {"id": "cmpl-\n\n'
ERROR_EVENT = b"data: %b\n\n" % encode(
    {
        "error": {
            "message": "EngineCore encountered an issue.",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
    }
)
NOT_HTTP = b"\x16\x03\x01 these bytes are not HTTP\r\n\r\n"


class OddStream:
    """A stream under one or more faults."""

    def __init__(self, stream: Stream, faults: dict[str, Fault]) -> None:
        self._stream = stream
        self._faults = faults
        self._exchange = stream.exchange
        self._random = Random(stream.exchange.sequence.number)
        self._sent = 0
        self._counts = stream.exchange.served.tokens = []
        self._stalled = self._over = False
        if "split" in faults:
            stream.write = self._write_split
        elif "twice" in faults and not faults["twice"].seconds:
            stream.write = self._write_twice
        if "crlf" in faults:
            stream.frame = lambda event: chunk(event.replace(b"\n", b"\r\n"))
        if "role_first" in faults:
            stream.write(stream.frame(self._exchange.events.role()))

    def opening(self) -> None:
        """As a good stream does, unless it was done long ago."""
        if "role_first" not in self._faults:
            self._stream.opening()

    def token(self) -> None:
        """Send what is due, if anything is."""
        size = self._faults["multi"].tokens if "multi" in self._faults else 1
        if not self._stalled and self._exchange.sequence.generated - self._sent >= size:
            self._event(last=False)

    def end(self) -> None:
        self._over = True
        if not self._stalled:
            self._event(last=True)

    def _event(self, *, last: bool) -> None:
        """One event with all tokens that are not sent, or the fault that is due in its place."""
        for kind in ENDS:
            if kind in self._faults and len(self._counts) >= self._faults[kind].after:
                self._cut(kind)
                return
        if "stall" in self._faults and len(self._counts) >= self._faults["stall"].after:
            self._stall(self._faults.pop("stall").seconds)
            return
        if "garbage" in self._faults and len(self._counts) >= self._faults["garbage"].after:
            del self._faults["garbage"]
            self._stream.write(self._stream.frame(GARBAGE))
        if "ping" in self._faults:
            self._stream.write(self._stream.frame(PING))
        self._send(last=last)

    def _send(self, *, last: bool) -> None:
        stream, exchange = self._stream, self._exchange
        generated = 0 if "empty" in self._faults else exchange.sequence.generated
        kind = stream.kind
        if kind == "content" and "tool_calls" in self._faults:
            kind, exchange.finish = "tool_calls", "tool_calls"
        elif kind == "content" and "reasoning" in self._faults and generated <= exchange.sequence.limit // 2:
            kind = "reasoning_content"
        finish = ("stop" if not generated else exchange.finish) if last else None
        event = stream.frame(exchange.events.token(kind, self._sent, generated, finish))
        if generated:
            stream.stamps.append(time.time_ns())
            self._counts.append(generated - self._sent)
        self._sent = generated
        stream.write(event)
        if last:
            stream.close(generated)
            if "twice" in self._faults and self._faults["twice"].seconds:
                later = exchange.connection.server.loop.call_later
                later(self._faults["twice"].seconds, exchange.connection.write, self._again())

    def _stall(self, seconds: float) -> None:
        """Say nothing; the engine goes on, and what it makes meanwhile comes in one event afterwards."""
        self._stalled = True
        if seconds:
            self._exchange.connection.server.loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._stalled = False
        if self._exchange.connection.fd >= 0:
            self._event(last=self._over)

    def _cut(self, kind: str) -> None:
        """End the response the way `kind` says."""
        connection = self._exchange.connection
        self._exchange.failed()
        if kind == "reset":
            connection.reset()
        elif kind == "truncate":
            connection.write(chunk(self._exchange.events.token(self._stream.kind, 0, 1))[:-20])
            connection.close()
        elif kind == "early_end":
            connection.write(LAST_CHUNK)
            connection.done()
        else:
            frame = self._stream.frame
            connection.write(frame(ERROR_EVENT) + frame(DONE) + LAST_CHUNK)
            connection.done()

    def _again(self) -> bytes:
        """The whole answer once more, in one event."""
        stream, exchange = self._stream, self._exchange
        generated = exchange.sequence.generated
        event = exchange.events.token(stream.kind, 0, generated, exchange.finish)
        closing = exchange.events.closing(generated, with_usage=exchange.with_usage)
        return STREAM_HEAD + b"".join(map(stream.frame, (event, *closing))) + LAST_CHUNK

    def _write_twice(self, data: bytes) -> None:
        # What ends with the last chunk ends the answer.
        self._exchange.connection.write(data + self._again() if data.endswith(LAST_CHUNK) else data)

    def _write_split(self, data: bytes) -> None:
        cuts = sorted(self._random.randrange(len(data) + 1) for _ in range(3))
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < stop:
                self._exchange.connection.write(data[start:stop])


class OddWhole:
    """An answer in one piece that does not arrive, or late."""

    def __init__(self, whole: Whole, fault: Fault) -> None:
        self._whole = whole
        self._fault = fault

    def opening(self) -> None: ...

    def token(self) -> None: ...

    def end(self) -> None:
        exchange = self._whole.exchange
        connection = exchange.connection
        if self._fault.kind == "stall":
            if self._fault.seconds:
                connection.server.loop.call_later(self._fault.seconds, self._late)
            return
        exchange.failed()
        if self._fault.kind == "reset":
            connection.reset()
        else:
            connection.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"id":')
            connection.close()

    def _late(self) -> None:
        if self._whole.exchange.connection.fd >= 0:
            self._whole.end()
