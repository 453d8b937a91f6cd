"""The fold of a run's canaries: the engine's output when idle, under each load, and when idle again.

Canaries beside a load are compared with earlier idle answers of the same server; a restarted server gets new idle
answers. Only sums and test statistics are kept: an hour takes no more memory than a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import msgspec

from loadgen.format import counted, significant
from loadgen.metrics.drift import (
    FALSE_ALARMS,
    AnswerDrift,
    ScoreDrift,
    least_drift,
    noise_at_most,
    share_of_alarms,
)
from loadgen.schema.canary import CanaryCount, CanaryResult, CanaryStage, GreedyAnswer, ScoredText, ScoreMethod
from loadgen.schema.journal import CanaryMeasured, ReferenceDisturbed
from loadgen.schema.result import Verdict

MAX_PERPLEXITY = 1000.0
"""No trained model has a higher perplexity on plain text in a language it knows; an untrained one has that of its whole
vocabulary."""
_MIN_SCORES = 3  # for a verdict on perplexity
_PROBLEMS_KEPT = 20
_EARLY = 0.25  # of an answer
_NOISY = 0.1  # nats per token: if the smallest detectable drift exceeds this, the result says so


class _Text(msgspec.Struct):
    tokens: int  # with a score
    unscored: int  # the first has none in any text
    idle: list[float] = msgspec.field(default_factory=list)
    load: float = 0.0  # summed over its scores
    load_scores: int = 0
    after: float | None = None


class _Prompt(msgspec.Struct):
    idle: list[str]
    answers: int = 0
    same: int = 0
    first_difference: int | None = None
    after_agreement: float | None = None

    @property
    def is_steady(self) -> bool:
        """Whether the idle engine repeats this answer, except for late near ties."""
        return all(agreement(self.idle[0], other)[0] >= _EARLY for other in self.idle)


class _Part(msgspec.Struct):
    """One server's canaries in a stage."""

    scores: int = 0
    log_probability: float = 0.0  # summed, like the next
    drift: float = 0.0
    compared: int = 0
    answers: int = 0
    changed: int = 0
    of_scores: ScoreDrift | None = None
    of_answers: AnswerDrift = msgspec.field(default_factory=AnswerDrift)


class _Count(msgspec.Struct):
    sent: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, line: CanaryMeasured, *, failed: bool) -> None:
        self.sent += 1
        self.failed += failed
        self.input_tokens += line.input_tokens
        self.output_tokens += line.output_tokens


class _Stage(msgspec.Struct):
    number: int  # position among the stages that had canaries
    count: _Count = msgspec.field(default_factory=_Count)
    same: int = 0
    agreement: float = 0.0
    first_difference: int | None = None
    parts: dict[int, _Part] = msgspec.field(default_factory=dict)


