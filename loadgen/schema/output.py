"""Whether the engine's output is right: the results of canaries, requests that are sent during the load.

Canaries are short texts that the engine scores, and fixed prompts that it answers greedily; both have one right result,
given by the idle engine before the load. A score is the mean log probability of a text's tokens, in nats per token. No
canary is in any figure of the load. A sample of the load's own answers is checked as well (`Answers`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.schema.bounds import Whole

CanaryKind = Literal["score", "greedy"]
CanaryMoment = Literal["before", "load", "after"]
"""Idle before the load, under it, and idle again after it."""
ScoreMethod = Literal["prompt_logprobs", "echo", "chat"]
"""`prompt_logprobs` of a completion, `echo` with `logprobs`, or `prompt_logprobs` of a chat, with its template."""
CANARY_ID = "vramp-canary-"
"""The beginning of each canary's `X-Request-Id`, by which server logs and the simulator recognise it."""


class CanaryCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Canaries that were sent, and what they cost the engine."""

    sent: Whole = 0
    failed: Whole = 0  # refused, broken off, or with an unusable answer
    input_tokens: Whole = 0
    output_tokens: Whole = 0
    share: float | None = None  # of all requests, the load's too


class CanaryStage(CanaryCount, frozen=True):
    """The output under load, compared with the idle engine's."""

    scores: Whole = 0
    drift: float | None = None  # mean of score minus idle score of the same text, in nats per token
    perplexity: float | None = None  # over all texts: the idle one, shifted by the drift
    answers: Whole = 0  # greedy ones
    same: Whole = 0  # equal to the idle engine's
    agreement: float | None = None  # mean share of an answer before it differs from the idle one
    first_difference: Whole | None = None  # the earliest, in characters; None if all are equal


class ScoredText(msgspec.Struct, frozen=True):
    """One text on one server."""

    name: str
    instance: Whole
    tokens: Whole  # that were scored; the first of a text has no score
    idle: float  # mean of the idle scores before the load, in nats a token
    idle_scores: Whole
    idle_spread: float  # the largest minus the smallest of them
    load: float | None = None  # mean under load, over all stages
    load_scores: Whole = 0
    after: float | None = None  # idle again


class GreedyAnswer(msgspec.Struct, frozen=True):
    """One prompt on one server, answered at temperature 0."""

    name: str
    instance: Whole
    text: str  # the first idle answer
    idle_agreement: float | None = None  # share of it before another idle answer differs; None if there is no other
    answers: Whole = 0  # under load
    same: Whole = 0
    first_difference: Whole | None = None  # in characters
    after_agreement: float | None = None


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a run's canaries."""

    method: ScoreMethod | None  # None if the endpoint returns no scores
    texts: tuple[ScoredText, ...] = ()
    answers: tuple[GreedyAnswer, ...] = ()
    perplexity: float | None = None  # of the idle engine, over all texts
    noise: float | None = None  # standard deviation of repeated idle scores, in nats a token
    least_drift: float | None = None
    """The smallest drift that is distinguishable from noise, in nats per token: `output-drift` is never less."""
    false_alarms: float = 0.0
    """Upper bound of the probability that a healthy engine's run, however long, gets an `output-drift`."""
    requests: CanaryCount = CanaryCount()
    unchecked: tuple[str, ...] = ()  # what could not be checked, and why


class Answers(msgspec.Struct, frozen=True):
    """A sample of the load's answers, whose beginnings were checked for degenerate text."""

    read: Whole
    degenerate: dict[str, Whole] = {}  # by kind: `repeating`, `unreadable` (replacement characters), `blank`
    loops: dict[str, Whole] = {}  # repeated texts with counts, the most frequent

    @property
    def flawed(self) -> int:
        return sum(self.degenerate.values())
