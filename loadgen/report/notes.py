"""Notes on a stage's figures for the reader: outcomes of requests, and what the figures cover.

Every table takes its words from here, so that terminal, Markdown and HTML say the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from loadgen.format import counted, percent, significant
from loadgen.report.output import output_words
from loadgen.schema.comparison import Condition
from loadgen.schema.deltas import MAIN_LATENCIES, OUTCOMES, Summary
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.result import FirstWave, Requests, Result, StageResult, is_known, met_limits

LATENCY_TITLES = {"ttft": "TTFT", "ttft_from_intended": "TTFT from due", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
LATENCY_TITLES |= {
    "answer_ttft": "TTFT of the answer",
    "ttft_first_turn": "TTFT of first turns",
    "ttft_later_turns": "TTFT of later turns",
    "e2e_per_token": "E2E per token",
    "session_time": "whole sessions",
}
_MIN_TAIL = 0.01  # of the window: a shorter tail is not mentioned


class Note(NamedTuple):
    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


def has_numbers(stage: StageResult) -> bool:
    """Whether anything was timed in a stage, even if it was too short for a stream to complete."""
    return any(summary.count or summary.censored for summary in stage.latency_ms.values())


def latencies(stage: StageResult) -> dict[str, Summary]:
    """A stage's latencies by name; none if its load moves, as they belong to no single load."""
    return {} if stage.target.moves is not None else stage.latency_ms


def latencies_so_far(stage: StageResult) -> dict[str, Summary]:
    """The latencies shown during a run, also of a moving load; its E2E belongs to no single load."""
    shown = (name for name in MAIN_LATENCIES if name != "e2e" or stage.target.moves is None)
    return {name: stage.latency_ms[name] for name in shown if name in stage.latency_ms}


def met_so_far(stage: StageResult) -> bool | None:
    """Whether a stage meets its limits; None without limits, and before anything is known that they apply to."""
    unsure = stage.running or not (has_numbers(stage) or stage.requests.failed)
    return None if unsure and not is_known(stage) else met_limits(stage)


def latency_titles(stages: Sequence[StageResult]) -> dict[str, str]:
    """The latencies that a table of these stages shows; TTFT from intended only in open loop."""
    shown = {name for stage in stages for name in stage.latency_ms} | set(MAIN_LATENCIES)
    if not any(stage.target.rate is not None for stage in stages):
        shown.discard("ttft_from_intended")
    return {name: title for name, title in LATENCY_TITLES.items() if name in shown}


def took_part(stage: StageResult) -> bool:
    """Whether there is anything to report about a stage."""
    requests = stage.requests
    return bool(requests.sent or requests.warmup or requests.unsent) or has_numbers(stage)


def request_counts(requests: Requests, shown: Collection[str] = ()) -> dict[str, str]:
    """Each outcome of requests with its count and remarks; the completed ones first, others if they are in `shown`, or
    occurred."""
    sent, over, unsent = requests.sent, requests.carried_over, requests.unsent
    lost = f"{requests.lost} lost with their worker" if requests.lost else ""
    share = f", {percent(over / sent)} of the sent" if over and sent else ""
    failed = f", {requests.carried_failed} of them failed" if requests.carried_failed else ""
    waited_s = requests.unsent_longest_wait_s
    found = (
        ("Scheduled requests", requests.scheduled, unsent, ""),
        ("Sent requests", sent, sent != requests.completed, ""),
        ("Failed requests", requests.failed, requests.failed, ""),
        ("Retried requests", requests.retried, requests.retried, "sent again on a new connection"),
        ("Cancelled requests", requests.cancelled, requests.cancelled, "as the profile asks"),
        ("Unfinished requests", requests.unfinished, requests.unfinished, lost),
        ("Carried over", over, over, f"open at the end{share}"),
        ("Carried in", requests.carried_in, requests.carried_in, f"open at the beginning{failed}"),
        ("Never sent", unsent, unsent, "" if waited_s is None else f"longest wait {waited_s:.1f} s"),
    )
    return {"Successful requests": str(requests.completed)} | {
        name: f"{number} ({more})" if number and more else str(number or 0)
        for name, number, occurred, more in found
        if occurred or name in shown
    }


def account_words(requests: Requests) -> str:
    """All requests in a line that adds up: 92 scheduled, 80 never sent; 12 sent = 9 completed + 3 open."""
    parts = {name: getattr(requests, name) for name in (*OUTCOMES, "open")}
    shown = [f"{count:,} {name.replace('_', ' ')}" for name, count in parts.items() if count]
    sent = f"{requests.sent:,} sent = {' + '.join(shown)}" if shown else f"{requests.sent:,} sent"
    scheduled = f"{requests.scheduled:,} scheduled, {requests.unsent:,} never sent; " if requests.unsent else ""
    return f"{scheduled}{sent}" + (f"; {requests.carried_in:,} carried in" if requests.carried_in else "")


def failed_words(errors: Mapping[str, int]) -> str:
    """The kinds of failures with counts: http_5xx 3, reset 1."""
    return ", ".join(f"{kind} {count:,}" for kind, count in errors.items())


def published_nowhere(result: Result) -> str:
    """A message if figures were published for single loads, but no stage has such a load; else empty."""
    published, found = result.profile.get("reference"), result.reference
    if found is None or found.comparisons or not (isinstance(published, dict) and published.get("points")):
        return ""
    return "no stage of this run has the load of a published figure"


