"""Shrinks the older lines of a journal, without changing any stage's figures, events or failures.

Latencies are most of a journal. They add up, so those of up to `SPAN_S` are stored once, with the last tick of that
span. Everything else stays as it was, and a stage begins and ends where it did. What is lost is when, within `SPAN_S`,
a latency occurred: over thinned lines, `series` shows TTFT and TPOT only where they are stored, and the effective
sample size is that of blocks whose borders are up to `SPAN_S` off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.journal import (
    EngineMeasured,
    EnginesQuiet,
    HostsJoined,
    HostTick,
    Line,
    RunFinished,
    RunStarted,
    StageEnded,
    StageSettled,
    StageStarted,
    Ticked,
)

SPAN_S = 10.0

_ENDS = (
    RunStarted | HostsJoined | StageStarted | StageSettled | StageEnded | EngineMeasured | EnginesQuiet | RunFinished
)
"""Lines before which all latencies must have been written."""
_Stages = Mapping[int, StageDelta]


def thinned(lines: Iterable[Line]) -> Iterator[Line]:
    """The same lines in the same order, with thinned ticks; a tick is yielded once the next one has been read."""
    span: list[Ticked] = []  # ticks whose latencies are stored together, with the last of them
    waiting: list[Line] = []  # the latest tick, and the lines after it
    for line in lines:
        if not isinstance(line, Ticked | _ENDS):
            waiting.append(line)
        elif isinstance(line, Ticked) and (not span or line.t_s - span[0].t_s < SPAN_S):
            yield from map(_light, waiting)
            span.append(line)
            waiting = [line]
        else:
            yield from _ended(span, waiting)
            span = [line] if isinstance(line, Ticked) else []
            waiting = [line]
    yield from _ended(span, waiting)


def _ended(span: Sequence[Ticked], waiting: Iterable[Line]) -> Iterator[Line]:
    for line in waiting:
        yield _reported(span) if isinstance(line, Ticked) else line


def _reported(span: Sequence[Ticked]) -> Ticked:
    """The last tick of a span, with the latencies of all."""
    hosts = zip_longest(*(tick.hosts for tick in span), fillvalue=HostTick())
    return replace(
        span[-1],
        stages=_stages([tick.stages for tick in span]),
        client=_client([tick.client for tick in span]),
        instances=tuple(map(_stages, zip_longest(*(tick.instances for tick in span), fillvalue={}))),
        hosts=tuple(
            replace(
                ticks[-1],
                stages=_stages([tick.stages for tick in ticks]),
                client=_client([tick.client for tick in ticks]),
            )
            for ticks in hosts
        ),
    )


def _stages(parts: Sequence[_Stages]) -> dict[int, StageDelta]:
    """The last of these, with the latencies of all."""
    sums: dict[int, StageMetrics] = {}
    for stages in parts:
        for index, delta in stages.items():
            sums.setdefault(index, StageMetrics()).add(StageDelta(latency=delta.latency))
    last = parts[-1]
    return {
        index: replace(last.get(index, StageDelta()), latency=sums[index].encode().latency) for index in (*last, *sums)
    }


def _client(parts: Sequence[ClientDelta]) -> ClientDelta:
    """The last of these, with the lags of all."""
    total = ClientMetrics()
    for part in parts:
        total.add(ClientDelta(read_lag=part.read_lag, send_lag=part.send_lag))
    lags = total.encode()
    return replace(parts[-1], read_lag=lags.read_lag, send_lag=lags.send_lag)


def _light(line: Line) -> Line:
    """A tick without its latencies; any other line as it is."""
    if not isinstance(line, Ticked):
        return line
    sessions = line.sessions
    return replace(
        line,
        sessions=None if sessions is None else replace(sessions, rows=[]),
        stages=_without(line.stages),
        client=_quiet(line.client),
        instances=tuple(_without(stages) for stages in line.instances),
        hosts=tuple(replace(host, stages=_without(host.stages), client=_quiet(host.client)) for host in line.hosts),
    )


def _without(stages: _Stages) -> dict[int, StageDelta]:
    return {index: replace(delta, latency={}) for index, delta in stages.items()}


def _quiet(client: ClientDelta) -> ClientDelta:
    return replace(client, read_lag=None, send_lag=None)
