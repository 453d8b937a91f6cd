"""Verdicts on a stage's tokens: which figures the server's usage does not support, and answers that are too short."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadgen.format import counted
from loadgen.record.stage import StageRecord
from loadgen.schema.finding import Verdict

MAX_SHORT_SHARE = 0.01  # of the answers; a few may run into the end of the context


def token_verdicts(stage: StageRecord) -> Iterator[Verdict]:
    """Verdicts on the tokens of the streams that completed in a stage."""
    for id, bad, condition in _RULES:
        text = condition(stage)
        if text is not None:
            yield Verdict(id, stage.subject, text, bad=bad)


def _of_completed(stage: StageRecord, count: int) -> str:
    return f"{count:,} of {counted(stage.counters['completed'], 'answer')}"


def _unknown_itl(stage: StageRecord) -> str | None:
    uneven = stage.counters["uneven_streams"]
    if not uneven:
        return None
    return (
        f"ITL is unknown: the events of {counted(uneven, 'answer')} did not carry one token each, and "
        "the server does not say how many (it counts them only at the end); chunk gaps are known"
    )


def _unknown_tpot(stage: StageRecord) -> str | None:
    unknown = stage.counters["unknown_tpot"]
    if not unknown:
        return None
    return (
        f"TPOT is unknown for {_of_completed(stage, unknown)}: the server's usage counts more tokens than can have "
        "been streamed, or falls while the answer grows"
    )


def _hidden(stage: StageRecord) -> str | None:
    hidden, output = stage.counters["hidden_tokens"], stage.counters["output_tokens"]
    if not hidden:
        return None
    return f"{hidden:,} of {output:,} output tokens were never streamed (reasoning): they count in OSL, but in no TPOT"


def _unknown_input(stage: StageRecord) -> str | None:
    unknown = stage.counters["unknown_input"]
    if not unknown:
        return None
    return f"prompt tokens are unknown for {_of_completed(stage, unknown)}: the server's usage does not report them"


def _short(stage: StageRecord) -> str | None:
    counters, completed = stage.counters, stage.counters["completed"]
    short, requested = counters["short_answers"], counters["requested_tokens"]
    if short <= MAX_SHORT_SHARE * completed or counters["counted_by_events"]:
        return None
    return (
        f"{_of_completed(stage, short)} were shorter than asked for, with {counters['output_tokens'] / completed:.1f} "
        f"of {requested / completed:.1f} output tokens on average: the server ignores ignore_eos, or ends answers "
        "early; throughput and E2E are those of the shorter answers"
    )


def _filtered(stage: StageRecord) -> str | None:
    filtered = stage.metrics.finish_reasons.get("content_filter", 0)
    return f"{_of_completed(stage, filtered)} were ended by the server's content filter" if filtered else None


_RULES: tuple[tuple[str, bool, Callable[[StageRecord], str | None]], ...] = (
    ("short-answers", True, _short),
    ("itl-unknown", False, _unknown_itl),
    ("tpot-unknown", False, _unknown_tpot),
    ("hidden-tokens", False, _hidden),
    ("input-unknown", False, _unknown_input),
    ("content-filter", False, _filtered),
)