def condition_words(found: Sequence[Condition]) -> Iterator[str]:
    """What differs from the publication, what is not known, or that nothing differs."""
    differing = [f"{one.name}: {one.here}, published: {one.published}" for one in found if one.same is False]
    unknown = [one.name for one in found if one.same is None]
    same = [one.name for one in found if one.same]
    if not found:
        yield "the profile names no conditions of the publication: none were compared"
    if differing:
        yield f"not as published: {'; '.join(differing)}"
    if unknown:
        yield f"not known whether as published: {', '.join(unknown)}"
    if same:
        yield f"as published: {', '.join(same)}"


def stage_notes(stage: StageResult) -> list[Note]:
    """Notes on what a stage's figures do and do not cover; verdicts and limits are reported elsewhere."""
    tail_is_verdict = any(verdict.id == "tail" for verdict in stage.verdicts)
    found = [note for note in _coverage(stage) if note.subject != "Tail" or not tail_is_verdict]
    found += _mfu(stage)
    by = stage.energy.devices_by if stage.energy is not None else None
    if by in ("hbm", "all"):  # that of other programs may be in it
        whose = "the GPUs whose memory is in use" if by == "hbm" else "all GPUs of the box"
        found.append(Note("Energy", f"of {whose}: the server's own GPUs are unknown"))
    if stage.cost is not None and stage.cost.why:
        found.append(Note("Cost", f"unknown: {stage.cost.why}"))
    output = output_words(stage.canary, stage.answers)
    return [*found, Note("Output", output)] if output is not None else found


def live_notes(stage: StageResult) -> list[Note]:
    """Notes on what a stage's figures do and do not cover once it has ended, where no verdicts on it are shown."""
    if stage.running:
        return []
    capped = [Note("Cap", verdict.text) for verdict in stage.verdicts if verdict.id == "capped"]
    return [*_coverage(stage), *capped, *_mfu(stage)]


def _mfu(stage: StageResult) -> list[Note]:
    return [] if stage.compute is None else [Note("MFU", mfu_words(stage.compute))]


def foreign_notes(result: Result) -> list[Note]:
    """Which other tool measured a result, and how; empty for vramp's own."""
    if result.measured_by is None:
        return []
    who = Note("Measured by", f"{result.measured_by}, which does not say whether its client kept up")
    how = [Note(LATENCY_TITLES.get(name, name.capitalize()), text) for name, text in result.definitions.items()]
    return [who, *how]


def _coverage(stage: StageResult) -> Iterator[Note]:
    moves, latency_ms = stage.target.moves is not None, latencies(stage)
    if moves:
        yield Note("Load", "it moves: see the figures by load; E2E belongs to no single load")
    if stage.inconclusive is not None:
        yield Note("Inconclusive", stage.inconclusive)
    if stage.e2e_inconclusive is not None:
        yield Note("E2E", stage.e2e_inconclusive.removeprefix("E2E: "))
    ttft, intended = (latency_ms.get(name, Summary(count=0)) for name in ("ttft", "ttft_from_intended"))
    when = "first token when they or the stage ended"
    if ttft.censored:
        marked = "; >= is a lower bound" if ttft.lower_bounds else ""
        yield Note("TTFT", f"{counted(ttft.censored, 'stream')} still waited for the {when}{marked}")
    if intended.censored > ttft.censored:
        yield Note("TTFT from intended", f"unknown for {counted(intended.censored, 'arrival')}, without a {when}")
    tpot = latency_ms.get("tpot")
    if stage.tpot_parts and tpot is not None:
        yield Note("TPOT", f"{stage.tpot_parts:,} of {tpot.count:,} values cover part of a stream")
    if stage.first_wave is not None:
        yield _first_wave(stage.first_wave)
    tail = stage.tail_share
    if tail is not None and tail >= _MIN_TAIL:
        yield Note("Tail", f"for {tail:.0%} of the time fewer streams than asked for, as the requests ran out")


def mfu_unknown(stage: StageResult) -> str:
    """Why MFU is unknown; empty if it is known, or nothing was estimated."""
    if stage.compute is not None:
        return stage.compute.why
    return stage.engine.unavailable.get("tflops_per_gpu", "") if stage.engine is not None else ""


def mfu_words(compute: ComputeResult) -> str:
    reported = f"{significant(compute.tflops_per_gpu)} TFLOP/s a GPU by the engine's own estimate"
    if compute.mfu_percent is None:
        return f"unknown: {reported}, but {compute.why}"
    peak = f"{significant(compute.peak_tflops)} in {compute.precision}, dense"
    return f"{significant(compute.mfu_percent)} %: {reported}, of {peak}"


def _first_wave(wave: FirstWave) -> Note:
    if wave.counted:
        return Note("First wave", "counted, as in `vllm bench` and what is published with it")
    streams, ttft = f"{counted(wave.streams, 'stream')} that began at once, in no other figure", wave.ttft_ms
    if ttft is None or not ttft.count:
        return Note("First wave", streams)
    return Note("First wave", f"{streams}: TTFT p50 {significant(ttft.p50)}, p99 {significant(ttft.p99)} ms")
