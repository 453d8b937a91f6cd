"""Which requests go wrong, and how: `KIND:key=value,key=value`.

Faulty answers replace good ones and use their parts; good answers pay nothing for them.

Requests are chosen by their number since the faults were set, so that a run with a seed goes wrong in the same places
every time: `share=0.1` by a hash of seed and number, `nth=7` only that one, `every=5` each fifth, otherwise all.
`streams=64`, alone or with one of these: only requests that arrive while at least so many are open.

Kinds, with the parameters that they take besides:
- before an answer: `http_401` `http_429` `http_500` `http_503`; `echo` (500, with the request's headers in it);
  `not_http` (bytes that are not HTTP); `silent` (never a byte); `close_on_reuse` (a kept-alive connection closes when
  its next request arrives, before any byte of an answer); `reset_idle` (RST, when a request arrives on a connection
  that has been idle for `seconds`).
- ends of a stream, when event `after`+1 is due (default 1): `reset` (RST), `truncate` (closed inside a chunk),
  `early_end` (ends properly, without finish_reason and [DONE]), `error_event`, `abort` (ends as an engine aborts:
  finish_reason `abort`, usage, [DONE]), `stall` (for `seconds`; 0, the default,
  is forever; with `after=0` an answer without any output, or a late one). `reset`, `truncate` and `stall` also apply
  to answers that are not streamed, in place of the answer.
- hangs of the whole engine, from when the request arrives, for `seconds` (0, the default, is forever): `kernel`
  (requests run, the GPUs are busy, no step ends), `collective` (the same, and the log says that a worker does not
  answer), `lost_wakeup` (requests run, the GPUs are idle), `scheduler` (no waiting request is admitted).
- oddities that a client must survive: `garbage` (an event that is not JSON, after `after` events), `role_first` (an
  immediate event without output), `multi` (`tokens` per event, default 4), `split` (events in pieces), `hold` (bytes
  are held back as by a proxy that buffers: for `seconds`, until `bytes` have gathered, or until the answer is complete,
  whichever comes first), `crlf`, `ping`, `empty` (no output tokens), `usage_none`, `usage_end` (only a total at the
  end), `usage_zero` (0 until the end),
  `usage_partial` (in each third event), `hidden` (usage counts `tokens` more, which are not streamed), and in chat
  streams `reasoning` (the first half) and `tool_calls`.
- wrong text while everything else is right, from token `after`+1 on (default 1): `wrong` (random words, different in
  each answer; the prompt is scored as by an untrained model), `flip` (another answer as good as the first: a near tie
  that went the other way), `repeat` (one token over and over), `replacement` (characters are U+FFFD), `blank` (tokens
  without text); `endless` answers ignore the end-of-sequence token.
- log probabilities: `drift` (each lower by `nats`, default 0.5), `unsteady` (those of a request all shifted by a random
  number with standard deviation `nats`), `some_scores` (none for the second half of the prompt), `ignore_scores` (not
  returned), `refuse_scores` (status 400).
- after an answer: `idle_close` (closed although keep-alive was promised); `twice` (a stream's answer is sent again,
  unrequested: in the same bytes, or `seconds` later, when the connection may be waiting for another).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from zlib import crc32

from loadgen.errors import ProfileError
from loadgen.simulator import tokens
from loadgen.simulator.answers import AnswerStream, Exchange, WholeAnswer
from loadgen.simulator.http import LAST_CHUNK, STREAM_HEAD, chunk
from loadgen.simulator.physics import MAX_SECONDS
from loadgen.simulator.scores import Scores
from loadgen.simulator.vllm_events import DONE, encode

REFUSALS = {"http_401": 401, "http_429": 429, "http_500": 500, "http_503": 503, "echo": 500}
TEXTS = ("wrong", "flip", "repeat", "replacement", "blank")
ENDS = ("reset", "truncate", "early_end", "error_event", "abort")
HANGS = ("kernel", "collective", "lost_wakeup", "scheduler")
_OTHERS = (
    "endless drift unsteady some_scores ignore_scores refuse_scores not_http silent close_on_reuse reset_idle stall "
    "garbage role_first multi split hold twice crlf ping empty reasoning tool_calls idle_close usage_none usage_end "
    "usage_zero usage_partial hidden"
).split()
KINDS = (*REFUSALS, *ENDS, *TEXTS, *HANGS, *_OTHERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of misbehaviour and the requests it applies to."""

    kind: str
    share: float | None = None
    nth: int | None = None
    every: int | None = None
    after: int = 1
    seconds: float = 0.0
    tokens: int = 4
    bytes: int = 0
    streams: int = 0
    nats: float = 0.5

    def applies(self, number: int, seed: int, streams: int = 1) -> bool:
        """Whether it applies to request `number` (from 1), with which `streams` are open."""
        if streams < self.streams:
            return False
        if self.nth is not None:
            return number == self.nth
        if self.every is not None:
            return number % self.every == 0
        # Kinds with the same share must not hit the same requests; a str seed does not depend on PYTHONHASHSEED.
        return self.share is None or Random(f"{seed}/{self.kind}/{number}").random() < self.share


