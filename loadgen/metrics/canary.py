"""Whether the engine's output is right: what is known of the canaries, requests that are sent beside the load.

Canaries are short texts that the engine scores, and fixed prompts that it answers greedily; both have one right
outcome, which the idle engine gives before the load begins. A score is the mean log probability of a text's tokens, in
nats a token. No canary is in any figure of the load. Of the load's own answers a sample is looked at (`Answers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

CanaryKind = Literal["score", "greedy"]
CanaryMoment = Literal["before", "load", "after"]
"""Idle before the load, beside it, and idle again after it."""
ScoreMethod = Literal["prompt_logprobs", "echo", "chat"]
"""`prompt_logprobs` of a completion, `echo` with `logprobs`, or `prompt_logprobs` of a chat, template and all."""
CANARY_ID = "vramp-canary-"
"""How the `X-Request-Id` of each canary begins, by which a server's log and the simulator's account know it."""


class CanaryCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Canaries that were sent, and what they cost the engine."""

    sent: int = 0
    failed: int = 0  # refused, broken off, or answered with something that says nothing
    input_tokens: int = 0
    output_tokens: int = 0
    share: float | None = None  # of all requests, the load's too


class CanaryTraffic(msgspec.Struct, frozen=True):
    """What canaries made the engine do, which its own figures have and the load's have not."""

    requests: int = 0  # that were answered
    input_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: float = 0.0  # summed, as this process saw it

    def __add__(self, other: CanaryTraffic) -> CanaryTraffic:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return CanaryTraffic(*(one + two for one, two in pairs))


class CanaryStage(CanaryCount, frozen=True):
    """The output beside a load, against the idle engine's."""

    scores: int = 0
    drift: float | None = None  # mean of score less idle score of the same text, in nats a token
    perplexity: float | None = None  # of all texts: the idle one, moved by the drift
    answers: int = 0  # greedy ones
    same: int = 0  # as the idle engine's
    agreement: float | None = None  # mean share of an answer before it differs from the idle one
    first_difference: int | None = None  # the earliest, in characters; None where all are the same


class ScoredText(msgspec.Struct, frozen=True):
    """One text on one server."""

    name: str
    instance: int
    tokens: int  # that were scored; the first of a text has no score
    idle: float  # mean of the idle scores before the load, in nats a token
    idle_scores: int
    idle_spread: float  # the largest less the smallest of them
    load: float | None = None  # mean beside the load, over all stages
    load_scores: int = 0
    after: float | None = None  # idle again


class GreedyAnswer(msgspec.Struct, frozen=True):
    """One prompt on one server, answered at temperature 0."""

    name: str
    instance: int
    text: str  # the first idle answer
    idle_agreement: float | None = None  # share of it before another idle answer differs; None without another
    answers: int = 0  # beside the load
    same: int = 0
    first_difference: int | None = None  # in characters
    after_agreement: float | None = None


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the canaries of a run say of the output."""

    method: ScoreMethod | None  # None where the endpoint scores nothing
    texts: tuple[ScoredText, ...] = ()
    answers: tuple[GreedyAnswer, ...] = ()
    perplexity: float | None = None  # of the idle engine, over all texts
    noise: float | None = None  # standard deviation of repeated idle scores, in nats a token
    least_drift: float | None = None
    """What a drift must exceed to be told from noise, in nats a token: `output-drift` is never less."""
    false_alarms: float = 0.0
    """The most that a run of a healthy engine, however long, is given an `output-drift`: the probability."""
    requests: CanaryCount = CanaryCount()
    unchecked: tuple[str, ...] = ()  # what could not be checked, and why


class Answers(msgspec.Struct):
    """A sample of the answers, whose beginning was looked at for text that no healthy engine writes."""

    read: int
    degenerate: dict[str, int] = {}  # by kind: `repeating`, `unreadable` (replacement characters), `blank`
    loops: dict[str, int] = {}  # the texts that were repeated, and in how many; in a result the most frequent

    def add(self, read: int, degenerate: Mapping[str, int], loops: Mapping[str, int]) -> None:
        self.read += read
        for total, counts in ((self.degenerate, degenerate), (self.loops, loops)):
            for name, count in counts.items():
                total[name] = total.get(name, 0) + count
