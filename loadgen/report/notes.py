"""What a reader must know of a stage's numbers, in words: what became of its requests, and what the numbers are of.

Every table takes its words from here, so that the terminal, a pasted table and the page say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from loadgen.format import counted, significant
from loadgen.metrics.deltas import OUTCOMES, Summary
from loadgen.metrics.hardware_result import ComputeResult
from loadgen.metrics.result import FirstWave, Requests, Result, StageResult
from loadgen.metrics.snapshot import StageView
from loadgen.report.output import output_words

LATENCY_TITLES = {"ttft": "TTFT", "ttft_from_intended": "TTFT from due", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
_LEAST_TAIL = 0.01  # of the window: a shorter tail is not worth a word


class Note(NamedTuple):
    """One thing to know."""

    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


class RequestCount(msgspec.Struct, frozen=True):
    """Requests of a stage that had one outcome."""

    name: str
    count: int
    more: str = ""

    @property
    def words(self) -> str:
        """The count, and what is to be said of it."""
        return f"{self.count} ({self.more})" if self.more else str(self.count)


def has_numbers(stage: StageResult) -> bool:
    """Whether anything was timed in a stage: short ones know gaps and first tokens before a stream is complete."""
    return any(summary.count or summary.censored for summary in stage.latency_ms.values())


def latencies(stage: StageResult) -> dict[str, Summary]:
    """The latencies of a stage by name; none of one whose load moves, as they are of no single load."""
    return {} if stage.curve else stage.latency_ms


def latency_titles(stages: Iterable[StageResult]) -> dict[str, str]:
    """The latencies that a table of these stages shows: TTFT from when each request was due only in open loop."""
    open_loop = any(stage.target.rate is not None for stage in stages)
    return {name: title for name, title in LATENCY_TITLES.items() if open_loop or name != "ttft_from_intended"}


def took_part(stage: StageResult) -> bool:
    """Whether there is anything to say of a stage."""
    requests = stage.requests
    return bool(requests.sent or requests.warmup or requests.unsent) or has_numbers(stage)


def request_counts(requests: Requests) -> list[RequestCount]:
    """What became of the requests; what did not occur is left out, but the completed ones come first always."""
    sent, over, unsent = requests.sent, requests.carried_over or 0, requests.unsent or 0
    lost = f"{requests.lost} lost with their worker" if requests.lost else ""
    share = f", {over / sent:.0%} of the sent" if sent else ""
    failed = f", {requests.carried_failed} of them failed" if requests.carried_failed else ""
    waited_s = requests.unsent_longest_wait_s
    found = [
        RequestCount("Scheduled requests", (requests.scheduled or 0) if unsent else 0),
        RequestCount("Sent requests", sent if sent != requests.completed else 0),
        RequestCount("Failed requests", requests.failed),
        RequestCount("Cancelled requests", requests.cancelled, "as the profile asks"),
        RequestCount("Unfinished requests", requests.unfinished, lost),
        RequestCount("Carried over", over, f"open at the end{share}"),
        RequestCount("Carried in", requests.carried_in or 0, f"open at the beginning{failed}"),
        RequestCount("Never sent", unsent, "" if waited_s is None else f"longest wait {waited_s:.1f} s"),
    ]
    return [RequestCount("Successful requests", requests.completed), *(one for one in found if one.count)]


def first_messages(stage: StageResult) -> list[str]:
    """The first message of each kind of failure, a line each."""
    return [f"  {kind}: {text}" for kind, texts in stage.requests.messages.items() for text in texts[:1]]


def account_words(stage: StageView) -> str:
    """All requests in a line that adds up: 92 scheduled, 80 never sent; 12 sent = 9 completed + 3 open."""
    requests = stage.requests
    parts = {name.replace("_", " "): getattr(requests, name) for name in OUTCOMES} | {"open": stage.open}
    shown = [f"{count:,} {name}" for name, count in parts.items() if count]
    sent = f"{requests.sent:,} sent = {' + '.join(shown)}" if shown else f"{requests.sent:,} sent"
    scheduled = f"{requests.scheduled:,} scheduled, {requests.unsent:,} never sent; " if requests.unsent else ""
    return f"{scheduled}{sent}" + (f"; {requests.carried_in:,} carried in" if requests.carried_in else "")


def failed_words(errors: Mapping[str, int]) -> str:
    """The kinds of failures: http_5xx 3, reset 1."""
    return ", ".join(f"{kind} {count:,}" for kind, count in errors.items())


def published_nowhere(result: Result) -> str:
    """That what was published for single loads met no stage; empty where it did, or where there is nothing."""
    published, found = result.profile.get("reference"), result.reference
    if found is None or found.comparisons or not (isinstance(published, dict) and published.get("points")):
        return ""
    return "no stage of this run has the load of a published figure"


def stage_notes(stage: StageResult) -> list[Note]:
    """What its figures are of, and what they are not; verdicts and limits are told elsewhere."""
    tail_is_verdict = any(verdict.id == "tail" for verdict in stage.verdicts)
    found = notes_of(
        latencies(stage),
        moves=bool(stage.curve),
        inconclusive=stage.inconclusive,
        e2e_inconclusive=stage.e2e_inconclusive,
        tpot_parts=stage.tpot_parts,
        first_wave=stage.first_wave,
        tail_share=None if tail_is_verdict else stage.tail_share,
        compute=stage.compute,
    )
    return [*found, *_energy(stage), *_cost(stage), *_output(stage)]


def _output(stage: StageResult) -> Iterator[Note]:
    words = output_words(stage.canary, stage.answers)
    if words is not None:
        yield Note("Output", words)


def foreign_notes(result: Result) -> list[Note]:
    """By whom a result was measured that is not vramp's, and how; empty for vramp's own."""
    if result.measured_by is None:
        return []
    who = Note("Measured by", f"{result.measured_by}, which does not say whether its client kept up")
    how = [Note(LATENCY_TITLES.get(name, name.capitalize()), text) for name, text in result.definitions.items()]
    return [who, *how]


def _cost(stage: StageResult) -> Iterator[Note]:
    if stage.cost is not None and stage.cost.why:
        yield Note("Cost", f"unknown: {stage.cost.why}")


def _energy(stage: StageResult) -> Iterator[Note]:
    """That the energy may be others' too."""
    by = stage.energy.devices_by if stage.energy is not None else None
    if by in ("hbm", "all"):
        whose = "the GPUs whose memory is in use" if by == "hbm" else "all GPUs of the box"
        yield Note("Energy", f"of {whose}: nothing tells the server's from others'")


