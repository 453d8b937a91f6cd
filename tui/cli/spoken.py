"""`vramp run --plain-events`: reports what happens in sentences for a screen reader, one per line.

A line reports a change and is never repeated or redrawn; units are words, and unknown numbers are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.format import counted, significant

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.schema.deltas import Summary
    from loadgen.schema.result import Result, StageResult
    from loadgen.schema.snapshot import Snapshot

_GONE_S = 5.0  # a verdict that comes and goes with every GPU sample is reported once
_FAILURES_EVERY_S = 10.0
_PHASES = {
    "checking": "Checking this machine",
    "blocked": "The start would fail",
    "starting": "The server is starting",
    "restarting": "The server is being restarted",
    "probing": "The server is up, sending a first request",
    "paused": "The load is paused",
    "draining": "The last streams are finishing",
    "holding": "The plan is done, the server is still up",
    "failed": "There is no server",
    "stopping": "Stopping",
    "done": "The run is over",
}
"""`running` is missing, because its stages are reported."""
_LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "e2e": "end-to-end latency",
}


class Spoken:
    """Reports what is new in each snapshot."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._phase = self._server = ""
        self._events = self._findings = self._begun = self._ended = 0
        self._milestones: set[str] = set()
        self._verdicts: dict[tuple[str, str], float] = {}  # by id and subject, when each was last seen
        self._failed: dict[str, int] = {}  # by kind, as many as were reported
        self._next_failures_s = 0.0

    def update(self, snapshot: Snapshot) -> None:
        self._report_server(snapshot)
        for event in snapshot.events[self._events :]:
            self._report(f"{event.kind}: {event.text}")
        self._events = len(snapshot.events)
        for stage in snapshot.stages[self._ended :]:
            if stage.number > self._begun:
                self._begun = stage.number
                planned = max(stage.number, snapshot.load.stages_planned)
                self._report(f"stage {stage.number} of {planned} begins: {_target(stage)}")
            if not stage.running:
                self._ended += 1
                self._report(stage_words(stage))
        self._report_verdicts(snapshot)
        self._report_failures(snapshot)
        if snapshot.phase != self._phase:
            self._phase = snapshot.phase
            if snapshot.phase in _PHASES:
                self._report(_PHASES[snapshot.phase])

    def _report(self, words: str) -> None:
        """Print a sentence on one line."""
        words = " ".join(words.replace("->", "to").split())
        self._print_line(f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}")

    def _report_server(self, snapshot: Snapshot) -> None:
        for finding in snapshot.findings[self._findings :]:
            if finding.severity != "info":
                self._report(f"preflight {finding.severity}: {finding.seen}. {finding.why}. {finding.fix or ''}")
        self._findings = len(snapshot.findings)
        server = snapshot.server
        for milestone in server.milestones:
            if milestone.state == "done" and milestone.id not in self._milestones:
                self._milestones.add(milestone.id)
                self._report(f"server: {milestone.label} {milestone.detail} is done")
        if server.state != self._server:
            self._server = server.state
            model = f", model {server.model}" if server.model and server.state == "ready" else ""
            self._report(f"server {server.engine} is {server.state}{model}")
            if server.diagnosis is not None:
                self._report(f"{server.diagnosis.title}. {server.diagnosis.remedy}")

    def _report_verdicts(self, snapshot: Snapshot) -> None:
        """Report a verdict once, with its figures at that time, and again when it no longer holds."""
        for verdict in snapshot.verdicts:
            name = (verdict.id, verdict.subject)
            if name not in self._verdicts:
                self._report(f"{'attention' if verdict.bad else 'verdict'}, {verdict.subject}: {verdict.text}")
            self._verdicts[name] = snapshot.t_s
        over = {f"stage {stage.number}" for stage in snapshot.stages if not stage.running}
        for (id, subject), seen_s in list(self._verdicts.items()):
            if snapshot.t_s - seen_s > _GONE_S:
                del self._verdicts[id, subject]
                if subject not in over:
                    self._report(f"no longer true, {subject}: {id}")

    def _report_failures(self, snapshot: Snapshot) -> None:
        if snapshot.t_s < self._next_failures_s and snapshot.phase != "done":
            return
        for kind, count in snapshot.errors.items():
            if count > self._failed.get(kind, 0):
                self._failed[kind] = count
                self._next_failures_s = snapshot.t_s + _FAILURES_EVERY_S
                message = next(iter(snapshot.messages(kind)), "")
                self._report(f"{counted(count, 'request')} failed so far with {kind}: {message}")


def _target(stage: StageResult) -> str:
    tokens = f"{stage.isl} input and {stage.osl} output tokens a request"
    requested = stage.target
    if requested.moves is not None:
        what = "streams held open" if requested.rate is None else "requests per second"
        first, last = requested.moves
        return f"from {first:g} to {last:g} {what}, {tokens}"
    if requested.rate is not None:
        return f"{significant(requested.rate)} requests per second, {tokens}"
    if stage.sessions is not None and requested.concurrency:
        return f"{counted(requested.concurrency, 'session')} live, {tokens} on average"
    return f"{counted(requested.concurrency, 'stream')} held open, {tokens}" if requested.concurrency else "no load"


def stage_words(stage: StageResult) -> str:
    """Return how a stage ended, its headline figures, and whether it met its limits."""
    from loadgen.report.notes import latencies_so_far, met_so_far  # not for `vramp --help`

    requests, why = stage.requests, f", {stage.stop_reason}" if stage.stop_reason else ""
    reported = [
        f"stage {stage.number} ends after {counted(round(stage.duration_s), 'second')}{why}: "
        f"{counted(requests.completed, 'request')} completed, {requests.failed} failed"
    ]
    if stage.throughput.output_tokens_per_s is not None:
        reported.append(f"{significant(stage.throughput.output_tokens_per_s)} output tokens per second")
    for name, words in _LATENCIES.items():
        summary = latencies_so_far(stage).get(name)
        if summary is not None and summary.p50 is not None:
            reported.append(
                f"{words} median {_bound(summary, 'p50')}, 99th percentile {_bound(summary, 'p99')} milliseconds"
            )
    met = met_so_far(stage)
    if met is not None:
        reported.append("its limits are met" if met else "its limits are missed")
    return "; ".join(reported)


def _bound(summary: Summary, name: str) -> str:
    """Return a statistic, as a lower bound if streams that are still open could raise it."""
    at_least = "at least " if name in summary.lower_bounds else ""
    return f"{at_least}{significant(getattr(summary, name))}"


def result_words(result: Result) -> str:
    """Return the outcome of a run in a sentence, in place of its table."""
    failed = sum(stage.requests.failed for stage in result.stages)
    counts = f"{counted(len(result.stages), 'stage')}, {counted(failed, 'failed request')}"
    return f"The run is {result.state}: {counts}. vramp report prints its table."
