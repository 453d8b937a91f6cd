"""Checks whether the client's and the engine's figures for the same requests of a stage agree.

The engine counts everything between two readings. Its figures are compared with the client's only if both cover the
same streams: nothing was open at either reading, here or at the server, and both saw as many first tokens. The client's
mean is then over all of them, including warm-up and first wave. Totals also require that the client left nothing out:
no warm-up, no failure. `why` says why something is not compared, which is not a disagreement. Implausible figures of
the engine (`EngineStage.doubts`) and what it served to others are not compared. Canaries are subtracted from its
counts, and from its mean TTFT with the TTFTs that this process measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from loadgen.metrics.canary import CanaryTraffic
from loadgen.metrics.engine import EngineStage, SpecDecode, TruthCheck
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.result import Verdict
from loadgen.metrics.stage_record import FIRST_TOKENS, StageRecord

EARLIER_SHARE, EARLIER_MS = 0.05, 1.0
"""If the client sees first tokens earlier than the engine by more than both, it is wrong or sees other streams."""
OUTSIDE_SHARE, OUTSIDE_MS = 0.25, 20.0
"""If more of the TTFT than both is spent outside the engine, the measurement is not of the engine."""
PREFIX_HIT_RATE = 0.01


def truth_check(stage: StageRecord, engine: EngineStage) -> TruthCheck:
    """Compare both accounts of a stage."""
    whole, engine = engine, _without_canaries(engine, stage.canaries)
    ttft, counters = Histogram(), stage.counters
    for name in FIRST_TOKENS:
        ttft.add(stage.histogram(name))
    other_streams, other_requests = _other_streams(stage, ttft.count, engine), _other_requests(stage, engine)
    timed = engine if other_streams is None else EngineStage()
    counted = engine if other_requests is None else EngineStage()
    client_ms = ttft.mean_ms() if other_streams is None else None
    outside_ms = _difference(client_ms, timed.ttft_mean_ms)
    wrong = [*_ttft_words(outside_ms, timed.ttft_mean_ms), *_total_words(counters, counted)]
    return TruthCheck(
        ttft_client_ms=client_ms,
        ttft_server_ms=timed.ttft_mean_ms,
        ttft_outside_ms=outside_ms,
        queue_ms=timed.queue_mean_ms,
        prefill_ms=timed.prefill_mean_ms,
        frontend_ms=_frontend_ms(whole) if other_streams is None else None,
        requests_client=counters["completed"],
        requests_server=counted.ttft_count,
        input_tokens_client=counters["input_tokens"],
        input_tokens_server=counted.prompt_tokens,
        output_tokens_client=counters["output_tokens"],
        output_tokens_server=counted.generation_tokens,
        agrees=None if other_streams is not None and other_requests is not None else not wrong,
        why="; ".join([*wrong, *_not_compared(other_streams, other_requests)]),
    )


def _without_canaries(engine: EngineStage, canaries: CanaryTraffic) -> EngineStage:
    """The engine's figures for the load alone; its mean queue and prefill times still cover all requests."""
    count, mean_ms = engine.ttft_count, engine.ttft_mean_ms
    if not canaries.requests or count is None or count < canaries.requests:
        return engine
    left = count - canaries.requests
    if mean_ms is not None:
        mean_ms = max(0.0, count * mean_ms - canaries.ttft_ms) / left if left else None
    return msgspec.structs.replace(
        engine,
        ttft_count=left,
        ttft_mean_ms=mean_ms,
        prompt_tokens=_less(engine.prompt_tokens, canaries.input_tokens),
        generation_tokens=_less(engine.generation_tokens, canaries.output_tokens),
    )


def _less(total: int | None, part: int) -> int | None:
    return None if total is None else total - part


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