class CanaryRecord:
    """The canaries of a run, up to the last line of its journal."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, str], _Text] = {}
        self._prompts: dict[tuple[int, str], _Prompt] = {}
        self._stages: dict[int, _Stage] = {}
        self._after = _Stage(number=0)
        self._total = _Count()
        self._method: ScoreMethod | None = None
        self._problems: dict[str, int] = {}
        self._loaded: set[int] = set()  # servers that have had a load
        self._noise: dict[int, float] = {}  # upper bound, by server
        self._disturbed: dict[int, float] = {}  # by server: the most requests of others before the load

    def apply(self, line: CanaryMeasured) -> None:
        if line.when == "before":
            self._begin_reference(line.instance)
        else:
            self._loaded.add(line.instance)
        stage = self._stage_of(line)
        problem = line.problem or (self._scored(line, stage) if line.kind == "score" else self._answered(line, stage))
        if problem and (problem in self._problems or len(self._problems) < _PROBLEMS_KEPT):
            self._problems[problem] = self._problems.get(problem, 0) + 1
        self._total.add(line, failed=bool(problem))
        if stage is not None:
            stage.count.add(line, failed=bool(problem))

    def disturbed(self, line: ReferenceDisturbed) -> None:
        self._begin_reference(line.instance)
        self._disturbed[line.instance] = max(line.others, self._disturbed.get(line.instance, 0.0))

    def _begin_reference(self, instance: int) -> None:
        """Drop a server's idle answers, which no longer apply once it was restarted after a load."""
        if instance not in self._loaded:
            return
        self._loaded.remove(instance)
        self._disturbed.pop(instance, None)
        self._noise.pop(instance, None)
        self._texts = {key: text for key, text in self._texts.items() if key[0] != instance}
        self._prompts = {key: prompt for key, prompt in self._prompts.items() if key[0] != instance}

    def _stage_of(self, line: CanaryMeasured) -> _Stage | None:
        if line.when == "after":
            return self._after
        if line.when == "before" or line.index is None:
            return None
        return self._stages.setdefault(line.index, _Stage(number=len(self._stages) + 1))

    def _scored(self, line: CanaryMeasured, stage: _Stage | None) -> str:
        """Add a score; returns why it is unusable, if it is."""
        if line.score is None:
            return "no score"
        self._method = line.method
        key = line.instance, line.name
        text = self._texts.get(key)
        if text is not None and text.tokens != line.scored_tokens:
            return f"{line.scored_tokens} tokens of {line.name} were scored, {text.tokens} when it was idle"
        if line.when == "before":
            unscored = max(0, line.input_tokens - 1 - line.scored_tokens)
            self._texts.setdefault(key, _Text(line.scored_tokens, unscored)).idle.append(line.score)
        if stage is None:
            return ""
        part = stage.parts.setdefault(line.instance, _Part())
        part.scores += 1
        part.log_probability += line.score
        if text is not None:
            self._compare(line, text, part)
        return ""

    def _compare(self, line: CanaryMeasured, text: _Text, part: _Part) -> None:
        assert line.score is not None
        if line.when == "after":
            text.after = line.score
        else:
            text.load += line.score
            text.load_scores += 1
        difference = line.score - fmean(text.idle)
        part.drift += difference
        part.compared += 1
        if part.of_scores is None:
            part.of_scores = ScoreDrift(self._noise_of(line.instance), self._least(line.instance))
        part.of_scores.add(difference)

    def _answered(self, line: CanaryMeasured, stage: _Stage | None) -> str:
        """Add a greedy answer; returns why it is unusable, if it is."""
        if line.answer is None:
            return "no answer"
        key = line.instance, line.name
        prompt = self._prompts.get(key)
        if line.when == "before":
            self._prompts.setdefault(key, _Prompt([])).idle.append(line.answer)
        elif prompt is not None and stage is not None:
            share, at = max((agreement(idle, line.answer) for idle in prompt.idle), key=lambda found: found[0])
            if line.when == "after":
                prompt.after_agreement = share
            else:
                prompt.answers += 1
                prompt.same += at is None
                prompt.first_difference = _first(prompt.first_difference, at)
            part = stage.parts.setdefault(line.instance, _Part())
            part.answers += 1
            part.changed += share < _EARLY
            stage.same += at is None
            stage.agreement += share
            stage.first_difference = _first(stage.first_difference, at)
            if prompt.is_steady:
                part.of_answers.add(changed=share < _EARLY)
        return ""

    @property
    def _idle_mean(self) -> float | None:
        """The mean idle score over all texts, with equal weights."""
        known = [fmean(text.idle) for text in self._texts.values() if text.idle]
        return fmean(known) if known else None

    # What is noise.

    def _idle_of(self, instance: int) -> list[list[float]]:
        return [text.idle for (server, _), text in self._texts.items() if server == instance]

    def _noise_of(self, instance: int) -> float:
        """Upper bound of its idle scores' standard deviation; kept once known, before any load."""
        if instance not in self._noise:
            self._noise[instance] = noise_at_most(*_spread(self._idle_of(instance)))
        return self._noise[instance]

    def _least(self, instance: int) -> float:
        idle = self._idle_of(instance)
        repeats = min((len(scores) for scores in idle), default=1)
        return least_drift(self._noise_of(instance), repeats, len(self._texts))

    # Results.

    def stage(self, index: int, load_requests: int) -> CanaryStage | None:
        """Canaries beside a stage's load, which had `load_requests` of its own; None if there were none."""
        stage = self._stages.get(index)
        if stage is None:
            return None
        parts = stage.parts.values()
        scores, compared = sum(part.scores for part in parts), sum(part.compared for part in parts)
        answers = sum(part.answers for part in parts)
        drift = sum(part.drift for part in parts) / compared if compared else None
        idle = self._idle_mean
        return CanaryStage(
            **_fields(stage.count, load_requests),
            scores=scores,
            drift=drift,
            perplexity=None if drift is None or idle is None else _perplexity(idle + drift),
            answers=answers,
            same=stage.same,
            agreement=stage.agreement / answers if answers else None,
            first_difference=stage.first_difference,
        )

    def stage_verdicts(self, index: int) -> list[Verdict]:
        """Verdicts on the output beside the load of a stage."""
        stage = self._stages.get(index)
        return [] if stage is None else list(self._verdicts(stage, f"stage {index + 1}", "beside the load"))

    def run_verdicts(self) -> list[Verdict]:
        """Verdicts on the output of the engine once it is idle again."""
        return list(self._verdicts(self._after, "output", "after the load"))

    def _verdicts(self, stage: _Stage, subject: str, when: str) -> Iterator[Verdict]:
        servers = {instance for instance, _ in (*self._texts, *self._prompts)}
        for instance, part in sorted(stage.parts.items()):
            where = f"server {instance + 1}: " if len(servers) > 1 else ""
            words = self._drift_words(instance, part, share_of_alarms(stage.number, instance))
            if words:
                yield Verdict("output-drift", subject, f"{where}wrong output {when}: {words}")
            perplexity = _perplexity(part.log_probability / part.scores) if part.scores >= _MIN_SCORES else 0.0
            if perplexity > MAX_PERPLEXITY:
                yield Verdict("output-broken", subject, f"{where}{_broken_words(perplexity, when)}")

    def _drift_words(self, instance: int, part: _Part, false_alarms: float) -> str:
        found = []
        reference = "the reference beside others" if instance in self._disturbed else "the idle one"
        if part.of_scores is not None and part.of_scores.is_enough(false_alarms):
            drift = part.drift / part.compared
            side, noise = "below" if drift < 0 else "above", significant(self._least(instance))
            found.append(
                f"{counted(part.compared, 'score')} {significant(abs(drift))} nats a token {side} {reference}, of "
                f"which noise explains {noise}: perplexity x{significant(math.exp(min(-drift, 99.0)))}"
            )
        if part.of_answers.is_enough(false_alarms):
            of = counted(part.answers, "greedy answer")
            found.append(f"{part.changed} of {of} leave {reference} within its first quarter")
        return "; ".join(found)

    @property
    def sent(self) -> int:
        return self._total.sent

    def result(self, load_requests: int) -> CanaryResult | None:
        """The canaries of the run, whose load had `load_requests`; None if there were none."""
        if not self._total.sent:
            return None
        idle = self._idle_mean
        instances = sorted({instance for instance, _ in self._texts})
        spreads = [_spread(self._idle_of(instance)) for instance in instances]
        return CanaryResult(
            method=self._method,
            texts=tuple(_text(*key, text) for key, text in self._texts.items() if text.idle),
            answers=tuple(_answer(*key, prompt) for key, prompt in self._prompts.items()),
            perplexity=None if idle is None else _perplexity(idle),
            noise=max((spread for spread, freedom in spreads if freedom), default=None),
            least_drift=max(map(self._least, instances), default=None),
            false_alarms=FALSE_ALARMS,
            requests=CanaryCount(**_fields(self._total, load_requests)),
            unchecked=tuple(self._unchecked(instances)),
        )

    def _unchecked(self, instances: list[int]) -> Iterator[str]:
        if not self._texts:
            yield "no text was scored while the engine was idle: drift of scores"
        if not self._prompts:
            yield "no greedy answer came while the engine was idle: changed answers"
        for instance, others in self._disturbed.items():
            yield (
                f"server {instance + 1} was not idle before the load, others had {counted(round(others), 'request')} "
                "on it: what differs is against that, and not against an idle engine"
            )
        for instance in instances:
            least = self._least(instance)
            if least > _NOISY:
                yield (
                    f"idle scores of server {instance + 1} differ by themselves: a drift below {significant(least)} "
                    "nats a token"
                )
        unscored = sum(text.unscored for text in self._texts.values())
        if unscored:
            yield f"the endpoint scores only some tokens: {unscored:,} of the texts"
        for (instance, name), prompt in self._prompts.items():
            if not prompt.is_steady:
                yield f"idle answers of server {instance + 1} to `{name}` differ at once: whether they change"
        for problem, count in self._problems.items():
            yield f"{problem} ({count:,} canaries)" if count > 1 else problem


