"""Latencies and loads of what was served, computed from its stamps for a report.

A separate module, which only a report imports: numpy would take a third of the simulator's start-up time.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PART_TOKENS = 8  # a part of a stream with fewer tokens has no time per output token

_Int64 = NDArray[np.int64]


class ServedEvents:
    """The events of some streams, concatenated in flat arrays."""

    def __init__(
        self,
        *,
        received_ns: Sequence[int],
        completed: Sequence[bool],
        stamps: "Sequence[array[int]]",
        tokens: Sequence[list[int] | None],
        since_ns: int,
        until_ns: int,
    ) -> None:
        """One value of each for each stream; `tokens` of its events, None if each has one."""
        lengths = np.array([len(each) for each in stamps], dtype=np.int64)
        self._stream = np.repeat(np.arange(len(stamps)), lengths)
        self._received = np.array(received_ns, dtype=np.int64)
        self._completed = np.array(completed, dtype=bool)
        self._ends = np.cumsum(lengths)
        self._since_ns = since_ns
        self.stamps = _flat(stamps)
        self.tokens = _flat(counts or [1] * len(each) for counts, each in zip(tokens, stamps, strict=True))
        self.inside = (self.stamps >= since_ns) & (self.stamps <= until_ns)
        first = np.diff(self._stream, prepend=-1) != 0
        (self._firsts,) = np.nonzero(first & self.inside & (self._received[self._stream] >= since_ns))
        (self._later,) = np.nonzero(~first & self.inside & np.append(False, self.inside[:-1]))

    def latency_ms(self) -> dict[str, dict[str, float | None]]:
        """Latencies over all streams; time per output token is that of each stream's part within the window."""
        (inside,) = np.nonzero(self.inside)
        (starts,) = np.nonzero(np.diff(self._stream[inside], prepend=-1))
        stream = self._stream[inside][starts]
        first, last = inside[starts], inside[np.append(starts[1:], len(inside)) - 1] if len(inside) else inside
        whole = self._completed[stream] & (self._received[stream] >= self._since_ns) & (last == self._ends[stream] - 1)
        written = np.cumsum(self.tokens)
        after_first = written[last] - written[first]
        long = (whole | (after_first + self.tokens[first] >= PART_TOKENS)) & (after_first > 0)
        tpot = (self.stamps[last] - self.stamps[first])[long] // after_first[long]
        e2e = (self.stamps[last] - self._received[stream])[whole]
        return {**self._of(self._firsts, self._later), "tpot": summary_ms(tpot), "e2e": summary_ms(e2e)}

    def span_s(self) -> float:
        """The time from the first request that arrived inside the window to the last event."""
        came, written = self._received[self._received >= self._since_ns], self.stamps[self.inside]
        return float(written.max() - came.min()) / 1e9 if len(came) and len(written) else 0.0

    def by_load(self, steps: "array[int]", loads: "array[int]") -> dict[str, Any]:
        """Tokens, first tokens and gaps by the number of streams open when they were written."""
        if not len(steps):
            return {}
        # What was written before the first known step is attributed to that; `whole` reports it.
        load = np.array(loads)[np.maximum(np.searchsorted(np.array(steps), self.stamps, side="right") - 1, 0)]
        (inside,) = np.nonzero(self.inside)
        all_of, firsts, later = (_groups(load, which) for which in (inside, self._firsts, self._later))
        none = inside[:0]
        return {
            str(streams): {
                "tokens": int(self.tokens[events].sum()),
                **self._of(firsts.get(streams, none), later.get(streams, none)),
            }
            for streams, events in all_of.items()
        }

    def _of(self, firsts: _Int64, later: _Int64) -> dict[str, dict[str, float | None]]:
        gaps = self.stamps[later] - self.stamps[later - 1]
        ttft = self.stamps[firsts] - self._received[self._stream[firsts]]
        itl = gaps // self.tokens[later]
        return {"ttft": summary_ms(ttft), "itl": summary_ms(itl), "chunk_gap": summary_ms(gaps)}


def summary_ms(values_ns: "_Int64 | array[int]") -> dict[str, float | None]:
    """Count, mean, max and nearest-rank percentiles, in milliseconds; None where there is nothing."""
    if not len(values_ns):
        return {"count": 0, **dict.fromkeys(("mean", "p50", "p90", "p99", "max"))}
    ordered = np.sort(np.asarray(values_ns, dtype=np.int64))
    ranks = {f"p{p}": float(ordered[-(-len(ordered) * p // 100) - 1]) / 1e6 for p in (50, 90, 99)}
    return {"count": len(ordered), "mean": float(ordered.mean()) / 1e6, **ranks, "max": float(ordered[-1]) / 1e6}


def _flat(parts: Any) -> _Int64:  # noqa: ANN401 - iterables of iterables of int
    return np.concatenate([np.zeros(0, dtype=np.int64), *(np.array(part, dtype=np.int64) for part in parts)])


def _groups(load: _Int64, events: _Int64) -> dict[int, _Int64]:
    ordered = events[np.argsort(load[events], kind="stable")]
    loads, starts = np.unique(load[ordered], return_index=True)
    return dict(zip(loads.tolist(), np.split(ordered, starts[1:]), strict=False))
