"""Whether a stage's answers are degenerate: more of them than any healthy engine writes, or than elsewhere in the run.

Random tokens may lead even a healthy model astray, so what counts is a rise over another stage or server with the same
lengths, or one kind of flaw in more than `HEALTHY_SHARE` of the answers. Both are tests at `DOUBT`: a healthy run that
samples four answers a second and has one other stage is wrongly accused less than once in 100 hours, however often it
is checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from loadgen.format import counted, plain
from loadgen.metrics.difference import chance_of_misses
from loadgen.record.stage import StageRecord
from loadgen.schema.canary import Answers
from loadgen.schema.engine import EngineView
from loadgen.schema.result import Verdict

DOUBT = 1e-7
HEALTHY_SHARE = 0.25
MORE_UNENDING = 0.5
"""How much larger the share of length-limited answers must be: a short stage sees fewer of the long answers."""
_LOOPS_KEPT = 3
_WORDS = {"repeating": "repeat themselves", "unreadable": "are not readable", "blank": "are blank"}


def kept(answers: Answers) -> Answers | None:
    """The part kept in a result; None if no answer was sampled."""
    loops = Counter(answers.loops).most_common(_LOOPS_KEPT)
    return Answers(answers.read, dict(answers.degenerate), dict(loops)) if answers.read else None


def answer_verdicts(
    stage: StageRecord, stages: Iterable[StageRecord], urls: Sequence[str], now: EngineView | None = None
) -> Iterator[Verdict]:
    """Verdicts on the answers of a stage, compared with others of its run; `urls` if there are several servers.

    While the stage runs, `now` has its engine's counts.
    """
    lengths = (stage.started.isl, stage.started.osl)
    others = [one for one in stages if one is not stage and (one.started.isl, one.started.osl) == lengths]
    parts = dict(zip(urls, stage.parts, strict=False))
    found = {}
    for url, part in parts.items():
        siblings = {plain(other): one.answers for other, one in parts.items() if other != url}
        found[url] = degenerate(part.answers, siblings, part.answer_blocks.values())
    accused = {f"{plain(url)}: ": words for url, words in found.items() if words}
    if len(accused) in (0, len(parts)):
        # Built only if it is needed: a run may have hundreds of other stages, and this runs at each tick.
        elsewhere = {one.subject: one.answers for one in others} if stage.answers.degenerate else {}
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
    if not whole.degenerate:
        return None
    found = _degenerate(whole, {where: (_flawed(other), other.read) for where, other in elsewhere.items()})
    if found is not None or len(blocks) < 2:
        return found
    flawed = _flawed(whole)
    for block in blocks:
        found = _degenerate(block, {"the rest of the stage": (flawed - _flawed(block), whole.read - block.read)})
        if found is not None:
            return found
    return None


def _degenerate(own: Answers, elsewhere: Mapping[str, tuple[int, int]]) -> str | None:
    flawed, read = _flawed(own), own.read
    same = max(own.degenerate.get("unreadable", 0), own.degenerate.get("blank", 0), *own.loops.values(), 0)
    if same > HEALTHY_SHARE * read and chance_of_misses(same, read, HEALTHY_SHARE) < DOUBT:
        return _words(own)
    for where, (other_flawed, other_read) in elsewhere.items():
        if chance_of_rise(flawed, read, other_flawed, other_read) < DOUBT:
            return f"{_words(own)}; {where}: {other_flawed} of {other_read}"
    return None


def _flawed(answers: Answers) -> int:
    return sum(answers.degenerate.values())


def chance_of_rise(bad: int, read: int, other_bad: int, other_read: int) -> float:
    """The probability that `bad` or more of all flawed answers are ours, if both have the same share (Fisher)."""
    if bad * other_read <= other_bad * read:
        return 1.0
    flawed, everything = bad + other_bad, read + other_read
    most = min(flawed, read)
    term = math.exp(_ways(flawed, bad) + _ways(everything - flawed, read - bad) - _ways(everything, read))
    total = 0.0
    for count in range(bad, most + 1):
        total += term
        term *= (flawed - count) * (read - count) / ((count + 1) * (everything - flawed - read + count + 1))
    return min(1.0, total)


def _ways(count: int, chosen: int) -> float:
    """The logarithm of the binomial coefficient."""
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def _words(own: Answers) -> str:
    kinds = sorted(own.degenerate, key=lambda kind: -own.degenerate[kind])
    words = ", ".join(_WORDS.get(kind, kind) for kind in kinds)
    loop = max(own.loops, key=lambda text: own.loops[text], default="")
    often = f" ({plain(loop)!r} over and over)" if loop else ""
    return f"degenerate text: {_flawed(own)} of {counted(own.read, 'answer')} {words}{often}"


def _unending(finished: Mapping[str, int], others: Iterable[StageRecord]) -> str | None:
    """A message if more answers hit their length limit than in another stage, by the engine's counts."""
    own = _cut(finished)
    if own is None or own[0] / own[1] < MORE_UNENDING:
        return None
    for one in others:
        other = _cut(one.finished)
        if other is None or own[0] / own[1] < other[0] / other[1] + MORE_UNENDING:
            continue
        if chance_of_rise(*own, *other) < DOUBT:
            where = f"in {one.subject} {other[0]} of {other[1]}"
            return f"answers do not end: {own[0]} of {own[1]} ran into their limit, {where}"
    return None


def _cut(finished: Mapping[str, int]) -> tuple[int, int] | None:
    """How many answers ended at their length limit, and how many ended either there or by themselves."""
    cut, ended = finished.get("length", 0), finished.get("stop", 0)
    return (cut, cut + ended) if cut + ended else None
