"""What was truly served: the reference that a client's own numbers are held against.

Stamps are CLOCK_REALTIME: a request counts from the kernel's receive stamp of the read that completed it, an event from
right before its `send` (or, when its socket is full, from the moment it was ready to go). Latencies are those of
completed streams only; the rest is counted. What happened within a window, or under a load, is told by `history`.

Memory is bounded: percentiles are exact up to `EXACT` samples; beyond that every second sample is kept, then every
fourth, and so on, spread evenly over time, while count, mean and max stay exact. A report sorts what is kept (a
tenth of a second when full), so ask for it when the load is over.
"""

import time
from array import array
from collections.abc import Iterable, Sequence
from operator import sub
from typing import Any

import numpy as np

from loadgen.simulator.history import History, Served, summary_ms

EXACT = 1 << 18


class Samples:
    """Nanoseconds of one quantity."""

    def __init__(self, exact: int = EXACT) -> None:
        self.count = self.total = self.max = 0
        self._kept = array("q")
        self._exact = exact
        self._stride = 1

    def add(self, values: Sequence[int]) -> None:
        if not values:
            return
        first = -self.count % self._stride  # the next that is due to be kept
        self.count += len(values)
        self.total += sum(values)
        self.max = max(self.max, *values)
        self._kept.extend(values[first :: self._stride])
        while len(self._kept) > self._exact:
            self._kept = self._kept[::2]
            self._stride *= 2

    def summary(self) -> dict[str, float | None]:
        """Count, mean, max and nearest-rank percentiles, in milliseconds; None where there is nothing."""
        kept = summary_ms(np.array(self._kept, dtype=np.int64))
        if not self.count:
            return kept
        return kept | {"count": self.count, "mean": self.total / self.count / 1e6, "max": self.max / 1e6}


class Truth:
    """The account of everything served since the start or the last reset."""

    def __init__(self) -> None:
        self.open = 0  # requests received and not answered completely; a reset leaves it alone
        self.history = History()
        self.reset()

    def reset(self) -> None:
        """Begin a new account; requests in flight are only counted where they end."""
        self.received = self.completed = self.aborted = self.failed = self.rejected = 0
        self.kernel_stamps = self.user_stamps = 0
        self.input_tokens = self.output_tokens = 0
        self.peak_concurrency = self.open
        self.faults: dict[str, int] = {}
        self.first_received_ns = self.last_write_ns = 0
        self.ttft, self.tpot, self.itl, self.chunk_gap, self.e2e = (Samples() for _ in range(5))
        self._cpu_s = time.process_time()
        self.history.forget()

    def arrived(self, received_ns: int, *, kernel_stamp: bool) -> Served:
        """A valid request starts; returns what is to be known of its answer."""
        self.received += 1
        self.open += 1
        self.peak_concurrency = max(self.peak_concurrency, self.open)
        self.first_received_ns = self.first_received_ns or received_ns
        if kernel_stamp:
            self.kernel_stamps += 1
        else:
            self.user_stamps += 1
        return self.history.arrived(received_ns)

    def step(self) -> None:
        """The tokens of a step are about to be written."""
        self.history.step(time.time_ns(), self.open)

    def ended(self, served: Served, *, completed: bool) -> None:
        """An answer is over, one way or another."""
        self.open -= 1
        self.history.ended(served, completed=completed)

    def struck(self, kinds: Iterable[str]) -> None:
        """A request was chosen for these faults."""
        for kind in kinds:
            self.faults[kind] = self.faults.get(kind, 0) + 1

    def written(self, received_ns: int, at_ns: int) -> None:
        """An answer's last output was written."""
        self.e2e.add((at_ns - received_ns,))
        self.last_write_ns = max(self.last_write_ns, at_ns)

    def streamed(self, served: Served) -> None:
        stamps, tokens = served.stamps, served.tokens
        if not stamps:
            return
        first, last = stamps[0], stamps[-1]
        self.ttft.add((first - served.received_ns,))
        self.written(served.received_ns, last)
        gaps = list(map(sub, stamps[1:], stamps))
        self.chunk_gap.add(gaps)
        after_first = len(gaps)
        if tokens is not None:
            after_first = sum(tokens[1:])
            gaps = [gap // count for gap, count in zip(gaps, tokens[1:], strict=True)]
        self.itl.add(gaps)
        if after_first:
            self.tpot.add(((last - first) // after_first,))

    def report(self, *, late_steps: int, steps: int) -> dict[str, Any]:
        """The account as one JSON object."""
        span_ns = self.last_write_ns - self.first_received_ns if self.last_write_ns else 0
        names = ("received", "completed", "aborted", "failed", "rejected", "open")
        latencies = ("ttft", "tpot", "itl", "chunk_gap", "e2e")
        return {
            "requests": {name: getattr(self, name) for name in names},
            "tokens": {"input": self.input_tokens, "output": self.output_tokens},
            "latency_ms": {name: getattr(self, name).summary() for name in latencies},
            "peak_concurrency": self.peak_concurrency,
            "span_s": span_ns / 1e9,
            "steps": steps,
            "late_steps": late_steps,
            "cpu_s": time.process_time() - self._cpu_s,
            "timestamps": {"kernel": self.kernel_stamps, "user": self.user_stamps},
            "faults": self.faults,
            "by_streams": self.history.window()["by_streams"],
        }
