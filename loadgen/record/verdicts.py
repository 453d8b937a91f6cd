"""Verdicts on a stage's own figures: which of them its requests, tokens and sessions do not support, and what rose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from loadgen.format import counted, number
from loadgen.metrics.sequential import FALSE_ALARMS, means, rise
from loadgen.record.stage import StageRecord
from loadgen.schema.deltas import OUTCOMES
from loadgen.schema.finding import Verdict

MAX_TAIL = 0.2  # of the window: beyond this, the figures are partly those of a lower load
MAX_SHORT_SHARE = 0.01  # of the answers; a few may run into the end of the context
MIN_REQUESTS_A_SESSION = 2  # before its second request, no context has come back
MIN_LOST = 0.1  # of the prompt tokens, which a cache without limit would have held: less may be the cache's granularity
_SKIPPED = 4  # the first quarter: caches fill, and the first streams find an empty engine
_MIN_RISE = {"TTFT": 0.1, "TPOT": 0.1}
_MIN_MEMORY_RISE = 0.05


def account_verdicts(stage: StageRecord) -> Iterator[Verdict]:
    """Verdicts on the accounts of a stage: requests that do not add up, clocks that were moved, a large tail."""
    subject, counters = stage.subject, stage.counters
    accounted = sum(counters[name] for name in OUTCOMES) + stage.open_sent
    if accounted != counters["sent"]:
        yield Verdict("accounting", subject, f"{counters['sent']} requests were sent, {accounted} are accounted for")
    for move in stage.clock_moves:
        words = f"the clock of {move.host} was moved by {move.by_ns / 1e6:+.1f} ms: its part of this stage is unsure"
        yield Verdict("clock-moved", subject, words)
    share = stage.tail_share
    if share is not None and share > MAX_TAIL:
        words = f"for {share:.0%} of its time fewer streams than asked for were open, because its requests ran out"
        yield Verdict("tail", subject, f"{words}: give it more, or a duration", bad=False)


def token_verdicts(stage: StageRecord) -> Iterator[Verdict]:
    """Verdicts on the tokens of the streams that completed in a stage."""
    subject, counters, completed = stage.subject, stage.counters, stage.counters["completed"]

    def of_completed(count: int) -> str:
        return f"{count:,} of {counted(completed, 'answer')}"

    short = counters["short_answers"]
    if short > MAX_SHORT_SHARE * completed and not counters["counted_by_events"]:
        output, requested = counters["output_tokens"] / completed, counters["requested_tokens"] / completed
        text = (
            f"{of_completed(short)} were shorter than asked for, with {output:.1f} of {requested:.1f} output tokens on "
            "average: the server ignores ignore_eos, or ends answers early; throughput and E2E are those of the "
            "shorter answers"
        )
        yield Verdict("short-answers", subject, text)
    if uneven := counters["uneven_streams"]:
        text = (
            f"ITL is unknown: the events of {counted(uneven, 'answer')} did not carry one token each, and "
            "the server does not say how many (it counts them only at the end); chunk gaps are known"
        )
        yield Verdict("itl-unknown", subject, text, bad=False)
    if unknown := counters["unknown_tpot"]:
        text = (
            f"TPOT is unknown for {of_completed(unknown)}: the server's usage counts more tokens than can have been "
            "streamed, or falls while the answer grows"
        )
        yield Verdict("tpot-unknown", subject, text, bad=False)
    if hidden := counters["hidden_tokens"]:
        share = f"{hidden:,} of {counters['output_tokens']:,} output tokens"
        text = f"{share} were never streamed (reasoning): they count in OSL, but in no TPOT"
        yield Verdict("hidden-tokens", subject, text, bad=False)
    if unknown := counters["unknown_input"]:
        text = f"prompt tokens are unknown for {of_completed(unknown)}: the server's usage does not report them"
        yield Verdict("input-unknown", subject, text, bad=False)
    if filtered := stage.metrics.finish_reasons.get("content_filter", 0):
        text = f"{of_completed(filtered)} were ended by the server's content filter"
        yield Verdict("content-filter", subject, text, bad=False)


def session_verdicts(stage: StageRecord) -> Iterator[Verdict]:
    """That the contexts of the live sessions exceed the KV cache, where the hits show it."""
    found, hits = stage.sessions, stage.hits
    if found is None or hits is None or found.context_tokens is None or hits.pool_tokens is None:
        return
    actual = hits.measured  # the engine's counters have the requests that prime, too, which hit nothing
    if actual is None or hits.infinite is None or found.context_tokens <= hits.pool_tokens:
        return
    if hits.infinite - actual < MIN_LOST or stage.counters["completed"] < MIN_REQUESTS_A_SESSION * (found.live or 0):
        return
    live = counted(round(found.live or 0), "live context")
    needs = f"{live} need {number(found.context_tokens)} tokens, the KV cache has {number(hits.pool_tokens)}"
    text = f"{needs}: {actual:.0%} of the prompt tokens hit it, without its limit {hits.infinite:.0%} would"
    yield Verdict("contexts-exceed-cache", stage.subject, text)


def rising_words(stage: StageRecord, gpus: Collection[int]) -> str | None:
    """What rose while the load stayed the same: latencies, the memory of the server and of its GPUs (by number)."""
    started = stage.started
    if started.steps:
        return None

    series = [*_memory(stage, gpus)]
    # The queue of an overloaded open loop grows, and so do the prompts of conversations.
    is_queueing = started.rate is not None and (stage.waiting_mean or 0.0) >= 1
    if not is_queueing and not started.meant_hits and not started.thinks:
        latencies = [("TTFT", stage.blocks.means_ms("ttft")), ("TPOT", stage.blocks.means_ms("tpot"))]
        series = [*latencies, *series]
    found = []
    for name, values in series:
        by = rise(values[len(values) // _SKIPPED :], FALSE_ALARMS / len(series))
        if by is not None and by >= _MIN_RISE.get(name, _MIN_MEMORY_RISE):
            found.append(f"{name} {by:+.0%}")
    return f"rising at the same load: {', '.join(found)}" if found else None


def _memory(stage: StageRecord, gpus: Collection[int]) -> Iterator[tuple[str, Sequence[float]]]:
    if stage.metrics.window is None:
        return
    samples, (start_s, end_s) = stage.hardware_samples, stage.metrics.window
    resident = [one.server_rss_bytes for one in samples.host if start_s <= one.t_s <= end_s]
    yield "server memory", means([value for value in resident if value is not None])
    for index, looks in samples.within(start_s, end_s).items():
        if index in gpus:
            used = [look.hbm_used_bytes for look in looks]
            yield f"HBM of gpu {index}", means([value for value in used if value is not None])
