"""Checks whether the client's and the engine's figures for the same streams agree.

The engine counts everything between two readings. Its figures are compared with the client's only if both cover the
same streams: nothing was open at either reading, here or at the server, and both saw as many first tokens. Streams that
are open at the end of a stage are in the engine's figures of two stages, and in the client's of one: such a stage is
compared together with the others between two readings of an idle engine. The client's mean TTFT is over all streams,
including warm-up, priming of sessions, first wave and canaries. Totals require that no stream failed, and for a stage
alone that there was no warm-up or priming; canaries are subtracted from the engine's. `why` says why something is not
compared, which is not a disagreement. Implausible figures of the engine (`EngineStage.doubts`) and what it served to
others are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from loadgen.record.stage import FIRST_TOKENS, StageRecord
from loadgen.schema.engine import EngineStage, OwnRequests, SpecDecode, TruthCheck
from loadgen.schema.finding import Verdict

EARLIER_SHARE, EARLIER_MS = 0.05, 1.0
"""If the client sees first tokens earlier than the engine by more than both, it is wrong or sees other streams."""
OUTSIDE_SHARE, OUTSIDE_MS = 0.25, 20.0
"""If more of the TTFT than both is spent outside the engine, the measurement is not of the engine."""
PREFIX_HIT_RATE = 0.01


@dataclass(frozen=True, slots=True)
class ClientAccount:
    """The client's figures for one or more stages."""

    stages: Sequence[StageRecord]
    engine: EngineStage
    first_tokens: int  # of all streams, measured or not
    ttft_ms: float  # their sum
    counters: Mapping[str, int]  # summed over the stages
    requests: int
    input_tokens: int
    output_tokens: int
    canaries: OwnRequests
    is_span: bool

    @property
    def over(self) -> str:
        """What is compared, in words; empty for the streams of one stage alone."""
        first, last = (stage.started.index + 1 for stage in (self.stages[0], self.stages[-1]))
        together = f"stages {first} to {last} together" if last > first else f"stage {first} until its last answer"
        number = self.canaries.requests
        canaries = f"including {number} {'canary' if number == 1 else 'canaries'}"
        parts = (together if self.is_span else "", canaries if number else "")
        return ", ".join(filter(None, parts))


def account_of(
    stages: Sequence[StageRecord],
    engine: EngineStage,
    totals: Mapping[str, int],
    canaries: OwnRequests,
    *,
    is_span: bool,
) -> ClientAccount:
    """The account of streams whose `totals` are those of a `ClientDelta`.

    `is_span`: of all streams between two moments at which none was open.
    """
    histograms = [stage.histogram(name) for stage in stages for name in FIRST_TOKENS]
    counters: Counter[str] = Counter()
    for stage in stages:
        counters.update(stage.counters)
    return ClientAccount(
        stages=stages,
        engine=engine,
        first_tokens=sum(one.count for one in histograms),
        ttft_ms=sum(one.count * (one.mean_ms() or 0.0) for one in histograms),
        counters=counters,
        requests=totals["requests"],
        input_tokens=totals["input_tokens"],
        output_tokens=totals["output_tokens"],
        canaries=canaries,
        is_span=is_span,
    )


def truth_check(stage: StageRecord, engine: EngineStage) -> TruthCheck:
    """Compare both accounts of a stage, or of the stages that it is compared with together."""
    counters = stage.counters
    totals = {"requests": counters["completed"]} | {name: counters[name] for name in ("input_tokens", "output_tokens")}
    own = _compare(account_of([stage], engine, totals, stage.canaries, is_span=False))
    if stage.span is None or own.agrees is not None:
        return own
    together = _compare(stage.span)
    if together.agrees is None and together.why != own.why:
        return msgspec.structs.replace(own, why=f"{own.why}; {stage.span.over}: {together.why}")
    return together