def _open_around(stage: StageRecord, engine: EngineStage) -> str | None:
    """Why the engine may have counted other streams than the client; None if it cannot have."""
    reasons = (
        (f"the server cannot be believed: {engine.doubts.get('all')}", "all" in engine.doubts),
        ("the server was restarted", engine.restarts > 0),
        ("the server does not say", engine.ttft_count is None and engine.generation_tokens is None),
        (beside := stage.beside(stage.others), beside is not None),
        ("streams of the stage before were open when it began", not stage.alone),
        ("streams were open when the stage ended", stage.counters["carried_over"] + stage.counters["unfinished"] > 0),
        ("the server does not say whether it was idle", engine.idle_around is None),
        ("the server was not idle when its figures were read", engine.idle_around is False),
    )
    return _first(reasons)


def _other_streams(stage: StageRecord, ours: int, engine: EngineStage) -> str | None:
    theirs = engine.ttft_count
    reasons = (
        (f"the server cannot be believed: {engine.doubts.get('ttft')}", "ttft" in engine.doubts),
        (_open_around(stage, engine), True),
        ("the server does not say", theirs is None),
        ("streams failed", ours != theirs and stage.counters["failed"] + stage.counters["warmup_failed"] > 0),
        ("streams were cancelled", ours != theirs and stage.counters["cancelled"] > 0),
        (_others_words(ours, theirs), not ours or ours != theirs),
    )
    return _first(reasons)


def _others_words(ours: int, theirs: int | None) -> str:
    others = f"; others use it, too: {theirs - ours} of them are theirs" if theirs is not None and theirs > ours else ""
    return f"the client saw {ours} first tokens, the server made {theirs}{others}"


def _not_compared(streams: str | None, requests: str | None) -> list[str]:
    if streams == requests:
        return [] if streams is None else [f"TTFT and totals not compared: {streams}"]
    found = {"TTFT": streams, "totals": requests}
    return [f"{what} not compared: {why}" for what, why in found.items() if why is not None]


def _ttft_words(outside_ms: float | None, server_ms: float | None) -> Iterator[str]:
    if outside_ms is None or server_ms is None:
        return
    if outside_ms < -max(EARLIER_MS, EARLIER_SHARE * server_ms):
        yield f"the client saw first tokens {-outside_ms:.1f} ms before the server made them, on average"
    if outside_ms > max(OUTSIDE_MS, OUTSIDE_SHARE * server_ms):
        yield f"{outside_ms:.1f} ms of the TTFT pass between server and client (server {server_ms:.1f} ms)"


def _other_requests(stage: StageRecord, engine: EngineStage) -> str | None:
    """Why the totals do not cover the same requests; None if they do."""
    counters = stage.counters
    reasons = (
        (_open_around(stage, engine), True),
        ("warm-up is in the server's only", counters["warmup"] > 0),
        ("streams failed", counters["failed"] + counters["warmup_failed"] > 0),
        ("streams were cancelled", counters["cancelled"] > 0),
        ("the server reported no usage, events were counted", counters["counted_by_events"] > 0),
        (_others_words(counters["completed"], engine.ttft_count), (engine.ttft_count or 0) > counters["completed"]),
    )
    return _first(reasons)


def _total_words(counters: Mapping[str, int], engine: EngineStage) -> list[str]:
    pairs = (
        ("requests", counters["completed"], engine.ttft_count),
        ("input tokens", counters["input_tokens"], engine.prompt_tokens),
        ("output tokens", counters["output_tokens"], engine.generation_tokens),
    )
    return [
        f"{what}: client {ours}, server {theirs}"
        for what, ours, theirs in pairs
        if theirs is not None and ours != theirs
    ]


def _frontend_ms(engine: EngineStage) -> float | None:
    counts = {engine.latency_ms[name].count for name in ("ttft", "queue", "prefill") if name in engine.latency_ms}
    if len(counts) != 1 or engine.queue_mean_ms is None or engine.prefill_mean_ms is None:
        return None
    return _difference(engine.ttft_mean_ms, engine.queue_mean_ms + engine.prefill_mean_ms)


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right