def parse_fault(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ProfileError(f"fault {text!r}: no kind {kind!r}; there are {', '.join(sorted(KINDS))}")
    readers = {"share": float, "nth": int, "every": int, "after": int, "seconds": float, "tokens": int, "streams": int}
    readers |= {"nats": float, "bytes": int}
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in readers:
            raise ProfileError(f"fault {text!r}: no parameter {key!r}; there are {', '.join(readers)}")
        try:
            values[key] = readers[key](value)
            finite = math.isfinite(values[key])
        except (ValueError, OverflowError):
            finite = False
        if not finite:
            raise ProfileError(f"fault {text!r}: {key}={value!r} is not a number")
        if values[key] < 0 or (key in ("nth", "every", "tokens") and values[key] < 1):
            raise ProfileError(f"fault {text!r}: {key}={value} is too small")
        if key == "seconds" and values[key] > MAX_SECONDS:
            raise ProfileError(f"fault {text!r}: seconds={value} is longer than a day")
    return Fault(kind=kind, **values)  # type: ignore[arg-type]  # the reader of each key made its type


def chosen(faults: list[Fault], number: int, seed: int, streams: int = 1) -> dict[str, Fault]:
    return {fault.kind: fault for fault in faults if fault.applies(number, seed, streams)}


def wrong_text(faults: dict[str, Fault], good: Callable[[int], int], number: int) -> Callable[[int], int]:
    """The token at each place of the answer to request `number`; `good` gives that of the right answer."""
    fault = next((faults[kind] for kind in TEXTS if kind in faults), None)
    if fault is None:
        return good
    after = fault.after
    same = {"repeat": tokens.encode("!"), "replacement": tokens.encode("\ufffd"), "blank": [tokens.END]}.get(fault.kind)

    def token_at(index: int) -> int:
        if index < after:
            return good(index)
        if same is not None:
            return same[0]
        return good(index + 31) if fault.kind == "flip" else tokens.answer_id(crc32(b"%d/%d" % (number, index)))

    return token_at


def wrong_scores(faults: dict[str, Fault], scores: Scores) -> Scores | None:
    """The log probabilities that are returned under these faults; None if none are."""
    if "ignore_scores" in faults:
        return None
    shift = -faults["drift"].nats if "drift" in faults else 0.0
    if "unsteady" in faults:
        shift += scores.noise.gauss(0.0, faults["unsteady"].nats)
    known = len(scores.prompt) // 2 if "some_scores" in faults else None
    return replace(scores, shift=shift, untrained="wrong" in faults, known=known)


PING = b": ping\n\n"
GARBAGE = b'data: {"id": "cmpl-\n\n'
ERROR = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}
NOT_HTTP = b"\x16\x03\x01 these bytes are not HTTP\r\n\r\n"


