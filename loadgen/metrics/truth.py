"""Client and engine saw the same requests: do their accounts of a stage agree?

The client counts a stage's own streams, to their end; the engine counts whatever happened between the beginning and
the end of the stage. Totals are therefore compared only where both are the same requests: no warm-up, nothing failed or
cut off, no stream open at either end. Mean TTFTs are compared where both are of nearly the same number of streams; the
client's is then over warm-up streams too. What is not compared is named in `why`, and is no disagreement.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from loadgen.metrics.journal import EngineStage
from loadgen.metrics.snapshot import Verdict

SAME_STREAMS = 0.05
"""By how much the numbers of first tokens may differ for their means to be compared."""
EARLIER_SHARE, EARLIER_MS = 0.05, 1.0
"""A client that sees first tokens earlier than the engine made them, by more than both, is wrong or measures others."""
OUTSIDE_SHARE, OUTSIDE_MS = 0.25, 20.0
"""Of the engine's TTFT: if more than both is lost between engine and client, the engine is not what is measured."""
PREFIX_HIT_RATE = 0.01


class ClientAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What the client says of a stage."""

    ttft_ms: float | None
    """Mean over all first tokens, those of warm-up streams too."""
    first_tokens: int
    asked: int | None
    """Requests that the stage was to send; None for one that time bounds."""
    completed: int
    failed: int
    unfinished: int
    warmup: int
    input_tokens: int
    output_tokens: int
    counted_by_events: bool
    """The server reported no usage."""
    alone: bool
    """No stream of an earlier stage was open when it began."""


class TruthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Client against engine over a stage; None where one of them does not know."""

    ttft_client_ms: float | None
    """Mean over all streams of the stage, warm-up too."""
    ttft_server_ms: float | None
    ttft_outside_ms: float | None
    """The client's less the server's: HTTP, network and client. None where they are of other streams."""
    queue_ms: float | None
    """Mean wait before the engine began a request; this and `prefill_ms` are parts of the server's TTFT."""
    prefill_ms: float | None
    frontend_ms: float | None
    """The rest of the server's TTFT: tokenizing, and the way to the engine and back."""
    requests_client: int
    requests_server: int | None
    """Those that the server gave a first token."""
    input_tokens_client: int
    input_tokens_server: int | None
    output_tokens_client: int
    output_tokens_server: int | None
    agrees: bool | None
    """Of all that could be compared; None where nothing could."""
    why: str
    """What does not agree, then what could not be compared and why; empty where everything agrees."""


def truth_check(client: ClientAccount, engine: EngineStage) -> TruthCheck:
    """Compare what both say of a stage."""
    same_streams = _same_streams(client, engine)
    outside_ms = _difference(client.ttft_ms, engine.ttft_mean_ms) if same_streams else None
    unclear = _totals_unclear(client, engine)
    wrong = list(_ttft_words(outside_ms, engine.ttft_mean_ms))
    wrong += _total_words(client, engine) if unclear is None else []
    compared = outside_ms is not None or unclear is None
    notes = [] if outside_ms is not None else [f"TTFT not compared: {_ttft_unclear(client, engine)}"]
    notes += [] if unclear is None else [f"totals not compared: {unclear}"]
    return TruthCheck(
        ttft_client_ms=client.ttft_ms,
        ttft_server_ms=engine.ttft_mean_ms,
        ttft_outside_ms=outside_ms,
        queue_ms=engine.queue_mean_ms,
        prefill_ms=engine.prefill_mean_ms,
        frontend_ms=_frontend_ms(engine),
        requests_client=client.completed,
        requests_server=engine.ttft_count,
        input_tokens_client=client.input_tokens,
        input_tokens_server=engine.prompt_tokens,
        output_tokens_client=client.output_tokens,
        output_tokens_server=engine.generation_tokens,
        agrees=not wrong if compared else None,
        why="; ".join([*wrong, *notes]),
    )


def truth_verdicts(subject: str, check: TruthCheck | None, engine: EngineStage | None) -> list[Verdict]:
    """What an operator must know before trusting a stage's numbers."""
    hits = unintended_hits(engine.prefix_hit_rate) if engine is not None else None
    found = {"truth": check.why if check is not None and check.agrees is False else None, "prefix-cache": hits}
    return [Verdict(name, subject, words) for name, words in found.items() if words is not None]


def unintended_hits(hit_rate: float | None, *, intended: float = 0.0) -> str | None:
    """Why prefill looks faster than it is, in words; `intended` is the share that the prompts were made to share."""
    if hit_rate is None or hit_rate <= intended + PREFIX_HIT_RATE:
        return None
    return (
        f"{hit_rate:.1%} of the prompt tokens came from the prefix cache, {intended:.0%} were meant to: prefill looks "
        "faster than it is; prompts share a chat template, or an earlier run with the same seed sent them"
    )


def _same_streams(client: ClientAccount, engine: EngineStage) -> bool:
    ours, theirs = client.first_tokens, engine.ttft_count
    return bool(ours and theirs) and abs(ours - (theirs or 0)) <= SAME_STREAMS * ours


def _ttft_unclear(client: ClientAccount, engine: EngineStage) -> str:
    if engine.ttft_count is None:
        return "the server does not say"
    return f"the client saw {client.first_tokens} first tokens, the server made {engine.ttft_count}"


def _ttft_words(outside_ms: float | None, server_ms: float | None) -> Iterator[str]:
    if outside_ms is None or server_ms is None:
        return
    if outside_ms < -max(EARLIER_MS, EARLIER_SHARE * server_ms):
        yield f"the client saw first tokens {-outside_ms:.1f} ms before the server made them, on average"
    if outside_ms > max(OUTSIDE_MS, OUTSIDE_SHARE * server_ms):
        yield f"{outside_ms:.1f} ms of the TTFT pass between server and client (server {server_ms:.1f} ms)"


def _totals_unclear(client: ClientAccount, engine: EngineStage) -> str | None:
    """Why the totals are not of the same requests; None when they are."""
    reasons = (
        ("the server does not say", engine.generation_tokens is None and engine.prompt_tokens is None),
        ("warm-up is in the server's only", client.warmup > 0),
        ("streams failed or were cut off", client.failed + client.unfinished > 0),
        ("streams were open when the stage ended", client.asked is None or client.completed < client.asked),
        ("streams of the stage before were open when it began", not client.alone),
        ("the server reported no usage, events were counted", client.counted_by_events),
    )
    return next((words for words, holds in reasons if holds), None)


def _total_words(client: ClientAccount, engine: EngineStage) -> list[str]:
    pairs = (
        ("requests", client.completed, engine.ttft_count),
        ("input tokens", client.input_tokens, engine.prompt_tokens),
        ("output tokens", client.output_tokens, engine.generation_tokens),
    )
    differing = [(what, ours, theirs) for what, ours, theirs in pairs if theirs is not None and ours != theirs]
    others = engine.ttft_count is not None and engine.ttft_count > client.completed
    words = [f"{what}: client {ours}, server {theirs}" for what, ours, theirs in differing]
    return [*words, *(["somebody else uses this server"] if others else [])]


def _frontend_ms(engine: EngineStage) -> float | None:
    counts = {engine.latency_ms[name].count for name in ("ttft", "queue", "prefill") if name in engine.latency_ms}
    if len(counts) != 1 or engine.queue_mean_ms is None or engine.prefill_mean_ms is None:
        return None
    return _difference(engine.ttft_mean_ms, engine.queue_mean_ms + engine.prefill_mean_ms)


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right
