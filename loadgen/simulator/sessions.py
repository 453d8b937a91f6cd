"""What was served of each session, as a router or a benchmark would want to know it: by the headers of its requests.

`X-Session-ID` names the session of a request and `X-Parent-Session-ID` the one that started it. Counts are those of the
engine: a prompt counts with its first token, so the sums over all sessions equal the engine's counters.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.simulator.engine import Sequence

TOKEN_HEADER = "x-session-token"  # noqa: S105  # its name
_KEPT = 100_000


@dataclass(slots=True)
class ServedSession:
    """One session; tokens without a first answer token are not counted."""

    parent: str = ""
    requests: int = 0
    open: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tokens_returned: int = 0  # requests that brought the router's token of this session
    tokens_missing: int = 0  # requests after the first answer's head that did not

    def arrived(self, headers: Mapping[str, str], token: str | None) -> None:
        """Record a request; `token` is the router's for this session, if it gives any."""
        if token is not None and self.requests:
            returned = headers.get(TOKEN_HEADER) == token
            self.tokens_returned += returned
            self.tokens_missing += not returned
        self.requests += 1
        self.open += 1

    def ended(self, sequence: Sequence) -> None:
        self.open -= 1
        if sequence.first_ns:
            self.prompt_tokens += sequence.prompt_len
            self.cached_tokens += sequence.cached
            self.output_tokens += sequence.generated


class ServedSessions:
    """The sessions of recent requests; those that were idle for longest are dropped."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, ServedSession] = OrderedDict()

    def of(self, headers: Mapping[str, str]) -> ServedSession | None:
        """The session of a request with these headers; None if they name none."""
        name = headers.get("x-session-id")
        if name is None:
            return None
        session = self._sessions.setdefault(name, ServedSession(headers.get("x-parent-session-id", "")))
        self._sessions.move_to_end(name)
        if len(self._sessions) > _KEPT:
            self._sessions.popitem(last=False)
        return session

    def report(self) -> dict[str, Any]:
        """All sessions by name, with the sums over them."""
        totals = {
            name: sum(getattr(session, name) for session in self._sessions.values())
            for name in ("requests", "open", "prompt_tokens", "cached_tokens", "output_tokens")
        }
        return {"total": totals, "sessions": {name: asdict(session) for name, session in self._sessions.items()}}

    def reset(self) -> None:
        self._sessions.clear()
