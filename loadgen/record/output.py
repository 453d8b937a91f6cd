"""Whether the output under a load is right: what canaries found, and whether the load's own answers are degenerate.

Canaries under load are compared with earlier idle answers of the same server; a restarted server gets new idle
answers. Only sums and test statistics are kept: an hour takes no more memory than a minute.

Random tokens may lead even a healthy model astray, so degenerate answers count only if they are more than in another
stage or on another server with the same lengths, or if one kind of flaw is in more than `HEALTHY_SHARE` of them. Both
are tests at `DOUBT`: a healthy run that samples four answers a second and has one other stage is wrongly accused less
than once in 100 hours, however often it is checked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.format import counted, plain, significant
from loadgen.metrics.difference import chance_of_misses, chance_of_rise
from loadgen.metrics.sequential import (
    FALSE_ALARMS,
    AnswerDrift,
    ScoreDrift,
    agreement,
    least_drift,
    noise_at_most,
    share_of_alarms,
)
from loadgen.record.stage import StageRecord
from loadgen.schema.engine import EngineView
from loadgen.schema.finding import Verdict
from loadgen.schema.journal import CanaryMeasured, ReferenceDisturbed
from loadgen.schema.output import (
    Answers,
    CanaryCount,
    CanaryResult,
    CanaryStage,
    GreedyAnswer,
    ScoredText,
    ScoreMethod,
)

MAX_PERPLEXITY = 1000.0
"""No trained model has a higher perplexity on plain text in a language it knows; an untrained one has that of its whole
vocabulary."""
DOUBT = 1e-7
HEALTHY_SHARE = 0.25
MORE_UNENDING = 0.5
"""How much larger the share of length-limited answers must be: a short stage sees fewer of the long answers."""
_MIN_SCORES = 3  # for a verdict on perplexity
_PROBLEMS_KEPT = 20
_EARLY = 0.25  # of an answer
_NOISY = 0.1  # nats per token: if the smallest detectable drift exceeds this, the result says so
_AFTER = -1  # in place of a stage's index
_COUNTS = ("sent", "failed", "input_tokens", "output_tokens")
_FLAWS = {"repeating": "repeat themselves", "unreadable": "are not readable", "blank": "are blank"}


class _Reference(msgspec.Struct):
    """What one server answered while it was idle before a load, and how its later answers compare."""

    scores: dict[str, list[float]] = {}  # idle, by text
    texts: dict[str, ScoredText] = {}
    unscored: int = 0  # tokens of the texts without a score, apart from the first of each
    replies: dict[str, list[str]] = {}  # idle, by prompt
    answers: dict[str, GreedyAnswer] = {}
    others: float = 0.0  # the most requests of others while it should have been idle
    loaded: bool = False  # it has had a load since

    @property
    def noise(self) -> tuple[float, int]:
        """The standard deviation of idle scores around the mean of their text, and its degrees of freedom."""
        squares = sum((score - fmean(scores)) ** 2 for scores in self.scores.values() for score in scores)
        freedom = sum(len(scores) - 1 for scores in self.scores.values())
        return (math.sqrt(squares / freedom) if freedom else 0.0), freedom

    def least_drift(self, texts: int) -> float:
        """The smallest drift that noise does not explain, if there are so many texts on all servers."""
        repeats = min(map(len, self.scores.values()), default=1)
        return least_drift(noise_at_most(*self.noise), repeats, texts)

    def add_score(self, line: CanaryMeasured, score: float) -> None:
        if line.name not in self.texts:
            self.unscored += max(0, line.input_tokens - 1 - line.scored_tokens)
        idle = self.scores.setdefault(line.name, [])
        idle.append(score)
        self.texts[line.name] = ScoredText(
            name=line.name,
            instance=line.instance,
            tokens=line.scored_tokens,
            idle=fmean(idle),
            idle_scores=len(idle),
            idle_spread=max(idle) - min(idle),
        )

    def add_reply(self, line: CanaryMeasured, reply: str) -> None:
        idle = self.replies.setdefault(line.name, [])
        idle.append(reply)
        agreements = [agreement(idle[0], other)[0] for other in idle[1:]]
        self.answers[line.name] = GreedyAnswer(line.name, line.instance, idle[0], min(agreements, default=None))


class _Tally(msgspec.Struct):
    """One server's canaries in a stage."""

    sent: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    scores: int = 0
    score: float = 0.0  # summed, like the next
    drift: float = 0.0
    compared: int = 0
    answers: int = 0
    same: int = 0
    changed: int = 0  # early
    agreement: float = 0.0  # summed
    first_difference: int | None = None
    score_test: ScoreDrift | None = None
    answer_test: AnswerDrift = msgspec.field(default_factory=AnswerDrift)


