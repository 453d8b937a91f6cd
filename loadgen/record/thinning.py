"""Shrinks the older lines of a journal, without changing any stage's figures, events or failures.

Latencies are most of a journal. They add up, so those of up to `SPAN_S` are stored once, with the last tick of that
span. Everything else stays as it was, and a stage begins and ends where it did. What is lost is when, within `SPAN_S`,
a latency occurred: over thinned lines, `series` shows TTFT and TPOT only where they are stored, and the effective
sample size is that of blocks whose borders are up to `SPAN_S` off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from loadgen.metrics.stage import ClientMetrics, StageMetrics
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.hosts import HostsJoined, HostTick
from loadgen.schema.journal import (
    EngineMeasured,
    EnginesQuiet,
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
    span = _Span()
    waiting: list[Line] = []  # the latest tick, and the lines after it
    for line in lines:
        if not isinstance(line, Ticked | _ENDS):
            waiting.append(line)
            continue
        goes_on = isinstance(line, Ticked) and not span.is_over(line.t_s)
        yield from (_light(each) for each in waiting) if goes_on else span.end(waiting)
        waiting = [line]
        if isinstance(line, Ticked):
            span.add(line)
    yield from span.end(waiting)


class _Sum:
    """Latencies of stages and of a client."""

    def __init__(self) -> None:
        self._stages: dict[int, StageMetrics] = {}
        self._client = ClientMetrics()

    def add(self, stages: _Stages, client: ClientDelta | None = None) -> None:
        for index, delta in stages.items():
            self._stages.setdefault(index, StageMetrics()).add(StageDelta(latency=delta.latency))
        if client is not None:
            self._client.add(ClientDelta(read_lag=client.read_lag, send_lag=client.send_lag))

    def stages(self, last: _Stages) -> dict[int, StageDelta]:
        """The stages of a tick, with all the latencies."""
        reported = {index: last.get(index, StageDelta()) for index in (*last, *self._stages)}
        latencies = {index: stage.encode().latency for index, stage in self._stages.items()}
        return {
            index: msgspec.structs.replace(delta, latency=latencies.get(index, {})) for index, delta in reported.items()
        }

    def client(self, last: ClientDelta) -> ClientDelta:
        lags = self._client.encode()
        return msgspec.structs.replace(last, read_lag=lags.read_lag, send_lag=lags.send_lag)


class _Span:
    """The ticks whose latencies are stored together."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._began_s = 0.0
        self._whole: _Sum | None = None
        self._instances: list[_Sum] = []
        self._hosts: list[_Sum] = []

    def add(self, tick: Ticked) -> None:
        if self._whole is None:
            self._whole, self._began_s = _Sum(), tick.t_s
        self._whole.add(tick.stages, tick.client)
        for number, stages in enumerate(tick.instances):
            _at(self._instances, number).add(stages)
        for number, host in enumerate(tick.hosts):
            _at(self._hosts, number).add(host.stages, host.client)

    def is_over(self, t_s: float) -> bool:
        return self._whole is not None and t_s - self._began_s >= SPAN_S

    def end(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Yield the lines, with the span's latencies in their tick, and begin a new span."""
        for line in lines:
            yield self._reported(line) if isinstance(line, Ticked) else line

    def _reported(self, last: Ticked) -> Ticked:
        assert self._whole is not None
        instances = (*last.instances, *({} for _ in self._instances[len(last.instances) :]))
        hosts = (*last.hosts, *(HostTick() for _ in self._hosts[len(last.hosts) :]))
        reported = msgspec.structs.replace(
            last,
            stages=self._whole.stages(last.stages),
            client=self._whole.client(last.client),
            instances=tuple(each.stages(stages) for each, stages in zip(self._instances, instances, strict=True)),
            hosts=tuple(
                msgspec.structs.replace(host, stages=each.stages(host.stages), client=each.client(host.client))
                for each, host in zip(self._hosts, hosts, strict=True)
            ),
        )
        self._clear()
        return reported


def _at(sums: list[_Sum], number: int) -> _Sum:
    while len(sums) <= number:
        sums.append(_Sum())
    return sums[number]


def _light(line: Line) -> Line:
    """A tick without its latencies; any other line as it is."""
    if not isinstance(line, Ticked):
        return line
    sessions = line.sessions
    return msgspec.structs.replace(
        line,
        sessions=None if sessions is None else msgspec.structs.replace(sessions, rows=[]),
        stages=_without(line.stages),
        client=_quiet(line.client),
        instances=tuple(_without(stages) for stages in line.instances),
        hosts=tuple(
            msgspec.structs.replace(host, stages=_without(host.stages), client=_quiet(host.client))
            for host in line.hosts
        ),
    )


def _without(stages: _Stages) -> dict[int, StageDelta]:
    return {index: msgspec.structs.replace(delta, latency={}) for index, delta in stages.items()}


def _quiet(client: ClientDelta) -> ClientDelta:
    return msgspec.structs.replace(client, read_lag=None, send_lag=None)