def _compare(ours: ClientAccount) -> TruthCheck:
    engine, canaries = ours.engine, ours.canaries
    other_streams, other_requests = _other_streams(ours), _other_requests(ours)
    timed = engine if other_streams is None else EngineStage()
    counted = EngineStage()
    if other_requests is None:
        counted = EngineStage(
            ttft_count=_less(engine.ttft_count, canaries.requests),
            prompt_tokens=_less(engine.prompt_tokens, canaries.input_tokens),
            generation_tokens=_less(engine.generation_tokens, canaries.output_tokens),
        )
    knows_input = not ours.counters["unknown_input"]
    count = ours.first_tokens + canaries.requests
    client_ms = (ours.ttft_ms + canaries.ttft_ms) / count if other_streams is None else None
    outside_ms = _difference(client_ms, timed.ttft_mean_ms)
    wrong = [*_ttft_words(ours, outside_ms, timed.ttft_mean_ms), *_total_words(ours, counted)]
    if wrong and ours.is_span:
        wrong[0] = f"{ours.over}: {wrong[0]}"
    unknown = ["input tokens not compared: the server does not report them"] if not knows_input else []
    return TruthCheck(
        ttft_client_ms=client_ms if timed.ttft_mean_ms is not None else None,
        ttft_server_ms=timed.ttft_mean_ms,
        ttft_outside_ms=outside_ms,
        queue_ms=timed.queue_mean_ms,
        prefill_ms=timed.prefill_mean_ms,
        frontend_ms=_frontend_ms(timed),
        requests_client=ours.requests,
        requests_server=counted.ttft_count,
        input_tokens_client=ours.input_tokens if knows_input else None,
        input_tokens_server=counted.prompt_tokens,
        output_tokens_client=ours.output_tokens,
        output_tokens_server=counted.generation_tokens,
        agrees=None if other_streams is not None and other_requests is not None else not wrong,
        why="; ".join(
            [*wrong, *_not_compared(other_streams, other_requests), *(unknown if not other_requests else [])]
        ),
        over=ours.over if other_streams is None or other_requests is None else "",
    )


def truth_verdicts(stage: StageRecord, check: TruthCheck | None) -> list[Verdict]:
    """Verdicts on whether a stage's numbers can be trusted."""
    engine = stage.engine or EngineStage()
    found = {
        "truth": check.why if check is not None and check.agrees is False else None,
        "prefix-cache": unintended_hits(engine.prefix_hit_rate, intended=stage.meant_hits),
        "spec-decode-random": _guessed(engine.spec) if stage.started.random_prompts else None,
    }
    return [Verdict(name, stage.subject, words) for name, words in found.items() if words is not None]


def unintended_hits(hit_rate: float | None, *, intended: float) -> str | None:
    """Why prefill looks faster than it is; `intended` is the share of tokens that prompts share on purpose."""
    if hit_rate is None or hit_rate <= intended + PREFIX_HIT_RATE:
        return None
    return (
        f"{hit_rate:.1%} of the prompt tokens came from the prefix cache, {intended:.0%} were meant to: prefill looks "
        "faster than it is; prompts share a chat template, a file of prompts is shorter than the load, or an earlier "
        "run with the same seed sent them"
    )


def _guessed(spec: SpecDecode | None) -> str | None:
    """A message that speculation on random prompts says nothing about real text; None if there was none."""
    if spec is None:
        return None
    share = "an unknown share" if spec.acceptance is None else f"{spec.acceptance:.0%}"
    return (
        f"speculative decoding accepted {share} of its drafts on random prompts, which tells nothing of real text: nor "
        "do TPOT and throughput; give a dataset as load.data"
    )


def _first(reasons: Iterable[tuple[str | None, bool]]) -> str | None:
    return next((words for words, holds in reasons if holds and words is not None), None)


def _open_around(ours: ClientAccount) -> str | None:
    """Why the engine may have counted other streams than the client; None if it cannot have."""
    engine, counters = ours.engine, ours.counters
    alone = ours.is_span or ours.stages[0].alone
    left_open = not ours.is_span and counters["carried_over"] + counters["unfinished"] > 0
    others = next((words for stage in ours.stages if (words := stage.others_meanwhile(stage.others)) is not None), None)
    reasons = (
        (f"the server cannot be believed: {engine.doubts.get('all')}", "all" in engine.doubts),
        ("the server was restarted", engine.restarts > 0),
        ("the server does not say", engine.ttft_count is None and engine.generation_tokens is None),
        (others, others is not None),
        ("streams of the stage before were open when it began", not alone),
        ("streams were open when the stage ended", left_open),
        ("the server does not say whether it was idle", engine.idle_around is None),
        ("the server was not idle when its figures were read", engine.idle_around is False),
    )
    return _first(reasons)