class CanaryRecord:
    """The canaries of a run, up to the last line of its journal."""

    def __init__(self) -> None:
        self._references: dict[int, _Reference] = {}  # by server
        self._tallies: dict[int | None, dict[int, _Tally]] = {}  # by stage and server; None: in none
        self._method: ScoreMethod | None = None
        self._problems: dict[str, int] = {}

    def apply(self, line: CanaryMeasured) -> None:
        reference = self._reference(line.instance, idle=line.when == "before")
        stage = {"before": None, "load": line.index, "after": _AFTER}[line.when]
        tally = self._tallies.setdefault(stage, {}).setdefault(line.instance, _Tally())
        add = self._scored if line.kind == "score" else self._answered
        problem = line.problem or add(line, reference, tally, compares=stage is not None)
        if problem and (problem in self._problems or len(self._problems) < _PROBLEMS_KEPT):
            self._problems[problem] = self._problems.get(problem, 0) + 1
        tally.sent += 1
        tally.failed += bool(problem)
        tally.input_tokens += line.input_tokens
        tally.output_tokens += line.output_tokens

    def disturbed(self, line: ReferenceDisturbed) -> None:
        reference = self._reference(line.instance, idle=True)
        reference.others = max(line.others, reference.others)

    def _reference(self, instance: int, *, idle: bool) -> _Reference:
        """A server's idle answers; new ones if it is idle again before a load, that is after a restart."""
        reference = self._references.get(instance)
        if reference is None or (idle and reference.loaded):
            reference = self._references[instance] = _Reference()
        reference.loaded |= not idle
        return reference

    def _scored(self, line: CanaryMeasured, reference: _Reference, tally: _Tally, *, compares: bool) -> str:
        """Add a score; returns why it is unusable, if it is."""
        if line.score is None:
            return "no score"
        self._method = line.method
        text = reference.texts.get(line.name)
        if text is not None and text.tokens != line.scored_tokens:
            return f"{line.scored_tokens} tokens of {line.name} were scored, {text.tokens} when it was idle"
        if line.when == "before":
            reference.add_score(line, line.score)
        if not compares:
            return ""
        tally.scores += 1
        tally.score += line.score
        if text is None:
            return ""
        if line.when == "after":
            reference.texts[line.name] = replace(text, after=line.score)
        else:
            count = text.load_scores + 1
            load = ((text.load or 0.0) * text.load_scores + line.score) / count
            reference.texts[line.name] = replace(text, load=load, load_scores=count)
        difference = line.score - text.idle
        tally.drift += difference
        tally.compared += 1
        if tally.score_test is None:
            noise = noise_at_most(*reference.noise)
            tally.score_test = ScoreDrift(noise, reference.least_drift(len(self._texts)))
        tally.score_test.add(difference)
        return ""

    def _answered(self, line: CanaryMeasured, reference: _Reference, tally: _Tally, *, compares: bool) -> str:
        """Add a greedy answer; returns why it is unusable, if it is."""
        if line.answer is None:
            return "no answer"
        if line.when == "before":
            reference.add_reply(line, line.answer)
        known = reference.answers.get(line.name)
        if known is None or not compares:
            return ""
        found = (agreement(idle, line.answer) for idle in reference.replies[line.name])
        share, at = max(found, key=lambda each: each[0])
        if line.when == "after":
            known = replace(known, after_agreement=share)
        else:
            known = replace(
                known,
                answers=known.answers + 1,
                same=known.same + (at is None),
                first_difference=_first(known.first_difference, at),
            )
        reference.answers[line.name] = known
        tally.answers += 1
        tally.same += at is None
        tally.changed += share < _EARLY
        tally.agreement += share
        tally.first_difference = _first(tally.first_difference, at)
        if _is_steady(known):
            tally.answer_test.add(changed=share < _EARLY)
        return ""

    # Results.

    @property
    def _texts(self) -> list[ScoredText]:
        return [text for reference in self._references.values() for text in reference.texts.values()]

    @property
    def _answers(self) -> list[GreedyAnswer]:
        return [answer for reference in self._references.values() for answer in reference.answers.values()]

    @property
    def _idle_mean(self) -> float | None:
        """The mean idle score over all texts, with equal weights."""
        return fmean(text.idle for text in self._texts) if self._texts else None

    def stage(self, index: int, load_requests: int) -> CanaryStage | None:
        """Canaries under a stage's load, which had `load_requests` of its own; None if there were none."""
        if index not in self._tallies:
            return None
        tallies = self._tallies[index].values()
        names = ("scores", "drift", "compared", "answers", "same", "agreement")
        total: dict[str, Any] = {name: sum(getattr(each, name) for each in tallies) for name in names}
        drift = total["drift"] / total["compared"] if total["compared"] else None
        idle = self._idle_mean
        return CanaryStage(
            **_count(tallies, load_requests),
            scores=total["scores"],
            drift=drift,
            perplexity=None if drift is None or idle is None else _perplexity(idle + drift),
            answers=total["answers"],
            same=total["same"],
            agreement=total["agreement"] / total["answers"] if total["answers"] else None,
            first_difference=_first(*(each.first_difference for each in tallies)),
        )

    def stage_verdicts(self, index: int) -> list[Verdict]:
        return list(self._verdicts(index, f"stage {index + 1}", "under load"))

    def run_verdicts(self) -> list[Verdict]:
        """Verdicts on the output of the engine once it is idle again."""
        return list(self._verdicts(_AFTER, "output", "after the load"))

    def _verdicts(self, stage: int, subject: str, when: str) -> Iterator[Verdict]:
        if stage not in self._tallies:
            return
        several = sum(bool(each.scores or each.replies) for each in self._references.values()) > 1
        # In order of appearance; what comes after the load is the first.
        number = [_AFTER, *(index for index in self._tallies if index not in (None, _AFTER))].index(stage)
        for instance, tally in sorted(self._tallies[stage].items()):
            where = f"server {instance + 1}: " if several else ""
            words = self._drift_words(instance, tally, share_of_alarms(number, instance))
            if words:
                yield Verdict("output-drift", subject, f"{where}wrong output {when}: {words}")
            perplexity = _perplexity(tally.score / tally.scores) if tally.scores >= _MIN_SCORES else 0.0
            if perplexity > MAX_PERPLEXITY:
                text = (
                    f"broken output {when}: plain text has a perplexity of {perplexity:,.0f}, with no trained model "
                    f"more than {MAX_PERPLEXITY:,.0f}; weights, their scales or a kernel are wrong"
                )
                yield Verdict("output-broken", subject, f"{where}{text}")

    def _drift_words(self, instance: int, tally: _Tally, false_alarms: float) -> str:
        found, reference = [], self._references[instance]
        idle = "the reference taken while others used the server" if reference.others else "the idle one"
        if tally.score_test is not None and tally.score_test.is_enough(false_alarms):
            drift = tally.drift / tally.compared
            side, noise = "below" if drift < 0 else "above", significant(reference.least_drift(len(self._texts)))
            found.append(
                f"{counted(tally.compared, 'score')} {significant(abs(drift))} nats a token {side} {idle}, of "
                f"which noise explains {noise}: perplexity x{significant(_perplexity(drift))}"
            )
        if tally.answer_test.is_enough(false_alarms):
            of = counted(tally.answers, "greedy answer")
            found.append(f"{tally.changed} of {of} leave {idle} within its first quarter")
        return "; ".join(found)

    @property
    def sent(self) -> int:
        return sum(tally.sent for tallies in self._tallies.values() for tally in tallies.values())

    def result(self, load_requests: int) -> CanaryResult | None:
        """The canaries of the run, whose load had `load_requests`; None if there were none."""
        tallies = [tally for of_stage in self._tallies.values() for tally in of_stage.values()]
        if not tallies:
            return None
        idle, texts = self._idle_mean, self._texts
        scored = [reference for reference in self._references.values() if reference.texts]
        noises = [reference.noise for reference in scored]
        return CanaryResult(
            method=self._method,
            texts=tuple(texts),
            answers=tuple(self._answers),
            perplexity=None if idle is None else _perplexity(idle),
            noise=max((noise for noise, freedom in noises if freedom), default=None),
            least_drift=max((reference.least_drift(len(texts)) for reference in scored), default=None),
            false_alarms=FALSE_ALARMS,
            requests=CanaryCount(**_count(tallies, load_requests)),
            unchecked=tuple(self._unchecked()),
        )

    def _unchecked(self) -> Iterator[str]:
        texts, answers, references = self._texts, self._answers, sorted(self._references.items())
        if not texts:
            yield "no text was scored while the engine was idle: drift of scores"
        if not answers:
            yield "no greedy answer came while the engine was idle: changed answers"
        for instance, reference in references:
            if reference.others:
                yield (
                    f"server {instance + 1} was not idle before the load, others had "
                    f"{counted(round(reference.others), 'request')} on it: what differs is against that, and not "
                    "against an idle engine"
                )
        for instance, reference in references:
            least = reference.least_drift(len(texts))
            if reference.texts and least > _NOISY:
                yield (
                    f"idle scores of server {instance + 1} differ by themselves: a drift below {significant(least)} "
                    "nats a token"
                )
        unscored = sum(reference.unscored for _, reference in references)
        if unscored:
            yield f"the endpoint scores only some tokens: {unscored:,} of the texts"
        for answer in answers:
            if not _is_steady(answer):
                where = f"server {answer.instance + 1} to `{answer.name}`"
                yield f"idle answers of {where} differ at once: whether they change"
        for problem, count in self._problems.items():
            yield f"{problem} ({count:,} canaries)" if count > 1 else problem


