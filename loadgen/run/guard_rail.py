"""When to stop sending to a server that only fails: no table of zeros, and no hammering of what is dead."""

from __future__ import annotations

from loadgen.metrics.record import Record

_QUIET_S = 2.0
_FEWEST_FAILURES = 10
_MOST_FAILURES = 200


class FailureBreaker:
    """Watches a record for a stretch of nothing but failures."""

    def __init__(self) -> None:
        self._successes = 0
        self._failures_then = 0
        self._since_s = 0.0

    def check(self, record: Record, now_s: float) -> str | None:
        """Why the load should end: many failures in a row, for a while, without one success; else None."""
        current = record.current
        if current is None:
            self._since_s = now_s
            return None
        successes = record.total.counters["completed"] + record.client.counters["output_tokens"]
        failures = record.total.counters["failed"] + record.total.counters["warmup_failed"]
        if successes != self._successes:
            self._successes, self._failures_then, self._since_s = successes, failures, now_s
            return None
        row = failures - self._failures_then
        wanted = min(_MOST_FAILURES, max(_FEWEST_FAILURES, 2 * (current.started.concurrency or 0)))
        if row < wanted or now_s - self._since_s < _QUIET_S:
            return None
        return f"nothing but failures: the last {row} requests failed, {_most_frequent(record)}"


def _most_frequent(record: Record) -> str:
    errors, messages = record.total.errors, record.total.messages
    if not errors:
        return "; ".join(text for texts in messages.values() for text in texts[:1])
    kind = max(errors, key=lambda name: errors[name])
    return ": ".join([kind, *messages.get(kind, [])[:1]])
