"""A keep-alive HTTP/1.1 connection that carries one stream at a time: the timed path.

A transport (`loadgen.stream.transport`) feeds it bytes with their arrival time; it stamps the stream and, when the
stream ends, calls its owner once. Invariants: nothing here blocks or logs; a stream ends exactly once; a channel is
reused only after a complete response that allows it. If a reused connection dies before the first byte of a response,
its stream is sent once more elsewhere: the server closed an idle connection, which is not a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import httptools

from loadgen.errors import UNDECODABLE
from loadgen.stream.ending import Failure, error_in, failure_of, shown
from loadgen.stream.events import (
    BARE,
    DONE,
    EVENT_BELOW,
    EVENT_HEADS,
    EVENT_STARTS,
    NO_ERROR,
    Choice,
    Chunk,
    Delta,
    Event,
    EventSplitter,
    EventTooLong,
    decode_chunk,
    is_answer,
    is_reasoning,
    is_whole,
    read_event,
    single_event,
)
from loadgen.stream.samples import ClientSamples
from loadgen.stream.stream import Stream, http_failure

_KEPT_BODY = 4096
_UNSURE_NS = 1_000_000
_MAX_BURST_GAP_NS = 10_000_000_000  # after a longer silence the server went on: no proxy gathers tokens for so long
_MOMENT_NS = 10_000_000  # bursts that are closer together may have one cause: a client that was late once
_IDLE_CLOSE_NS = 1_000_000_000  # a reset that crossed the request arrives within a round trip

Ended = Callable[["Channel", Stream, int], None]
"""(channel, stream, stamp): the stream is over; `channel.usable` says whether the channel can carry another."""
Unanswered = Callable[["Channel", Stream], None]
"""Called if a reused channel died before its stream was answered, which must be sent again elsewhere."""
Gone = Callable[["Channel"], None]  # called if it died while no stream was on it


class Channel:
    """One connection: `begin` puts a stream on it; the transport calls `feed`, `sent_late` and `lost`."""

    __slots__ = (
        "stream usable served answered write close_transport output_began _client _ended _unanswered _gone _parser "
        "_stamp_ns _before_ns _burst_ns _splitter _slow _between_chunks _plain _status _body on_header"
    ).split()

    def __init__(
        self,
        client: ClientSamples,
        ended: Ended,
        unanswered: Unanswered,
        gone: Gone = lambda _: None,
        echo: str | None = None,
    ) -> None:
        """`echo` names the response header whose value is kept as the stream's `session_token`."""
        self._client = client
        self._ended = ended
        self._unanswered = unanswered
        self._gone = gone
        self.on_header: Callable[[bytes, bytes], None]
        if echo is not None:  # the parser calls it for every header, but only if it exists
            self.on_header = partial(self._note_header, echo.lower().encode())
        self._parser = httptools.HttpResponseParser(self)
        self.stream: Stream | None = None
        self.usable = False  # connected, and nothing has happened that forbids another request
        self.served = 0
        self.write: Callable[[bytes], bool] = _not_connected
        """Send bytes; True if the kernel took all of them, otherwise `sent_late` is called once it has."""
        self.close_transport: Callable[[], None] = _nothing
        self.output_began: Callable[[], None] = _nothing  # called when the first token arrives
        self._stamp_ns = 0
        self._before_ns = 0  # the stream's last output, or its sending, before the bytes that are being read
        self._burst_ns = 0  # stamp of the last read with several output events
        self._reset_response()

    def _reset_response(self) -> None:
        self._splitter = EventSplitter()
        self._slow = True
        self._between_chunks = False
        self._plain = False  # between two chunks of an event stream: a whole chunk can skip the HTTP parser
        self._status = 0
        self._body = b""
        self.answered = False  # a byte of the response has arrived

    def begin(self, stream: Stream) -> None:
        """Send a stream's request now; `sent` is taken right before its bytes go to the kernel."""
        self.stream = stream
        self._reset_response()
        now_ns = stream.sent_ns = stream.last_ns = time.time_ns()
        if self.write(stream.wire):
            self._note_lag(stream)
            if time.time_ns() - now_ns > _UNSURE_NS:
                # Another process had the core meanwhile: the bytes may have gone before or after that.
                self._client.unsure_ttfts += not stream.primes
        stream.wire = b""

    def close(self) -> None:
        """Close the connection; the caller accounts for the stream on it."""
        self.usable = False
        self.stream = None
        self.close_transport()

    # Called by the transport.

    def free(self) -> None:
        """Break the reference cycles once nothing more comes; a worker's rare collections would keep them for hours."""
        del self._parser
        self.on_header = lambda _name, _value: None
        self.write, self.close_transport, self.output_began = _not_connected, _nothing, _nothing

    def sent_late(self, stamp_ns: int) -> None:
        """The kernel took the last bytes of a request at `stamp_ns`, having refused some of them at first."""
        stream = self.stream
        if stream is not None and not self.answered:
            stream.sent_ns = stream.last_ns = stamp_ns
            self._note_lag(stream)

    def _note_lag(self, stream: Stream) -> None:
        if not (stream.retried or stream.primes):  # the server had it once; or it is not of the load
            self._client.send_lag_ns.append(stream.sent_ns - stream.due_ns)

    def feed(self, data: bytes, stamp_ns: int) -> None:
        """Take in bytes that arrived at `stamp_ns`."""
        stream = self.stream
        if stream is None:
            # An unsolicited response, or the rest of one that has already failed.
            self.close()
            self._gone(self)
            return
        self._stamp_ns = stamp_ns
        size = len(data)
        if self._plain and size < EVENT_BELOW and data.startswith(EVENT_HEADS[size]) and data.endswith(b"\n\n\r\n"):
            # The parser may skip a whole chunk: it stands between two chunks before and after.
            document = data[EVENT_STARTS[size] : -4]
            try:
                chunk = decode_chunk(document)
            except UNDECODABLE:
                self._parse(stream, data)
            else:
                self._take_document(stream, chunk, document)
        else:
            self._parse(stream, data)

    def _parse(self, stream: Stream, data: bytes) -> None:
        if stream.last_ns != self._stamp_ns:
            self._before_ns = stream.last_ns
        try:
            self._parser.feed_data(data)
            # Further bytes ending in CRLF would be the next chunk's header, which clears `_between_chunks`.
            self._plain = self._between_chunks and not self._slow and data.endswith(b"\r\n")
        except httptools.HttpParserCallbackError as error:
            raise (error.__context__ or error) from None  # our bug, not the server's
        except httptools.HttpParserError as error:
            self._fail("protocol", f"not HTTP: {error}")

    def lost(self, kind: Failure, message: str) -> None:
        self.usable = False
        self.close_transport()
        stream = self.stream
        if stream is not None and self._status == 200 and not self._take_unended(stream):
            return
        if stream is None:
            self._gone(self)
        elif stream.done and stream.first_ns:
            # Everything has arrived: the body ended with the connection, or the server closed it uncleanly.
            self._end_answered(stream)
        elif self._status > 200:
            # The server has refused; without a length, its message ends with the connection.
            self._end_refused(stream)
        elif self._was_idle(stream) and kind == "reset":
            self.stream = None
            self._unanswered(self, stream)
        else:
            self._fail(kind, message)

    def _was_idle(self, stream: Stream) -> bool:
        """Whether the server may have closed an idle connection just before the request arrived.

        If the request had been waiting for longer, the server lost it, and to send it again would hide that wait.
        """
        waited_ns = time.time_ns() - stream.sent_ns
        fresh = not self.served or self.answered or stream.retried
        return not fresh and waited_ns < _IDLE_CLOSE_NS

    # Called by the HTTP parser.

    def on_message_begin(self) -> None:
        """Note the first byte of a response."""
        self.answered = True

    def _note_header(self, wanted: bytes, name: bytes, value: bytes) -> None:
        if name.lower() == wanted and self.stream is not None:
            self.stream.session_token = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._slow = self._status != 200

    def on_chunk_header(self) -> None:
        """Note that a chunk begins; the last one is empty."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """Note that a chunk and its trailing CRLF have been read."""
        self._between_chunks = True

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body: usually one HTTP chunk, which usually holds one event."""
        if self._slow or body[:6] != b"data: " or body[-2:] != b"\n\n":
            self._take_any(body)
            return
        document = body[6:-2]
        try:
            # Two events, or an event and a comment, are not valid JSON: what decodes was a single event.
            chunk = decode_chunk(document)
        except UNDECODABLE:
            self._take_any(body)
            return
        stream = self.stream
        if stream is not None:
            self._take_document(stream, chunk, document)

    def _take_document(self, stream: Stream, chunk: Chunk, document: bytes) -> None:
        """Record one event of the usual form: a chunk, and the JSON that it was read from.

        The hottest function: called once per token.
        """
        if not chunk.choices:
            self._take_event(stream, Event(document))
            return
        usage, choice = chunk.usage, chunk.choices[0]
        grown = None
        if usage is not None:
            stream.usage = usage
            if usage.completion_tokens and stream.counted:
                grown = usage.completion_tokens - stream.tokens
        if grown == 1 and stream.plain and (gap_ns := self._stamp_ns - stream.last_ns):
            stream.record_gap(gap_ns)
            stream.tokens += 1
            stream.last_ns = self._stamp_ns
            self._client.output_tokens += 1
        elif (
            choice.text or _has_output(choice.delta) or (grown is not None and _is_silent_token(stream, choice, grown))
        ):
            self._take_output(stream, choice, grown)
        elif document:
            # No output was found: it may be in another form.
            stream.silent = document
            self._take_event(stream, Event(document))
            return
        stream.events += 1
        if choice.finish_reason is not None or chunk.error is not NO_ERROR or choice.error is not NO_ERROR:
            self._take_ending(stream, chunk)

    def _take_ending(self, stream: Stream, chunk: Chunk) -> None:
        failed = error_in(chunk)
        if failed is not None:
            self._fail(*failed)
            return
        for choice in chunk.choices:
            stream.note_reason(choice.finish_reason)

    def _take_output(self, stream: Stream, choice: Choice, grown: int | None) -> None:
        """Record an output event; `grown` is by how much usage has grown, None if it says nothing of this event."""
        stamp_ns = self._stamp_ns
        tokens = stream.tokens_in(choice, grown)
        gap_ns = stamp_ns - stream.last_ns
        if tokens == 1 and gap_ns and stream.plain:
            stream.record_gap(gap_ns)
        else:
            self._take_odd_output(stream, tokens, gap_ns, choice)
        stream.tokens += tokens
        stream.last_ns = stamp_ns
        self._client.output_tokens += tokens

    def _take_odd_output(self, stream: Stream, tokens: int, gap_ns: int, choice: Choice) -> None:
        """Record output that is not simply one token after another: the first, several at once, or held-back text.

        Streams whose answers are sampled take this path for all their output, reasoning ones until their answer begins.
        """
        stamp_ns = self._stamp_ns
        if stream.pieces is not None:
            stream.pieces.append(choice)
        if stream.first_ns == 0:
            stream.record_first_token(stamp_ns, tokens, reasoning=is_reasoning(choice))
            self.output_began()
            if stream.primes:
                self._client.primed_output_tokens += tokens
            # Input tokens count once the prompt is processed, that is at the first token, as in the engine's counters.
            self._count_input(stream, stream.usage.prompt_tokens)
            return
        if stream.awaits_answer and is_answer(choice):
            stream.record_answer(stamp_ns)
        if gap_ns == 0:
            self._note_burst(stream)
        if not stream.part_ns:
            stream.begin_part(stamp_ns, tokens)
            return
        if tokens == 1 and gap_ns and not stream.held_ns:
            stream.record_gap(gap_ns)
        else:
            stream.record_odd_gap((gap_ns, stamp_ns - (stream.held_ns or stream.last_ns), tokens))
        if tokens:
            stream.held_ns = 0
        elif not stream.held_ns:
            # Text without a new token: the gap stays open until the next token.
            stream.held_ns = stream.last_ns
        stream.plain = not stream.held_ns and stream.pieces is None and not stream.awaits_answer

    def _note_burst(self, stream: Stream) -> None:
        """Count an output event that was read at once with the one before it."""
        client, samples, stamp_ns, before_ns = self._client, stream.samples, self._stamp_ns, self._before_ns
        begins = self._burst_ns != stamp_ns
        is_first = before_ns == stream.sent_ns
        if begins:
            self._burst_ns = stamp_ns
            client.coalesced_reads += 1
            client.coalesced_ttfts += is_first
        if stream.muted or not samples.is_open or before_ns < samples.opened_ns:
            return
        gap_ns = stamp_ns - before_ns
        if gap_ns < 0:  # the wall clock was stepped back, which the next tick notices
            return
        if gap_ns > _MAX_BURST_GAP_NS and not is_first:
            return
        events = 1 + begins
        samples.burst_events += events
        if is_first:
            samples.first_burst_events += events
        if not begins:
            return
        samples.bursts += 1
        samples.burst_gap_ns += gap_ns
        if is_first:
            samples.first_bursts += 1
            samples.first_burst_gap_ns += gap_ns
        if abs(stamp_ns - client.burst_ns) > _MOMENT_NS:
            client.burst_ns = stamp_ns
            samples.burst_moments += 1

    def _take_any(self, body: bytes) -> None:
        """Take a piece of the body that is not simply one event."""
        if len(self._body) < _KEPT_BODY and (
            self._status != 200 or (self.stream is not None and not self.stream.events)
        ):
            self._body += body
        if self._status != 200:
            return
        single = None if self._slow else single_event(body)
        if single is not None and self.stream is not None:
            self._take_event(self.stream, single)
            return
        try:
            events = self._splitter.feed(body)
        except EventTooLong:
            self._fail("protocol", "an event did not end within 16 MiB")
            return
        self._slow = self._splitter.holds
        for event in events:
            stream = self.stream
            if stream is None:
                return
            self._take_event(stream, event)

    def _take_event(self, stream: Stream, event: Event) -> None:
        """Record an event of any form."""
        if event.data.strip() == DONE:
            stream.events += 1
            stream.done = True
            return
        try:
            chunk = read_event(event)
        except UNDECODABLE as error:
            self._fail("bad_event", f"{error}: {shown(event.data)}")
            return
        if chunk.choices:
            self._take_document(stream, chunk, b"")
            return
        stream.events += event.name != BARE
        if chunk.usage is not None:
            stream.usage = chunk.usage
        self._take_ending(stream, chunk)

    def _take_unended(self, stream: Stream) -> bool:
        """Take the last event of a body that ends without an empty line, unless it was cut off itself.

        Returns whether the stream goes on: the event may have been an error.
        """
        for event in self._splitter.feed(b"\n\n"):
            if self.stream is stream and is_whole(event):
                self._take_event(stream, event)
        return self.stream is stream

    def on_message_complete(self) -> None:
        """End the stream, because its response is complete."""
        stream = self.stream
        if stream is None:
            return
        if 100 <= self._status < 200:
            return  # an interim response; the real one follows
        if not self._parser.should_keep_alive():
            self.usable = False
        if self._status != 200:
            self._end_refused(stream)
            return
        if self._take_unended(stream):
            self._end_answered(stream)

    # The end of a stream.

    def _end_answered(self, stream: Stream) -> None:
        failed = failure_of(
            reason=stream.reason, done=stream.done, has_events=stream.events > 0, has_output=stream.first_ns > 0
        )
        if failed is None:
            self._complete(stream)
            return
        # Bytes that show what came in place of what was expected.
        strange = {"protocol": self._body, "empty": stream.silent}.get(failed.kind)
        self._end_failed(stream, failed.kind, f"{failed.message}: {shown(strange)}" if strange else failed.message)

    def _complete(self, stream: Stream) -> None:
        uncounted = stream.output_tokens - stream.tokens
        self._client.requests += 1
        # If the total came only at the end, each event has counted as a token until now.
        self._client.output_tokens += uncounted
        if stream.primes:
            self._client.primed_requests += 1
            self._client.primed_output_tokens += uncounted
        self._count_input(stream, stream.input_tokens)
        stream.finish()
        self._release(stream)

    def _count_input(self, stream: Stream, tokens: int | None) -> None:
        if tokens is not None:
            self._client.input_tokens += tokens - stream.counted_input
            if stream.primes:
                self._client.primed_input_tokens += tokens - stream.counted_input
            stream.counted_input = tokens

    def _end_refused(self, stream: Stream) -> None:
        self._end_failed(stream, http_failure(self._status), f"HTTP {self._status}: {shown(self._body)}")

    def _end_failed(self, stream: Stream, kind: Failure, message: str) -> None:
        stream.fail(kind, message)
        self._release(stream)

    def _release(self, stream: Stream) -> None:
        self.stream = None
        self.served += 1
        self._ended(self, stream, self._stamp_ns)

    def _fail(self, kind: Failure, message: str) -> None:
        """Fail the stream in the middle of its response; the connection cannot be reused."""
        stream = self.stream
        self.usable = False
        self.close_transport()
        if stream is not None:
            self._end_failed(stream, kind, message)

    def give_up(self, kind: Failure, message: str) -> None:
        """Fail the stream from outside: a timeout or a stall."""
        self._stamp_ns = time.time_ns()
        self._fail(kind, message)


def _has_output(delta: Delta | None) -> bool:
    return delta is not None and bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


def _is_silent_token(stream: Stream, choice: Choice, grown: int) -> bool:
    """Whether usage counts tokens without text as they come: the server holds back a character until it is complete.

    Several at once in an answer's last event, with nothing before, are a total: that answer had no output.
    """
    return grown > 0 and (stream.first_ns > 0 or grown == 1 or not choice.finish_reason)


def _not_connected(_: bytes) -> bool:
    raise AssertionError("a request was put on a channel that is not connected")


def _nothing() -> None:
    """Do nothing: the callback before there is a transport, and after it is gone."""