def _is_steady(answer: GreedyAnswer) -> bool:
    """Whether the idle engine repeats this answer, except for late near ties."""
    return answer.idle_agreement is None or answer.idle_agreement >= _EARLY


def _first(*characters: int | None) -> int | None:
    return min((each for each in characters if each is not None), default=None)


def _perplexity(mean: float) -> float:
    return math.exp(min(-mean, 99.0))


def _count(tallies: Iterable[_Tally], load_requests: int) -> dict[str, Any]:
    """The fields of a `CanaryCount`."""
    counts = {name: sum(getattr(tally, name) for tally in tallies) for name in _COUNTS}
    return counts | {"share": counts["sent"] / (counts["sent"] + load_requests)}


# The load's own answers.


def answer_verdicts(
    stage: StageRecord, stages: Iterable[StageRecord], urls: Sequence[str], now: EngineView | None = None
) -> Iterator[Verdict]:
    """Verdicts on the answers of a stage, compared with others of its run; `urls` if there are several servers.

    While the stage runs, `now` has its engine's counts.
    """
    lengths = (stage.started.isl, stage.started.osl)
    others = [one for one in stages if one is not stage and (one.started.isl, one.started.osl) == lengths]
    parts = dict(zip(map(plain, urls), stage.parts, strict=False))
    found = {}
    for url, part in parts.items():
        siblings = {other: one.answers for other, one in parts.items() if other != url}
        found[url] = degenerate(part.answers, siblings, part.answer_blocks.values())
    accused = {f"{url}: ": words for url, words in found.items() if words}
    if len(accused) in (0, len(parts)):
        # Built only if it is needed: a run may have hundreds of other stages, and this runs at each tick.
        elsewhere = {one.subject: one.answers for one in others} if stage.answers.flawed else {}
        words = degenerate(stage.answers, elsewhere, stage.answer_blocks.values())
        accused = {"": words} if words else accused
    yield from (Verdict("output-degenerate", stage.subject, f"{where}{words}") for where, words in accused.items())
    finished = stage.finished if stage.engine is not None else (now or EngineView()).finished
    unending = _unending(finished, others)
    if unending is not None:
        yield Verdict("output-degenerate", stage.subject, unending)


