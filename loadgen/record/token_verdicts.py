"""Verdicts on a stage's tokens: which figures the server's usage does not support, and answers that are too short."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.format import counted
from loadgen.record.stage import StageRecord
from loadgen.schema.finding import Verdict

MAX_SHORT_SHARE = 0.01  # of the answers; a few may run into the end of the context


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