class FaultyStream(AnswerStream):
    def __init__(self, exchange: Exchange, faults: dict[str, Fault]) -> None:
        super().__init__(exchange)
        self._faults = faults
        self._random = Random(exchange.sequence.number)
        self._sent = 0
        self._counts = exchange.served.tokens = []
        self._stalled = self._over = False
        self._held = b""
        events = exchange.events
        events.hidden = faults["hidden"].tokens if "hidden" in faults else 0
        events.zero_usage = "usage_zero" in faults
        events.running_usage &= "usage_end" not in faults
        if "split" in faults:
            self.write = self._write_split
        elif "hold" in faults:
            self.write = self._write_held
        elif "twice" in faults and not faults["twice"].seconds:
            self.write = self._write_twice
        if "crlf" in faults:
            self.frame = lambda event: chunk(event.replace(b"\n", b"\r\n"))
        if "role_first" in faults:
            self.write(self.frame(events.role()))

    def opening(self) -> None:
        """Send a good stream's opening, unless `role_first` has already sent it."""
        if "role_first" not in self._faults:
            super().opening()

    def token(self) -> None:
        """Send an event if enough tokens are due, unless stalled."""
        size = self._faults["multi"].tokens if "multi" in self._faults else 1
        if not self._stalled and self.exchange.sequence.generated - self._sent >= size:
            self._event(last=False)

    def end(self) -> None:
        self._over = True
        if not self._stalled:
            self._event(last=True)

    def _event(self, *, last: bool) -> None:
        """Send one event with all unsent tokens, or the fault that is due in its place."""
        due = {kind for kind, fault in self._faults.items() if len(self._counts) >= fault.after}
        for kind in ENDS:
            if kind in due:
                self._cut(kind)
                return
        if "stall" in due:
            # The engine continues: the tokens of the meantime come in one event afterwards.
            self._stalled = True
            if seconds := self._faults.pop("stall").seconds:
                self.exchange.connection.server.loop.call_later(seconds, self._wake)
            return
        if "garbage" in due:
            del self._faults["garbage"]
            self.write(self.frame(GARBAGE))
        if "ping" in self._faults:
            self.write(self.frame(PING))
        self._send_event(last=last)

    def _send_event(self, *, last: bool) -> None:
        exchange = self.exchange
        generated = 0 if "empty" in self._faults else exchange.sequence.generated
        kind = self.kind
        if kind == "content" and "tool_calls" in self._faults:
            kind, exchange.finish = "tool_calls", "tool_calls"
        elif kind == "content" and "reasoning" in self._faults and generated <= exchange.sequence.limit // 2:
            kind = "reasoning_content"
        finish = ("stop" if not generated else exchange.finish) if last else None
        if "usage_partial" in self._faults:
            exchange.events.running_usage = len(self._counts) % 3 == 2
        event = self.frame(exchange.events.token(kind, self._sent, generated, finish))
        if generated:
            self.stamps.append(time.time_ns())
            self._counts.append(generated - self._sent)
        self._sent = generated
        self.write(event)
        if last:
            self.close(generated)
            if "twice" in self._faults and self._faults["twice"].seconds:
                later = exchange.connection.server.loop.call_later
                later(self._faults["twice"].seconds, exchange.connection.write, self._again())

    def _wake(self) -> None:
        self._stalled = False
        if self.exchange.connection.fd >= 0:
            self._event(last=self._over)

    def _cut(self, kind: str) -> None:
        connection = self.exchange.connection
        self.exchange.settle("failed")
        if kind == "reset":
            connection.reset()
        elif kind == "truncate":
            connection.write(chunk(self.exchange.events.token(self.kind, 0, 1))[:-20])
            connection.close()
        elif kind == "early_end":
            connection.write(LAST_CHUNK)
            connection.done()
        elif kind == "abort":
            events, sent = self.exchange.events, self._sent
            closing = [events.token(self.kind, sent, sent, "abort"), *events.closing(sent, with_usage=True)]
            connection.write(b"".join(map(self.frame, closing)) + LAST_CHUNK)
            connection.done()
        else:
            error = b"data: %b\n\n" % encode({"error": ERROR})
            connection.write(self.frame(error) + self.frame(DONE) + LAST_CHUNK)
            connection.done()

    def _again(self) -> bytes:
        exchange = self.exchange
        generated = exchange.sequence.generated
        event = exchange.events.token(self.kind, 0, generated, exchange.finish)
        closing = exchange.events.closing(generated, with_usage=exchange.with_usage)
        return STREAM_HEAD % b"" + b"".join(map(self.frame, (event, *closing))) + LAST_CHUNK

    def _write_twice(self, data: bytes) -> None:
        # Data that ends with the last chunk ends the answer.
        self.exchange.connection.write(data + self._again() if data.endswith(LAST_CHUNK) else data)

    def _write_held(self, data: bytes) -> None:
        fault, connection = self._faults["hold"], self.exchange.connection
        if not self._held and fault.seconds:
            connection.server.loop.call_later(fault.seconds, self._let_through)
        self._held += data
        if data.endswith(LAST_CHUNK) or 0 < fault.bytes <= len(self._held):
            self._let_through()

    def _let_through(self) -> None:
        held, self._held = self._held, b""
        if held and self.exchange.connection.fd >= 0:
            self.exchange.connection.write(held)

    def _write_split(self, data: bytes) -> None:
        cuts = sorted(self._random.randrange(len(data) + 1) for _ in range(3))
        for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < stop:
                self.exchange.connection.write(data[start:stop])


class FaultyWhole(WholeAnswer):
    """A whole answer that does not arrive, or arrives late."""

    def __init__(self, exchange: Exchange, fault: Fault) -> None:
        super().__init__(exchange)
        self._fault = fault

    def end(self) -> None:
        connection = self.exchange.connection
        if self._fault.kind == "stall":
            if self._fault.seconds:
                connection.server.loop.call_later(self._fault.seconds, self._late)
            return
        self.exchange.settle("failed")
        if self._fault.kind == "reset":
            connection.reset()
        else:
            connection.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"id":')
            connection.close()

    def _late(self) -> None:
        if self.exchange.connection.fd >= 0:
            super().end()
