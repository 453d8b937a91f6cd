"""From the lines of an acceptance and the results of its runs to its certificate: a pure function, so that it can be
made again and compared.

Every criterion is found by the rule of its figure (`loadgen.criteria`); those that are statistical are then judged
together (`loadgen.metrics.acceptance`). What cannot be known is inconclusive with a reason, never a pass: a client that
was the limit, a stage that was cut short, fewer starts than planned. What a box cannot report is not tested, and said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from loadgen.criteria import EXACT_MATCH, PHASES, WARM_UP_S, PhaseName
from loadgen.format import counted, duration, iso_time, significant
from loadgen.metrics.acceptance import (
    FALSE_FAIL,
    FALSE_PASS,
    MAX_STARTS_NAMED,
    MIN_STARTS,
    MIN_TREND_VALUES,
    Held,
    Level,
    Trial,
    holm,
    level_of,
    of_shares,
    of_trend,
    outcome_of,
    over_starts,
    rate_at_most,
    requests_needed,
    spread_of,
    starts_needed,
    trials_needed,
)
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.sequential import means
from loadgen.metrics.stall import STALLED
from loadgen.profile.values import limit_of
from loadgen.record.demands import LIKE_FIGURES, demand_of, edge_of
from loadgen.record.figures import load_of
from loadgen.record.start import differences
from loadgen.schema.bounds import Columns
from loadgen.schema.certificate import (
    AcceptBegan,
    AcceptLine,
    AcceptResumed,
    BoxIdentity,
    BoxSeen,
    Certificate,
    Counted,
    Criterion,
    Demand,
    FactFound,
    Judged,
    Outcome,
    PhaseBegan,
    PhaseEnded,
    PhaseRecord,
    PhaseState,
    ProbesRun,
    RunMade,
)
from loadgen.schema.deltas import Summary
from loadgen.schema.finding import Verdict
from loadgen.schema.result import Result, StageResult
from loadgen.schema.samples import ProbeResult
from loadgen.schema.start import ServerStart

_SKIPPED = 4
_MIN_TREND_SHARE = 0.9  # of as long again: the first values of a run come late
_NOT_YET = "not measured yet"
_NOT_OVER = "its phase is not over yet"
_LONGER = "a longer burn-in"
_TOO_SHORT = f"runs of {2 * WARM_UP_S / 60:.0f} minutes at least"


@dataclass
class PhaseEvidence:
    """What is known of one phase."""

    began_s: list[float] = field(default_factory=list)
    ended: PhaseEnded | None = None
    runs: list[RunMade] = field(default_factory=list)


@dataclass
class AcceptEvidence:
    """All that an acceptance has left so far."""

    began: AcceptBegan
    results: Mapping[str, Result]
    burn_in_s: float = 0.0
    looks: int = 0  # times that it was judged with new observations of what is a matter of chance
    is_new: bool = False  # there were some since
    last_s: float = 0.0
    version: str = ""
    by: list[str] = field(default_factory=list)  # who ran it
    box: BoxIdentity | None = None
    phases: dict[PhaseName, PhaseEvidence] = field(default_factory=lambda: {name: PhaseEvidence() for name in PHASES})
    facts: list[FactFound] = field(default_factory=list)
    counts: list[Counted] = field(default_factory=list)
    probes: list[ProbeResult] = field(default_factory=list)

    def take(self, line: AcceptLine) -> None:
        self.last_s = line.unix_s
        match line:
            case AcceptBegan() | AcceptResumed():
                self.burn_in_s, self.version = line.burn_in_s, line.vramp_version
                if line.by is not None and line.by not in self.by:
                    self.by.append(line.by)
            case BoxSeen():
                self.box = line.box
            case PhaseBegan():
                self.phases[line.phase].began_s.append(line.unix_s)
                self.phases[line.phase].ended = None
                if line.phase == "box":  # it is looked at again after a boot
                    self.facts = [one for one in self.facts if one.phase != line.phase]
                    self.counts = [one for one in self.counts if one.phase != line.phase]
            case PhaseEnded():
                self.phases[line.phase].ended = line
            case RunMade():
                self.phases[line.phase].runs.append(line)
                result = self.results.get(line.folder)
                # Only these phases measure what is a matter of chance, and only if the server was reached.
                if result is not None and line.phase in ("performance", "burn-in"):
                    self.is_new |= any(stage.requests.sent for stage in result.stages)
            case FactFound():
                self.facts.append(line)
            case Counted():
                self.counts.append(line)
                self.is_new |= line.trials is not None
            case ProbesRun():
                self.probes = list(line.results)
            case Judged():
                self.looks += self.is_new
                self.is_new = False

    def runs(self, *phases: PhaseName) -> Iterator[tuple[RunMade, Result]]:
        """The runs of some phases that have a result, in order."""
        for phase in phases:
            for run in self.phases[phase].runs:
                if run.folder in self.results:
                    yield run, self.results[run.folder]

    def counted(self, demand: Demand) -> list[Counted]:
        return [one for one in self.counts if one.phase == demand.phase and one.figure == demand.figure]


class CriterionEvidence(NamedTuple):
    """What a rule found for one criterion, before all are judged together."""

    reason: str
    outcome: Outcome | None = None  # None: by its trial
    observed: float | str | None = None
    trial: Trial | None = None
    samples: int | None = None
    starts: int = 0
    values: tuple[float, ...] = ()
    requests: tuple[int, ...] = ()  # behind each of them
    details: tuple[str, ...] = ()
    needs: str = ""
    takes: Callable[[Level], str] | None = None  # what it would take, if the trial does not tell


def evidence_of(lines: Iterable[AcceptLine], results: Mapping[str, Result]) -> AcceptEvidence:
    """All that the lines say; the first must be `AcceptBegan`."""
    lines = iter(lines)
    first = next(lines)
    assert isinstance(first, AcceptBegan)
    evidence = AcceptEvidence(first, results)
    evidence.take(first)
    for line in lines:
        evidence.take(line)
    return evidence


def certificate_from(evidence: AcceptEvidence, files: Mapping[str, str]) -> Certificate:
    """The certificate of what is known so far; `files` are the checksums of what it rests on."""
    began = evidence.began
    # Each figure of a tool that has a public criterion for this part.
    figures = [figure for probe in evidence.probes for figure in probe.figures if figure.low is not None]
    lows = {figure.name: (figure.low, figure.source) for figure in figures}
    of_probes = [demand_of(f"probe.{name}", "at_least", low, source) for name, (low, source) in lows.items()]

    found = {demand: _RULES[demand.rule](demand, evidence) for demand in (*began.demands, *of_probes)}
    known = {demand: one for demand, one in found.items() if one.outcome is not None or one.trial is not None}
    untested = [f"{demand.figure}: {one.reason}" for demand, one in found.items() if demand not in known]
    criteria = _judged(known, evidence)
    phases = tuple(_phase(name, evidence, criteria) for name in PHASES if name in began.phases)
    skipped = [f"{phase.name}: {phase.reason}" for phase in phases if phase.state == "skipped"]
    verdict, reasons = _verdict(phases, criteria)
    first = next((result for _, result in evidence.runs(*PHASES)), None)
    return Certificate(
        vramp_version=evidence.version,
        verdict=verdict,
        reasons=reasons,
        by=", ".join(evidence.by) or None,
        box=evidence.box,
        profile=began.name,
        model=None if first is None else first.environment.get("model"),
        started_at=iso_time(began.unix_s),
        finished_at=iso_time(evidence.last_s),
        pass_confidence=1 - FALSE_PASS,
        false_fail=FALSE_FAIL,
        phases=phases,
        criteria=criteria,
        not_tested=(*began.not_tested, *skipped, *dict.fromkeys(untested)),
        like=began.like,
        files=dict(sorted(files.items())),
    )


def _verdict(phases: Sequence[PhaseRecord], criteria: Sequence[Criterion]) -> tuple[Outcome, tuple[str, ...]]:
    """Failed if anything failed; passed if everything that was asked for did, or was skipped."""
    outcomes: tuple[Outcome, ...] = ("fail", "inconclusive")
    for outcome in outcomes:
        # Each reason once, with the criteria that it holds for; then the phases that no criterion speaks for.
        alike: dict[tuple[str, str], list[str]] = {}
        for one in criteria:
            if one.outcome == outcome:
                alike.setdefault((one.demand.phase, one.reason), []).append(title(one.demand))
        reasons = [f"{phase}: {', '.join(names)}: {reason}" for (phase, reason), names in alike.items()]
        explained = {phase for phase, _ in alike}
        reasons += [f"{one.name}: {one.reason}" for one in phases if one.state == outcome and one.name not in explained]
        if reasons:
            return outcome, tuple(reasons)
    if not criteria:
        return "inconclusive", ("nothing was judged",)
    return "pass", (_all_passed(len(criteria)),)


def _all_passed(count: int) -> str:
    few = {1: "its only criterion", 2: "both criteria"}
    return f"{few.get(count, f'all {count} criteria')} passed"


def title(demand: Demand) -> str:
    """A criterion in a few words: `ttft_p99_ms at conc 8, ISL 512, OSL 128`."""
    return f"{demand.figure} at {demand.load}" if demand.load else demand.figure


def _phase(name: PhaseName, evidence: AcceptEvidence, criteria: Sequence[Criterion]) -> PhaseRecord:
    known, own = evidence.phases[name], [one for one in criteria if one.demand.phase == name]
    state, reason = _phase_state(known, own)
    return PhaseRecord(
        name=name,
        state=state,
        reason=reason,
        started_at=iso_time(known.began_s[0]) if known.began_s else None,
        finished_at=iso_time(known.ended.unix_s) if known.ended is not None else None,
        attempts=len(known.began_s),
        runs=tuple(run.folder for run in known.runs),
    )


def _phase_state(known: PhaseEvidence, criteria: Sequence[Criterion]) -> tuple[PhaseState, str]:
    bad = [one for one in criteria if one.outcome == "fail"]
    if bad:
        return "fail", f"{_of_criteria(len(bad), criteria)} failed"
    if known.ended is None:
        return "inconclusive", "it was interrupted" if known.began_s else "it has not begun"
    if known.ended.state == "failed":
        return "fail", known.ended.reason
    if known.ended.state == "skipped":
        return "skipped", known.ended.reason
    unknown = sum(one.outcome == "inconclusive" for one in criteria)
    if unknown:
        return "inconclusive", f"{_of_criteria(unknown, criteria)} {'is' if unknown == 1 else 'are'} inconclusive"
    return "pass", _all_passed(len(criteria)) if criteria else "carried out; nothing was demanded"


def _of_criteria(count: int, criteria: Sequence[Criterion]) -> str:
    return f"{count} of {len(criteria)} {'criterion' if len(criteria) == 1 else 'criteria'}"


def _judged(found: Mapping[Demand, CriterionEvidence], evidence: AcceptEvidence) -> tuple[Criterion, ...]:
    """All criteria, the statistical ones together: those without evidence are among them, as chances yet to come."""
    share = 0.5 if evidence.began.like else 1.0  # other boxes' bounds have spent the other half
    level = level_of(max(1, evidence.looks), fail=FALSE_FAIL * share)
    following = level_of(max(1, evidence.looks) + 1, fail=FALSE_FAIL * share)
    statistical = {demand: one for demand, one in found.items() if demand.rule in _SCALES}
    p_values = [
        1.0 if one.trial is None or one.outcome is not None else one.trial.p_good for one in statistical.values()
    ]
    held = dict(zip(statistical, holm(p_values, level.fail), strict=True))
    return tuple(_criterion(demand, one, held.get(demand), level, following) for demand, one in found.items())


def _criterion(demand: Demand, one: CriterionEvidence, held: Held | None, level: Level, following: Level) -> Criterion:
    found = Criterion(
        demand=demand,
        outcome=one.outcome or "inconclusive",
        reason=one.reason,
        observed=one.observed,
        no_interval=one.reason if one.outcome == "inconclusive" else "it is not a matter of chance",
        details=one.details,
        samples=one.samples,
        starts=one.starts,
        values=one.values,
        requests=one.requests,
        needs=one.needs,
    )
    if one.trial is None or held is None:
        return found

    lowest, highest = _possible(demand)
    low, high = (
        min(highest, max(lowest, _SCALES[demand.rule] * end)) for end in one.trial.ends(held.level, level.not_pass)
    )
    to_fail, to_pass = 1 - held.level, 1 - level.not_pass
    confidences = (to_fail, to_pass) if demand.direction == "at_most" else (to_pass, to_fail)
    outcome = one.outcome or outcome_of(one.trial, held, level)
    return replace(
        found,
        outcome=outcome,
        reason=one.reason if one.outcome else _sentence(demand, outcome, (low, high), confidences),
        no_interval="",
        low=low,
        high=high,
        low_confidence=confidences[0],
        high_confidence=confidences[1],
        spread=one.trial.spread,
        needs=one.needs or (one.takes(following) if one.takes is not None and outcome == "inconclusive" else ""),
    )


_SCALES = {"mean": 1.0, "share": 100.0, "trend": 100.0}
"""The rules that are a matter of chance, and the scale of their trials, which know shares, not percent."""


def _possible(demand: Demand) -> tuple[float, float]:
    """The lowest and the highest value that a figure can have, at which an end of its interval is cut off."""
    if demand.rule == "trend":
        return -100.0, math.inf
    return 0.0, 100.0 if demand.unit == "%" else math.inf


def _sentence(demand: Demand, outcome: Outcome, ends: tuple[float, float], confidences: tuple[float, float]) -> str:
    """The interval, each end with its confidence, and where it lies."""
    edge, is_upper = f"{significant(edge_of(demand))} {demand.unit}".strip(), demand.direction == "at_most"
    low, high = (
        "" if end in _possible(demand) else f" ({100 * confidence:.5g} %)"
        for end, confidence in zip(ends, confidences, strict=True)
    )
    interval = f"{significant(ends[0])}{low} to " + f"{significant(ends[1])} {demand.unit}".strip() + high
    match outcome:
        case "pass":
            return f"{interval}: all {'at most' if is_upper else 'at least'} {edge}"
        case "fail":
            return f"{interval}: all {'above' if is_upper else 'below'} {edge}"
        case _:
            return (
                f"{interval}: {edge} lies within"
                if ends[0] <= edge_of(demand) <= ends[1]
                else f"{interval}: not sure yet"
            )


# The rules.


def _over_starts(demand: Demand, evidence: AcceptEvidence) -> CriterionEvidence:
    values, requests, doubts, remedies = _sound_values(demand, evidence)
    seen = tuple(value for value, _ in values)
    found = CriterionEvidence(
        _NOT_YET,
        observed=fmean(seen) if seen else None,
        trial=_trial(demand, values),
        samples=sum(requests) or None,
        starts=len(seen),
        values=seen,
        requests=tuple(requests),
        takes=lambda level: _more_starts(demand, seen, level),
    )
    # As many as at first: starts that do not count can then be made up for by more.
    planned = max(MIN_STARTS, evidence.began.starts)
    if len(seen) >= planned:
        return found
    why = f": {_common(doubts)}" if doubts else ""
    made = counted(max(planned, len(seen) + len(doubts)), "start")
    reason = f"{len(seen)} of {made} count{why}" if seen or doubts else _NOT_YET
    needs = counted(planned - len(seen), "more start")
    if evidence.began.profile.get("server", {}).get("engine") == "attach":
        needs = "a server that vramp starts, in an acceptance of its own: an attached one has a single start"
    elif not seen and remedies and all(remedies):  # no start that came to its end has it, so that more have none either
        needs = f"{remedies[0]}; more starts alone do not help"
    return found._replace(outcome="inconclusive", reason=reason, needs=needs, details=tuple(doubts.values()))


def _sound_values(
    demand: Demand, evidence: AcceptEvidence
) -> tuple[list[tuple[float, float]], list[int], dict[int, str], list[str]]:
    """The figure at each start that counts, and of how many requests it is; why the others do not count.

    Last, for each of these that came to its end: what would give it the figure, empty if it had it.
    """
    values: list[tuple[float, float]] = []
    requests: list[int] = []
    doubts: dict[int, str] = {}
    remedies: list[str] = []
    for start, stages in stages_by_start(evidence, demand.load).items():
        if not stages:
            doubts[start] = f"start {start}: cut short, or nothing was measured"
            continue
        stage = next((each for each in reversed(stages) if each.doubt is None), stages[-1])
        value = values_of(stage, demand.figure)
        why, remedy = _lack(demand, stage)
        if value is None or why or stage.doubt:
            doubts[start] = f"start {start}: {stage.doubt or why or 'nothing was measured'}"
            remedies.append(remedy)
        else:
            values.append(value)
            requests.append(requests_behind(stage, demand.figure))
    return values, requests, doubts, remedies


def _lack(demand: Demand, stage: StageResult) -> tuple[str, str]:
    """Why a figure does not count in any stage like this one, and what makes it count; empty if it may."""
    if demand.figure == "tokens_per_joule" and stage.energy is None:
        return "no energy was measured", "GPUs whose power is measured (telemetry.mode; vramp doctor)"
    if demand.figure == "goodput_percent" and stage.goodput is None:
        return "no limit of a stream", "a limit of a stream in [slo], such as ttft or tpot"
    count, needed = requests_behind(stage, demand.figure), requests_needed(demand.figure, edge_of(demand))
    if count >= needed:
        return "", ""
    why = f"too few requests: {count:,}, and {demand.figure} takes {needed:,}"
    return why, f"{counted(needed - count, 'more request')} at this load in each start"


def requests_behind(stage: StageResult, figure: str) -> int:
    """How many requests a figure rests on; gaps between tokens of one request are not independent."""
    completed = stage.requests.completed
    if not figure.endswith("_ms"):
        return completed
    summary = stage.latency_ms.get(limit_of(figure.removesuffix("_ms"))[0])
    return 0 if summary is None else min(completed, summary.count)


def _common(doubts: Mapping[int, str]) -> str:
    """The kinds of doubt, each with its starts; the words are in the details."""
    starts: dict[str, list[int]] = {}
    for start, why in doubts.items():
        starts.setdefault(why.partition(":")[2].partition(":")[0].strip(), []).append(start)
    return ", ".join(f"{kind} in {len(of)}" for kind, of in starts.items())


def _trial(demand: Demand, values: Sequence[tuple[float, float]]) -> Trial | None:
    """To fail, a figure is what it was at least; to pass, what it may have been at worst."""
    if len(values) < MIN_STARTS:
        return None
    edge, is_lower = edge_of(demand), demand.direction == "at_most"
    least, most = (
        over_starts(one, edge, lower_is_better=is_lower, known=demand.spread) for one in zip(*values, strict=True)
    )

    def ends(good: float, bad: float) -> tuple[float, float]:
        lows, highs = zip(least.ends(good, bad), most.ends(good, bad), strict=True)
        return min(lows), max(highs)

    return least._replace(p_bad=most.p_bad, ends=ends)


def _more_starts(demand: Demand, values: Sequence[float], level: Level) -> str:
    more = starts_needed(values, edge_of(demand), spread_of(values, demand.spread), level=level)
    if more is None:
        return f"more than {MAX_STARTS_NAMED - len(values)} more starts, or a wider margin"
    return f"about {counted(more, 'more start')}, if they are like those so far"


def stages_by_start(evidence: AcceptEvidence, load: str) -> dict[int, list[StageResult]]:
    """The stages of one load that came to their end, by the number of the start; a start may have none."""
    found: dict[int, list[StageResult]] = {}
    for run, result in evidence.runs("performance"):
        whole = result.stages if result.state == "complete" else result.stages[:-1]
        same = [stage for stage in whole if stage.target.concurrency != 0 and load_of(stage).words == load]
        found.setdefault(run.start, []).extend(same)
    return found


def values_of(stage: StageResult, figure: str) -> tuple[float, float] | None:
    """A figure of a stage by its name in a criterion: what it was at least, and at worst.

    They differ for a latency that streams still awaited when the stage ended: at worst, they waited as long as any.
    """
    if figure.endswith("_ms"):
        metric, percent = limit_of(figure.removesuffix("_ms"))
        summary = stage.latency_ms.get(metric)
        return None if summary is None else _latency(summary, percent)
    value: float | None
    match figure:
        case "goodput_percent":
            share = stage.goodput.share if stage.goodput is not None else None
            value = None if share is None else 100 * share
        case "tokens_per_joule":
            value = None if stage.energy is None else stage.energy.tokens_per_s_per_w
        case _:
            value = getattr(stage.throughput, figure, None)
    return None if value is None else (value, value)


def _latency(summary: Summary, percent: float | None) -> tuple[float, float] | None:
    count = summary.count + summary.censored
    if summary.mean is None or summary.max is None or summary.hdr is None or not count:
        return None
    if percent is None:
        return summary.mean, summary.mean + summary.censored / count * summary.max
    histogram = Histogram.from_hdr(summary.hdr)
    value = histogram.percentile_ms(percent)
    worst = histogram.percentile_ms(min(100.0, percent + 100 * summary.censored / count))
    return None if value is None or worst is None else (value, worst)


def _shares(demand: Demand, evidence: AcceptEvidence) -> CriterionEvidence:
    is_failures = demand.figure == "failed_percent"
    if is_failures:
        pairs = _without_failure(demand, evidence)
    else:  # all questions together: each is asked by itself
        answers = evidence.counted(demand)
        pairs = [(sum(one.count for one in answers), sum(one.trials or 0 for one in answers))]
    counts = [(good, trials) for good, trials in pairs if trials]
    if not counts:
        return CriterionEvidence(_NOT_YET, "inconclusive")
    good, trials = zip(*counts, strict=True)
    edge = 1 - edge_of(demand) / 100 if is_failures else edge_of(demand) / 100
    trial = of_shares(good, trials, edge)
    bad, count = sum(trials) - sum(good), sum(trials)
    if is_failures:
        trial = _as_failures(trial)
    observed = 100 * (bad if is_failures else count - bad) / count
    found = CriterionEvidence("", observed=observed, trial=trial, samples=count, starts=len(counts))
    if evidence.phases[demand.phase].ended is None:
        return found._replace(outcome="inconclusive", reason=_NOT_OVER)
    return found._replace(takes=lambda level: _more_trials(demand, bad, count, edge, level))


def _as_failures(trial: Trial) -> Trial:
    """The trial of a share of good ones, as one of failures."""

    def ends(good: float, bad: float) -> tuple[float, float]:
        low, high = trial.ends(good, bad)
        return 1 - high, 1 - low

    return trial._replace(value=1 - trial.value, ends=ends)


def _more_trials(demand: Demand, bad: int, count: int, edge: float, level: Level) -> str:
    more = trials_needed(bad, count, edge, level)
    asks = demand.figure == EXACT_MATCH
    unit = "questions" if asks else "requests"
    if more is None:
        return f"far more {unit}"
    how = f" (--set accept.question_count={count + more})" if asks else ""
    return f"about {more:,} more {unit}{how}, if all goes on like this"


def _without_failure(demand: Demand, evidence: AcceptEvidence) -> list[tuple[int, int]]:
    """At each start, how many requests did not fail, and how many were scheduled."""
    pairs = []
    for stages in stages_by_start(evidence, demand.load).values():
        checks = [stage.failures for stage in stages if stage.failures is not None]
        scheduled = sum(check.scheduled for check in checks)
        pairs.append((scheduled - min(scheduled, sum(check.count for check in checks)), scheduled))
    return pairs


def _events(demand: Demand, evidence: AcceptEvidence) -> CriterionEvidence:
    counts = [(one.count, one.text or one.subject) for one in evidence.counted(demand)]
    if demand.figure in _EVENTS:
        counts += [
            (count, text) for _, result in evidence.runs(demand.phase) for count, text in _EVENTS[demand.figure](result)
        ]
    if demand.figure == "probe_failures":
        counts += [
            (int(probe.state in ("fail", "failed")), probe.why) for probe in evidence.probes if probe.state != "absent"
        ]
    if demand.figure == "start_differences":
        counts += _start_differences(evidence)
    total = sum(count for count, _ in counts)
    if total:
        first = next((text for count, text in counts if count and text), "")
        return CriterionEvidence(f"{total:,} of them{f': {first}' if first else ''}", "fail", observed=float(total))
    ended = evidence.phases[demand.phase].ended
    if ended is None:
        return CriterionEvidence(f"none so far; {_NOT_OVER}" if counts else _NOT_YET, "inconclusive")
    if not counts:
        return CriterionEvidence(f"skipped: {ended.reason}" if ended.state == "skipped" else "nothing here reports it")
    hours = _hours_watched(demand, evidence) if demand.phase == "burn-in" else 0.0
    span = duration(3600 * hours) if hours < 1 else f"{significant(hours)} h"
    often = f" in {span}: at most {significant(rate_at_most(hours))} an hour (95 %)" if hours else ""
    return CriterionEvidence(f"none{often}", "pass", observed=0.0)


def _hours_watched(demand: Demand, evidence: AcceptEvidence) -> float:
    own = sum(one.hours or 0.0 for one in evidence.counted(demand))
    runs_s = sum(stage.duration_s for _, result in evidence.runs(demand.phase) for stage in result.stages)
    return max(own, runs_s / 3600)


def _of_gpus(name: str) -> Callable[[Result], Iterator[tuple[int, str]]]:
    """Errors that GPUs counted; nothing where no GPU reports the counter."""

    def counts(result: Result) -> Iterator[tuple[int, str]]:
        for stage in result.stages:
            for gpu in stage.gpu:
                count = getattr(gpu, name)
                if count is not None:
                    yield count, f"gpu {gpu.index}"

    return counts


def _of_verdicts(
    is_meant: Callable[[Verdict], bool], is_watched: Callable[[Result], bool]
) -> Callable[[Result], Iterator[tuple[int, str]]]:
    """Bad verdicts of one kind; nothing where they could not have been given."""

    def counts(result: Result) -> Iterator[tuple[int, str]]:
        verdicts = [*result.verdicts, *(verdict for stage in result.stages for verdict in stage.verdicts)]
        bad = [verdict for verdict in verdicts if verdict.bad and is_meant(verdict)]
        if bad or is_watched(result):
            yield len(bad), bad[0].text if bad else ""

    return counts


def _of_failures(result: Result) -> Iterator[tuple[int, str]]:
    for stage in result.stages:
        if stage.failures is not None:
            kinds = ", ".join(stage.requests.errors)
            yield stage.failures.count, kinds or "never sent"


def _of_restarts(result: Result) -> Iterator[tuple[int, str]]:
    died = result.state == "server_died"
    yield len(result.environment.get("server_starts") or [0]) - 1 + died, result.reason if died else "restarted"


_EVENTS: dict[str, Callable[[Result], Iterator[tuple[int, str]]]] = {
    "ecc_uncorrectable": _of_gpus("ecc_uncorrectable"),
    "xids": _of_gpus("xids"),
    "links_lost": _of_verdicts(
        lambda verdict: verdict.id == "link-down", lambda result: any(gpu.links_total for gpu in result.gpus)
    ),
    "stalls": _of_verdicts(lambda verdict: verdict.id == STALLED, lambda result: bool(result.stages)),
    "output_faults": _of_verdicts(
        lambda verdict: verdict.id.startswith("output-"),
        lambda result: result.canary is not None or any(stage.answers is not None for stage in result.stages),
    ),
    "failed_requests": _of_failures,
    "server_restarts": _of_restarts,
}


def _start_differences(evidence: AcceptEvidence) -> Iterator[tuple[int, str]]:
    """Each start against the first; times are left out, because a first start may fill caches."""
    known = list(starts_of(evidence))
    for number, start in known[1:]:
        found = [one for one in differences(known[0][1], start) if one.what != "start"]
        yield len(found), f"start {number}: {found[0].words}" if found else ""


def starts_of(evidence: AcceptEvidence) -> Iterator[tuple[int, ServerStart]]:
    """Every start of the server in the phases about starts and performance that says what it was like."""
    known = [result.server.start for _, result in evidence.runs("start", "performance") if result.server is not None]
    yield from enumerate(known, start=1)


def _each(demand: Demand, evidence: AcceptEvidence) -> CriterionEvidence:
    values = list(_values(demand, evidence))
    known = [(subject, value) for subject, value in values if isinstance(value, int | float)]
    if not known:
        return _unknown(demand, evidence)
    worst = max(known, key=lambda pair: _badness(demand, pair[1]))
    is_bad = _badness(demand, worst[1]) > demand.margin
    words = f"{worst[0]}: " if worst[0] else ""
    reason = f"{words}{significant(worst[1])} {demand.unit}".strip()
    missing = [subject for subject, value in values if value is None]
    found = CriterionEvidence(
        reason, "fail" if is_bad else "pass", observed=worst[1], samples=len(known), starts=len(known)
    )
    if missing and not is_bad:
        return found._replace(outcome="inconclusive", reason=f"unknown for {', '.join(missing)}")
    if not is_bad and evidence.phases[demand.phase].ended is None:
        return found._replace(outcome="inconclusive", reason=f"{reason}; {_NOT_OVER}")
    return found


def _badness(demand: Demand, value: float) -> float:
    """How far a value is beyond its bound, without the margin."""
    assert isinstance(demand.bound, int | float)
    match demand.direction:
        case "at_most":
            return value - demand.bound
        case "at_least":
            return demand.bound - value
        case _:
            return abs(value - demand.bound)


def _values(demand: Demand, evidence: AcceptEvidence) -> Iterator[tuple[str, float | str | None]]:
    yield from ((one.subject, one.value) for one in evidence.facts if one.figure == demand.figure)
    if demand.phase == "start":
        name = "total_s" if demand.figure == "start_s" else demand.figure
        for number, start in starts_of(evidence):
            yield f"start {number}", getattr(start, name)
    if demand.phase == "silicon":
        for probe in evidence.probes:
            for figure in probe.figures:
                if demand.figure == f"probe.{figure.name}":
                    yield figure.subject, figure.value


def _unknown(demand: Demand, evidence: AcceptEvidence) -> CriterionEvidence:
    ended = evidence.phases[demand.phase].ended
    why = next((one.reason for one in evidence.facts if one.figure == demand.figure and one.reason), "")
    if ended is not None and ended.state == "skipped":
        why = f"{demand.phase} was skipped: {ended.reason}"
    return CriterionEvidence(why or (_NOT_YET if ended is None else "nothing here reports it"), "inconclusive")


def _texts(demand: Demand, evidence: AcceptEvidence) -> CriterionEvidence:
    values = [(subject, str(value)) for subject, value in _values(demand, evidence) if value is not None]
    if not values:
        return _unknown(demand, evidence)
    other = next(((subject, value) for subject, value in values if value != demand.bound), None)
    subject, value = other or values[0]
    words = f"{subject}: {value}" if subject else value
    return CriterionEvidence(words, "fail" if other else "pass", observed=value, samples=len(values))


def _trend(demand: Demand, evidence: AcceptEvidence) -> CriterionEvidence:
    edge = edge_of(demand) / 100
    name = demand.figure.removesuffix("_percent")
    known = [
        values for _, result in evidence.runs(demand.phase) for values in _series(name, result) if values is not None
    ]
    ended = evidence.phases[demand.phase].ended
    if not known:
        if ended is None:
            needs = _TOO_SHORT if evidence.burn_in_s < 2 * WARM_UP_S else ""
            return CriterionEvidence(_NOT_YET, "inconclusive", needs=needs)
        return CriterionEvidence(ended.reason or "nothing here reports it")
    series = [values for values in known if len(values) >= MIN_TREND_VALUES]
    trials = [of_trend(values, edge) for values in series]
    if not trials:
        return CriterionEvidence("too short to tell", "inconclusive", needs=_TOO_SHORT)
    # Several series are several chances of a false alarm, and all must pass.
    highest = max(trials, key=lambda trial: trial.value)
    p_good = min(1.0, len(trials) * min(trial.p_good for trial in trials))
    trial = highest._replace(p_good=p_good, p_bad=max(trial.p_bad for trial in trials))
    samples = sum(len(values) for values in series)
    found = CriterionEvidence("", observed=100 * trial.value, trial=trial, samples=samples, takes=lambda level: _LONGER)
    # A server grows in its first minutes, whatever it does later.
    return found if ended is not None else found._replace(outcome="inconclusive", reason=_NOT_OVER)


def _series(name: str, result: Result) -> list[list[float] | None]:
    """A figure in the later part of a run, as means of equally long parts, of each GPU; inverted for a fall."""
    match name:
        case "ttft_rise" | "tpot_rise":
            return [_later_means(result.series, f"{name.removesuffix('_rise')}_p50_ms")]
        case "server_memory_rise":
            return [_later_means(result.host_series, "server_rss_bytes")]
        case "clock_fall":
            clocks = [_later_means(gpu.columns, "gfx_clock_mhz") for gpu in result.gpu_series]
            return [None if values is None else [1 / value for value in values] for values in clocks]
    column = "hbm_used_bytes" if name == "hbm_rise" else "power_w"
    return [_later_means(gpu.columns, column) for gpu in result.gpu_series]


def _later_means(columns: Columns, name: str) -> list[float] | None:
    """None if it was not reported; empty if what counts of it is too short."""
    rows = [
        (at, value) for at, value in zip(columns.get("t_s", []), columns.get(name, []), strict=False) if value and at
    ]
    if not rows:
        return None
    first_s, last_s = rows[0][0], rows[-1][0]
    from_s = first_s + max(WARM_UP_S, (last_s - first_s) / _SKIPPED)
    is_long = last_s - from_s >= _MIN_TREND_SHARE * WARM_UP_S
    return means([value for at, value in rows if at >= from_s]) if is_long else []


_RULES: dict[str, Callable[[Demand, AcceptEvidence], CriterionEvidence]] = {
    "mean": _over_starts,
    "share": _shares,
    "events": _events,
    "each": _each,
    "text": _texts,
    "trend": _trend,
}


def values_like(evidence: AcceptEvidence) -> dict[tuple[str, str], list[float]]:
    """The figures of this box at each of its starts that can make bounds for others, by figure and load."""
    found: dict[tuple[str, str], list[float]] = {}
    loads = {load_of(stage).words for _, result in evidence.runs("performance") for stage in result.stages}
    for load in loads:
        for stages in stages_by_start(evidence, load).values():
            sound = [stage for stage in stages if stage.doubt is None]
            for figure in LIKE_FIGURES if sound else ():
                value = values_of(sound[-1], figure)
                if value is not None and requests_behind(sound[-1], figure) >= requests_needed(figure, 0.0):
                    found.setdefault((figure, load), []).append(value[0])
    tokens = [start.kv_cache_tokens for _, start in starts_of(evidence)]
    known = [float(count) for count in tokens if count is not None]
    return found | ({("kv_cache_tokens", ""): known} if known else {})