def _lost(ours: ClientAccount) -> Iterator[tuple[str, bool]]:
    counters = ours.counters
    failed = sum(counters[name] for name in ("failed", "warmup_failed", "carried_failed"))
    yield "streams failed", failed > 0
    yield "streams were cancelled", counters["cancelled"] > 0
    yield "streams were cut off", counters["unfinished"] > 0
    yield "times were discarded because the wall clock was stepped or vramp stood still", counters["clock_steps"] > 0


def _other_streams(ours: ClientAccount) -> str | None:
    """Why the TTFTs are not of the same streams; None if they are."""
    engine, count = ours.engine, ours.first_tokens + ours.canaries.requests
    reasons = (
        (f"the server cannot be believed: {engine.doubts.get('ttft')}", "ttft" in engine.doubts),
        (_open_around(ours), True),
        ("the server does not say", engine.ttft_count is None),
        *((words, count != engine.ttft_count and holds) for words, holds in _lost(ours)),
        (_others_words(ours, ours.first_tokens), not ours.first_tokens or count != engine.ttft_count),
    )
    return _first(reasons)


def _others_words(ours: ClientAccount, streams: int) -> str:
    mine, theirs = streams + ours.canaries.requests, ours.engine.ttft_count
    others = f"; others use it, too: {theirs - mine} of them are theirs" if theirs is not None and theirs > mine else ""
    canaries = f" ({ours.over})" if ours.canaries.requests and not ours.is_span else ""
    return f"the client saw {mine} first tokens{canaries}, the server made {theirs}{others}"


def _not_compared(streams: str | None, requests: str | None) -> list[str]:
    if streams == requests:
        return [] if streams is None else [f"TTFT and totals not compared: {streams}"]
    found = {"TTFT": streams, "totals": requests}
    return [f"{what} not compared: {why}" for what, why in found.items() if why is not None]


def _ttft_words(ours: ClientAccount, outside_ms: float | None, server_ms: float | None) -> Iterator[str]:
    if outside_ms is None or server_ms is None:
        return
    if outside_ms < -max(EARLIER_MS, EARLIER_SHARE * server_ms):
        yield f"the client saw first tokens {-outside_ms:.1f} ms before the server made them, on average"
    # Canaries are timed by another process: what is said of the load must hold whatever their TTFTs were.
    count = ours.first_tokens + ours.canaries.requests
    least_ms = outside_ms - ours.canaries.ttft_ms / count
    if least_ms > max(OUTSIDE_MS, OUTSIDE_SHARE * server_ms):
        yield f"{outside_ms:.1f} ms of the TTFT pass between server and client (server {server_ms:.1f} ms)"


def _other_requests(ours: ClientAccount) -> str | None:
    """Why the totals do not cover the same requests; None if they do."""
    counters, theirs = ours.counters, ours.engine.ttft_count
    primed = any(stage.metrics.sessions and stage.metrics.sessions["primed"] for stage in ours.stages)
    reasons = (
        (_open_around(ours), True),
        ("warm-up is in the server's only", counters["warmup"] > 0 and not ours.is_span),
        ("requests that prime sessions are in the server's only", primed and not ours.is_span),
        *((words, holds) for words, holds in _lost(ours) if not words.startswith("times")),
        ("the server reported no usage, events were counted", counters["counted_by_events"] > 0),
        (_others_words(ours, ours.requests), (theirs or 0) > ours.requests + ours.canaries.requests),
    )
    return _first(reasons)


def _total_words(ours: ClientAccount, engine: EngineStage) -> list[str]:
    input_tokens = None if ours.counters["unknown_input"] else engine.prompt_tokens
    pairs = (
        ("requests", ours.requests, engine.ttft_count),
        ("input tokens", ours.input_tokens, input_tokens),
        ("output tokens", ours.output_tokens, engine.generation_tokens),
    )
    return [
        f"{what}: client {mine}, server {theirs}"
        for what, mine, theirs in pairs
        if theirs is not None and mine != theirs
    ]


def _frontend_ms(engine: EngineStage) -> float | None:
    counts = {engine.latency_ms[name].count for name in ("ttft", "queue", "prefill") if name in engine.latency_ms}
    if len(counts) != 1 or engine.queue_mean_ms is None or engine.prefill_mean_ms is None:
        return None
    return _difference(engine.ttft_mean_ms, engine.queue_mean_ms + engine.prefill_mean_ms)


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _less(total: int | None, part: int) -> int | None:
    return None if total is None else total - part