def notes_of(
    latency_ms: Mapping[str, Summary],
    *,
    moves: bool,
    inconclusive: str | None,
    e2e_inconclusive: str | None,
    tpot_parts: int,
    first_wave: FirstWave | None,
    tail_share: float | None,
    capped: str | None = None,
    compute: ComputeResult | None = None,
) -> Iterator[Note]:
    """The same of a stage that has no result yet."""
    if moves:
        yield Note("Load", "it moves: see the figures by the streams held, E2E is of no load")
    if inconclusive is not None:
        yield Note("Inconclusive", inconclusive)
    if e2e_inconclusive is not None:
        yield Note("E2E", e2e_inconclusive.removeprefix("E2E: "))
    yield from _waiting(latency_ms)
    tpot = latency_ms.get("tpot")
    if tpot_parts and tpot is not None:
        yield Note("TPOT", f"{tpot_parts:,} of {tpot.count:,} are parts of streams")
    if first_wave is not None:
        yield _first_wave(first_wave)
    if tail_share is not None and tail_share >= _LEAST_TAIL:
        yield Note("Tail", f"for {tail_share:.0%} of its time fewer streams than asked for, as its requests ran out")
    if capped is not None:
        yield Note("Cap", capped)
    if compute is not None:
        yield Note("MFU", mfu_words(compute))


def mfu_unknown(stage: StageResult) -> str:
    """Why there is no share of the peak; empty where there is one, or where nobody says."""
    if stage.compute is not None:
        return stage.compute.why
    return stage.engine.lacks.get("tflops_per_gpu", "") if stage.engine is not None else ""


def mfu_words(compute: ComputeResult) -> str:
    """What was computed and the share of the peak, or why there is none."""
    told = f"{significant(compute.tflops_per_gpu)} TFLOP/s a GPU by the engine's own estimate"
    if compute.mfu_percent is None:
        return f"unknown: {told}, but {compute.why}"
    peak = f"{significant(compute.peak_tflops)} in {compute.precision}, dense"
    return f"{significant(compute.mfu_percent)} %: {told}, of {peak}"


def _waiting(latency_ms: Mapping[str, Summary]) -> Iterator[Note]:
    """Where streams still waited when the stage ended, so that figures are only lower bounds."""
    ttft, intended = (latency_ms.get(name, Summary(count=0)) for name in ("ttft", "ttft_from_intended"))
    when = "first token when the stage ended"
    if ttft.censored:
        marked = "; >= is a lower bound" if ttft.lower_bounds else ""
        yield Note("TTFT", f"{counted(ttft.censored, 'stream')} still waited for the {when}{marked}")
    if intended.censored > ttft.censored:
        yield Note("TTFT from intended", f"not known of {counted(intended.censored, 'arrival')}, without a {when}")


def _first_wave(wave: FirstWave) -> Note:
    if wave.counted:
        return Note("First wave", "counted, as `vllm bench` and what is published with it do")
    streams, ttft = f"{counted(wave.streams, 'stream')} that began at once, in no other figure", wave.ttft_ms
    if ttft is None or not ttft.count:
        return Note("First wave", streams)
    return Note("First wave", f"{streams}: TTFT p50 {significant(ttft.p50)}, p99 {significant(ttft.p99)} ms")