def degenerate(whole: Answers, elsewhere: Mapping[str, Answers], blocks: Collection[Answers] = ()) -> str | None:
    """A message if too many answers are degenerate; None if not, or if too few were sampled.

    They are tested together and block by block, so that a fault that begins after an hour is found at once.
    """
    if not whole.flawed:
        return None
    found = _degenerate(whole, elsewhere)
    for block in blocks if len(blocks) > 1 else ():
        if found is not None:
            break
        rest = Answers(whole.read - block.read, {"any": whole.flawed - block.flawed})
        found = _degenerate(block, {"the rest of the stage": rest})
    return found


def _degenerate(own: Answers, elsewhere: Mapping[str, Answers]) -> str | None:
    same = max(own.degenerate.get("unreadable", 0), own.degenerate.get("blank", 0), *own.loops.values(), 0)
    if same > HEALTHY_SHARE * own.read and chance_of_misses(same, own.read, HEALTHY_SHARE) < DOUBT:
        return _words(own)
    for where, other in elsewhere.items():
        if chance_of_rise(own.flawed, own.read, other.flawed, other.read) < DOUBT:
            return f"{_words(own)}; {where}: {other.flawed} of {other.read}"
    return None


def _words(own: Answers) -> str:
    kinds = sorted(own.degenerate, key=lambda kind: -own.degenerate[kind])
    words = ", ".join(_FLAWS.get(kind, kind) for kind in kinds)
    loop = max(own.loops, key=lambda text: own.loops[text], default="")
    often = f" ({plain(loop)!r} over and over)" if loop else ""
    return f"degenerate text: {own.flawed} of {counted(own.read, 'answer')} {words}{often}"


def _unending(finished: Mapping[str, int], others: Iterable[StageRecord]) -> str | None:
    """A message if more answers hit their length limit than in another stage, by the engine's counts."""
    cut, ended = _cut(finished)
    if not ended or cut / ended < MORE_UNENDING:
        return None
    for one in others:
        other_cut, other_ended = _cut(one.finished)
        more = bool(other_ended) and cut / ended >= other_cut / other_ended + MORE_UNENDING
        if more and chance_of_rise(cut, ended, other_cut, other_ended) < DOUBT:
            where = f"in {one.subject} {other_cut} of {other_ended}"
            return f"answers do not end: {cut} of {ended} ran into their limit, {where}"
    return None


def _cut(finished: Mapping[str, int]) -> tuple[int, int]:
    """How many answers ended at their length limit, and how many ended either there or by themselves."""
    cut = finished.get("length", 0)
    return cut, cut + finished.get("stop", 0)
