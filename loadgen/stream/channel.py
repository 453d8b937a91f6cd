"""A keep-alive HTTP/1.1 connection that carries one stream at a time: the timed path.

Bytes come from a transport (`loadgen.stream.transport`) with the time of their arrival; out go a stream's stamps and,
at its end, one call to the owner. Invariants: nothing here blocks or logs; a stream ends exactly once; a channel is
reused only after a complete response that allows it. A reused channel that dies before the first byte of a response
gives its stream back to be sent once more: the server closed it while idle, which says nothing about the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import httptools
import msgspec

from loadgen.stream.events import DONE, NO_ERROR, EventSplitter, EventTooLong, decode_chunk
from loadgen.stream.stream import Failure, Stream, http_failure
from loadgen.stream.tally import Meter

_KEPT_BODY = 4096
_KEPT_MESSAGE = 300

Ended = Callable[["Channel", Stream, int], None]
"""(channel, stream, stamp): the stream is over; `channel.usable` says whether the channel can carry another."""
Unanswered = Callable[["Channel", Stream], None]
"""A reused channel died before its stream was answered: send it again elsewhere."""


class Channel:
    """One connection; `begin` puts a stream on it, `feed` and `lost` are for the transport."""

    __slots__ = (
        "_body",
        "_ended",
        "_meter",
        "_outputs",
        "_parser",
        "_splitter",
        "_stamp_ns",
        "_status",
        "_unanswered",
        "answered",
        "close_transport",
        "served",
        "stream",
        "usable",
        "write",
    )

    def __init__(self, meter: Meter, ended: Ended, unanswered: Unanswered) -> None:
        self._meter = meter
        self._ended = ended
        self._unanswered = unanswered
        self._parser = httptools.HttpResponseParser(self)
        self.stream: Stream | None = None
        self.usable = False
        """Connected, and nothing has happened that forbids another request."""
        self.served = 0
        self.answered = False
        self.write: Callable[[bytes], None] = _not_connected
        self.close_transport: Callable[[], None] = _nothing
        self._reset_response()
        self._stamp_ns = 0
        self._outputs = 0

    def _reset_response(self) -> None:
        self._splitter = EventSplitter()
        self._status = 0
        self._body = b""
        self.answered = False

    def begin(self, stream: Stream) -> None:
        """Send a stream's request now; `sent` is taken right before its bytes go to the kernel."""
        self.stream = stream
        self._reset_response()
        stream.sent_ns = stream.last_ns = stream.last_token_ns = time.time_ns()
        self._meter.send_lag_ns.append(stream.sent_ns - stream.intended_ns)
        self.write(stream.wire)

    def close(self) -> None:
        """Close the connection; whatever it carries is the caller's to account for."""
        self.usable = False
        self.stream = None
        self.close_transport()

    # What the transport calls.

    def feed(self, data: bytes | memoryview, stamp_ns: int) -> None:
        """Take in bytes that arrived at `stamp_ns`."""
        stream = self.stream
        if stream is None:
            # A response that nobody asked for, or more of one that has already failed.
            self.close()
            return
        self.answered = True
        self._stamp_ns = stamp_ns
        self._outputs = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours, not of the server
        except httptools.HttpParserError as error:
            self._fail("protocol", f"not HTTP: {error}")
        if self._outputs > 1:
            self._meter.coalesced_reads += 1

    def lost(self, kind: Failure, message: str) -> None:
        """The connection is gone."""
        stream = self.stream
        self.usable = False
        self.close_transport()
        if stream is None:
            return
        if stream.done and stream.first_ns:
            # Everything has arrived: a body that only the end of the connection delimits, or a sloppy close.
            self._complete(stream)
        elif self.served and not self.answered and not stream.retried and kind == "reset":
            self.stream = None
            self._unanswered(self, stream)
        else:
            self._fail(kind, message)

    # What the HTTP parser calls.

    def on_headers_complete(self) -> None:
        """Take the status."""
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body: usually one HTTP chunk, usually one event."""
        stream = self.stream
        if stream is None:
            return
        if self._status != 200:
            if len(self._body) < _KEPT_BODY:
                self._body += body
            return
        try:
            events = self._splitter.feed(body)
        except EventTooLong:
            self._fail("protocol", "an event did not end within 16 MiB")
            return
        for data in events:
            self._take_event(stream, data)
            if self.stream is None:
                return

    def _take_event(self, stream: Stream, data: bytes) -> None:
        stream.events += 1
        if data == DONE:
            stream.done = True
            return
        try:
            chunk = decode_chunk(data)
        except msgspec.DecodeError as error:
            self._fail("bad_event", f"{error}: {_shown(data)}")
            return
        usage = chunk.usage
        tokens = 1
        grown = False
        if usage is not None:
            # Usage that comes with every chunk says what this one brought; a total at the end does not.
            if stream.usage_tokens is not None or stream.first_ns == 0:
                tokens = usage.completion_tokens - stream.tokens
                grown = tokens > 0
            stream.usage_tokens = usage.completion_tokens
            if usage.prompt_tokens:
                stream.prompt_tokens = usage.prompt_tokens
        if chunk.choices:
            choice = chunk.choices[0]
            delta = choice.delta
            if (
                choice.text
                # A token without text is output too: the server holds its character back until it is whole.
                or grown
                or (
                    delta is not None
                    and (delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)
                )
            ):
                self._take_output(stream, tokens)
            if choice.finish_reason is not None:
                stream.done = True
        elif chunk.error is not NO_ERROR and bytes(chunk.error) != b"null":
            self._fail("engine_error", _shown(bytes(chunk.error)))

    def _take_output(self, stream: Stream, tokens: int) -> None:
        stamp_ns = self._stamp_ns
        self._outputs += 1
        meter = self._meter
        meter.events += 1
        # Text without a new token is possible (held back until now); it is output, but moves no token count.
        if tokens < 0:
            tokens = 0
        meter.output_tokens += tokens
        stream.tokens += tokens
        if stream.first_ns == 0:
            stream.first_ns = stamp_ns
            stream.first_tokens = tokens
            if not stream.step_spoiled:
                stream.tally.ttft_ns.append(stamp_ns - stream.sent_ns)
                stream.tally.ttft_from_intended_ns.append(stamp_ns - stream.intended_ns)
        elif not stream.step_spoiled:
            tally = stream.tally
            if tokens == 1 and stream.last_token_ns == stream.last_ns:
                tally.gaps_ns.append(stamp_ns - stream.last_ns)
            else:
                tally.odd_gaps.append((stamp_ns - stream.last_ns, stamp_ns - stream.last_token_ns, tokens))
        stream.last_ns = stamp_ns
        if tokens:
            stream.last_token_ns = stamp_ns

    def on_message_complete(self) -> None:
        """The response is whole: the stream is over."""
        stream = self.stream
        if stream is None:
            return
        if 100 <= self._status < 200:
            return  # an interim response; the real one follows
        if not self._parser.should_keep_alive():
            self.usable = False
        if self._status != 200:
            self._end_failed(stream, http_failure(self._status), f"HTTP {self._status}: {_shown(self._body)}")
        elif stream.first_ns == 0 and stream.done:
            self._end_failed(stream, "empty", "the stream ended without any output")
        elif stream.events == 0:
            self._end_failed(stream, "protocol", "the answer to a streamed request is not an event stream")
        elif not stream.done:
            self._end_failed(stream, "protocol", "the stream ended without a finish reason or [DONE]")
        else:
            self._complete(stream)

    # How a stream ends.

    def _complete(self, stream: Stream) -> None:
        self._meter.requests += 1
        self._meter.input_tokens += stream.prompt_tokens
        stream.finish()
        self._release(stream)

    def _end_failed(self, stream: Stream, kind: Failure, message: str) -> None:
        stream.fail(kind, message)
        self._release(stream)

    def _release(self, stream: Stream) -> None:
        self.stream = None
        self.served += 1
        self._ended(self, stream, self._stamp_ns)

    def _fail(self, kind: Failure, message: str) -> None:
        """Fail the stream in the middle of its response: the connection cannot be used again."""
        stream = self.stream
        self.usable = False
        self.close_transport()
        if stream is not None:
            self._end_failed(stream, kind, message)

    def give_up(self, kind: Failure, message: str) -> None:
        """Fail the stream from outside: a deadline or a stall."""
        self._stamp_ns = time.time_ns()
        self._fail(kind, message)


def _shown(text: bytes) -> str:
    return text[:_KEPT_MESSAGE].decode("utf-8", "replace")


def _not_connected(_: bytes) -> None:
    raise AssertionError("a request was put on a channel that is not connected")


def _nothing() -> None:
    return