def agreement(one: str, other: str) -> tuple[float, int | None]:
    """The share of two answers before they differ, and the first differing character; None if equal."""
    if one == other:
        return 1.0, None
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return same / max(len(one), len(other)), same


def _first(known: int | None, at: int | None) -> int | None:
    return min((each for each in (known, at) if each is not None), default=None)


def _spread(idle: list[list[float]]) -> tuple[float, int]:
    """The standard deviation of idle scores around the mean of their text, and its degrees of freedom."""
    squares = sum((score - fmean(scores)) ** 2 for scores in idle for score in scores)
    freedom = sum(len(scores) - 1 for scores in idle)
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def _perplexity(mean: float) -> float:
    return math.exp(min(-mean, 99.0))


def _broken_words(perplexity: float, when: str) -> str:
    return (
        f"broken output {when}: plain text has a perplexity of {perplexity:,.0f}, with no trained model more than "
        f"{MAX_PERPLEXITY:,.0f}; weights, their scales or a kernel are wrong"
    )


def _fields(count: _Count, load_requests: int) -> dict[str, Any]:
    return msgspec.structs.asdict(count) | {"share": count.sent / (count.sent + load_requests)}


def _text(instance: int, name: str, text: _Text) -> ScoredText:
    return ScoredText(
        name=name,
        instance=instance,
        tokens=text.tokens,
        idle=fmean(text.idle),
        idle_scores=len(text.idle),
        idle_spread=max(text.idle) - min(text.idle),
        load=text.load / text.load_scores if text.load_scores else None,
        load_scores=text.load_scores,
        after=text.after,
    )


def _answer(instance: int, name: str, prompt: _Prompt) -> GreedyAnswer:
    others = [agreement(prompt.idle[0], other)[0] for other in prompt.idle[1:]]
    return GreedyAnswer(
        name=name,
        instance=instance,
        text=prompt.idle[0],
        idle_agreement=min(others, default=None),
        answers=prompt.answers,
        same=prompt.same,
        first_difference=prompt.first_difference,
        after_agreement=prompt.after_agreement,
    )
