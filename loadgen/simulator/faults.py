"""Which requests are to go wrong, and how: `KIND:key=value,key=value`.

Chosen by the number of the request since the faults were set, so that a run with a seed goes wrong in the same places
every time: `share=0.1` by a hash of seed and number, `nth=7` only that one, `every=5` each fifth; without any of them
all.

Kinds, and the parameters they take besides:
- before an answer: `http_401` `http_429` `http_500` `http_503`; `not_http` (bytes that are not HTTP); `silent` (no byte
  ever); `close_on_reuse` (a kept-alive connection closes when its next request arrives, before any byte of an answer).
- ends of a stream, when event `after`+1 is due (default 1): `reset` (RST), `truncate` (closed inside a chunk),
  `early_end` (ends properly, without finish_reason and [DONE]), `error_event`, `stall` (for `seconds`; 0, the default,
  is forever; with `after=0` an answer without any output, or a late one). `reset`, `truncate` and `stall` also strike
  answers that are not streamed, in place of the answer.
- oddities that a client must survive: `garbage` (an event that is not JSON, after `after` events), `role_first` (an
  event without output at once), `multi` (`tokens` in an event, default 4), `split` (events in pieces), `crlf`, `ping`,
  `empty` (no output tokens), `usage_none`, and in chat streams `reasoning` (the first half) and `tool_calls`.
- after an answer: `idle_close` (closed although keep-alive was promised); `twice` (a stream's answer once more, asked
  by nobody: in the same bytes, or `seconds` later, when the connection may be waiting for another).
"""

from dataclasses import dataclass
from random import Random

from loadgen.errors import ProfileError

REFUSALS = {"http_401": 401, "http_429": 429, "http_500": 500, "http_503": 503}
ENDS = ("reset", "truncate", "early_end", "error_event")
KINDS = (
    *REFUSALS,
    *ENDS,
    *("not_http", "silent", "close_on_reuse", "stall", "garbage", "role_first", "multi", "split", "twice"),
    *("crlf", "ping", "empty", "usage_none", "reasoning", "tool_calls", "idle_close"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of misbehaviour and the requests that it strikes."""

    kind: str
    share: float | None = None
    nth: int | None = None
    every: int | None = None
    after: int = 1
    seconds: float = 0.0
    tokens: int = 4

    def strikes(self, number: int, seed: int) -> bool:
        """Whether request `number` (the first is 1) is one of its own."""
        if self.nth is not None:
            return number == self.nth
        if self.every is not None:
            return number % self.every == 0
        # Kinds with the same share must not strike the same requests; str seeds do not depend on the hash seed.
        return self.share is None or Random(f"{seed}/{self.kind}/{number}").random() < self.share


def parse_fault(text: str) -> Fault:
    """`KIND` or `KIND:key=value,...` as a Fault."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ProfileError(f"fault {text!r}: no kind {kind!r}; there are {', '.join(sorted(KINDS))}")
    readers = {"share": float, "nth": int, "every": int, "after": int, "seconds": float, "tokens": int}
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in readers:
            raise ProfileError(f"fault {text!r}: no parameter {key!r}; there are {', '.join(readers)}")
        try:
            values[key] = readers[key](value)
        except ValueError:
            raise ProfileError(f"fault {text!r}: {key}={value!r} is not a number") from None
        if values[key] < 0 or (key in ("nth", "every", "tokens") and values[key] < 1):
            raise ProfileError(f"fault {text!r}: {key}={value} is too small")
    return Fault(kind=kind, **values)  # type: ignore[arg-type]  # the reader of each key made its type


def chosen(faults: list[Fault], number: int, seed: int) -> dict[str, Fault]:
    """The faults that strike request `number`, by kind."""
    return {fault.kind: fault for fault in faults if fault.strikes(number, seed)}
