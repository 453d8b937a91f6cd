"""Answers the first questions of a report's reader in a sentence each: is it healthy, right, saturated, and why?

Pure functions. They make no judgements of their own but choose among the verdicts, checks and counts in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loadgen.format import UNKNOWN, counted, exact, exact_percent
from loadgen.metrics.stall import STALLED
from loadgen.metrics.verdicts import merged
from loadgen.record.slo import needed_words
from loadgen.report.notes import Note, has_numbers
from loadgen.report.output import is_of_output, output_verdicts
from loadgen.report.tabular import Bad, judged
from loadgen.schema.finding import Verdict
from loadgen.schema.result import FailureCheck, Result, StageResult, met_limits
from loadgen.searches import SEARCHES

_QUEUES = ("kv-limited", "queueing")
_BOUNDS = ("host-limited", "bandwidth-bound", "compute-bound")
_STATES = {"server_died": "the server died", "failed": "the run failed"}


def assessment(result: Result) -> list[Note]:
    """The questions with their answers, in order; only the first if nothing was measured."""
    measured = measured_stages(result)
    if not measured:
        return [_healthy(result)]
    search = result.search
    has_knee = search is not None and search.kind == "knee" and search.is_found
    queue = "" if has_knee else _queue_words(result, measured)
    saturated = Note("Saturated?", (_search_words(result) + queue).rstrip())
    slo = [_slo(measured)] if any(met_limits(stage) is not None for stage in measured) else []
    return [_healthy(result), *_right(result), saturated, _limit(result, measured), *slo]


def measured_stages(result: Result) -> list[StageResult]:
    return [stage for stage in result.stages if has_numbers(stage)]


def best_stage(result: Result) -> StageResult | None:
    """The stage of the headline figures: the most output tokens a second among stages that met every limit.

    If none did, among all stages; None if nothing was measured.
    """
    return best_of(measured_stages(result))


def best_of(stages: Sequence[StageResult]) -> StageResult | None:
    good = [stage for stage in stages if met_limits(stage) is not False]
    return max(good or stages, key=_output, default=None)


def _output(stage: StageResult) -> float:
    return stage.throughput.output_tokens_per_s or 0.0


def shortcomings(result: Result) -> list[str]:
    """The reasons why a run that ended normally has exit code 1, a line each.

    Probes of a search miss their limits by design: a search has succeeded if it is resolved.
    """
    found = run_shortcomings(result)
    for stage in result.stages if result.search is None else []:
        failed = failure_limit(stage, stage.failures)[1] if stage.failures is not None else ""
        if failed and stage.failures:
            found.append(f"stage {stage.number}: {failed}; slo.failed allows {100 * stage.failures.allowed:g} %")
        missed = missed_words(stage) if stage.requests.sent or failed else []
        if missed:
            found.append(f"stage {stage.number}: limits missed: {'; '.join(missed)}")
    return found


def run_shortcomings(result: Result) -> list[str]:
    """The shortcomings of the run as a whole, a line each."""
    search = result.search
    if search is not None:
        return [] if search.resolved else [f"the search is unresolved: {search.why}"]
    requested = [stage for stage in result.stages if stage.target.concurrency != 0]
    nothing = result.state == "complete" and requested and not measured_stages(result)
    return ["nothing was measured"] if nothing else []


def failure_limit(stage: StageResult, failures: FailureCheck) -> tuple[str, str]:
    """The limit on failures, and how it was missed; empty if it was met."""
    limit = f"failed or unsent <= {100 * failures.allowed:g} %"
    return limit, "" if failures.met else failure_words(failures, stage.requests.errors)


def failure_words(failures: FailureCheck, errors: Mapping[str, int]) -> str:
    """How many requests failed, with their kinds, and how many were never sent."""
    failed, of = failures.count - failures.unsent, f"of {failures.scheduled:,} requests"
    kinds = f" ({', '.join(errors)})" if errors else ""
    words = [f"{failed:,} {of} failed{kinds}"] if failed else []
    words += [f"{failures.unsent:,} {'' if failed else f'{of} '}were never sent"] if failures.unsent else []
    return ", ".join(words)


def missed_words(stage: StageResult) -> list[str]:
    """Each latency limit that a stage missed."""
    return [words for words in limit_words(stage).values() if words]


def limit_words(stage: StageResult) -> dict[str, str]:
    """Each latency limit of a stage, and how it was missed; empty if it was met."""
    found = {}
    for name, check in stage.slo.items():
        limit, missed = f"{exact(check.limit_ms)} ms", ""
        if check.is_empty and not check.met:
            missed = f"{name} was not measured, limit {limit}"
        elif not check.met:
            measured = UNKNOWN if check.measured_ms is None else f"{exact(check.measured_ms)} ms"
            beyond = check.missed and check.population
            streams = f" ({check.missed:,} of {check.population:,} beyond it)" if beyond else ""
            missed = f"{name} {measured}, limit {limit}{streams}"
        found[f"{name} <= {limit}"] = missed

    goodput = stage.goodput
    if goodput is not None and goodput.share is not None:
        wanted = exact_percent(goodput.wanted)
        missed = "" if goodput.met else f"goodput {exact_percent(goodput.share)}, wanted {wanted}"
        found[f"goodput >= {wanted}"] = missed
    return found


def titles(stages: Sequence[StageResult]) -> dict[int, str]:
    """A name for each stage, by index: its label, with shape and variant if they differ, and a number if it repeats."""
    shapes = {(stage.isl, stage.osl) for stage in stages}
    variants = {stage.variant for stage in stages}
    names = {}
    for stage in stages:
        shape = [f"{stage.isl}/{stage.osl}"] if len(shapes) > 1 else []
        variant = [stage.variant or "no variant"] if len(variants) > 1 else []
        names[stage.index] = ", ".join([stage.label, *shape, *variant])
    every = list(names.values())
    return {index: name if every.count(name) == 1 else f"{name} (#{index + 1})" for index, name in names.items()}


def _healthy(result: Result) -> Note:
    problems = [
        *_run_problems(result),
        *by_text(one for one in result.verdicts if one.bad and not is_of_output(one)),
    ]
    completed = sum(stage.requests.completed for stage in result.stages)
    if problems:
        return Note("Healthy?", Bad(f"No: {'; '.join(problems)}."))
    if result.kind == "monitor":
        served = [stage.engine.requests or 0 for stage in result.stages if stage.engine is not None]
        traffic = f"{sum(served):,} requests of others ended" if served else "no engine was measured"
        return Note("Healthy?", f"As far as can be seen: nothing was sent, {traffic}, {_looked_at(result)}.")
    if result.measured_by is not None and not all(stage.duration_s for stage in result.stages):
        return Note("Healthy?", f"Not known: {result.measured_by} does not say how many requests failed.")
    how = "has not ended" if result.is_live else "was stopped"
    stopped = f" The run {how}: {first_line(result.reason)}." if result.state == "stopped" else ""
    return Note("Healthy?", f"Yes: {completed:,} requests completed, none failed; {_looked_at(result)}.{stopped}")


def by_text(verdicts: Iterable[Verdict]) -> list[str]:
    """What is wrong, each once, with all its subjects: `gpu 0-7: THROTTLED thermal 18%`."""
    return [f"{one.subject}: {one.text}" for one in merged(verdicts)]


def _looked_at(result: Result) -> str:
    """What the GPUs' health is drawn from."""
    gpus = max((len(stage.gpu) for stage in result.stages), default=0)
    return f"no fault was seen on {counted(gpus, 'GPU')}" if gpus else "no GPU was measured"


def _right(result: Result) -> list[Note]:
    """Whether the output is right, as far as it was checked."""
    question, found = "Is the output right?", output_verdicts(result)
    if found:
        return [Note(question, Bad(f"No: {'; '.join(f'{one.subject}: {one.text}' for one in found)}."))]
    canary = result.canary
    if canary is None:
        return []
    scored, answers = (sum(getattr(one.canary, name, 0) for one in result.stages) for name in ("scores", "answers"))
    if not scored and not answers:
        return [Note(question, "Not known: no canary was answered under load.")]
    looked = f"{counted(scored, 'score')} and {counted(answers, 'greedy answer')} under load"
    own = sum(one.answers.read for one in result.stages if one.answers is not None)
    looked += f", and {counted(own, 'answer')} to load requests without a defect" if own else ""
    missing = f" Not checked: {'; '.join(canary.unchecked)}." if canary.unchecked else ""
    return [Note(question, f"Like the idle engine's, by {looked}.{missing}")]


def _run_problems(result: Result) -> list[str]:
    problems = []
    if result.state in ("server_died", "failed"):
        cause = result.diagnosis.title if result.diagnosis is not None else first_line(result.reason)
        problems.append(f"{_STATES[result.state]}: {cause}")
    sent = sum(stage.requests.sent for stage in result.stages)
    failed = sum(stage.requests.failed_in_all for stage in result.stages)
    if failed:
        problems.append(f"{failed:,} of {sent:,} requests failed")
    if not problems and not measured_stages(result) and result.kind != "monitor":
        problems.append("nothing was completed")
    names = titles(result.stages)
    for stage in result.stages:
        doubts = (one.text.partition(";")[0] for one in stage.verdicts if one.id == "truth")
        problems += [f"at {names[stage.index]} client and engine disagree: {words}" for words in doubts]
    return problems


def _search_words(result: Result) -> str:
    search = result.search
    if search is None:
        return interrupted_search(result)
    what = SEARCHES[search.kind].label
    if not search.is_found:
        return f"The search for the {what} is unresolved: {search.why}. "
    return f"The {what} is at {search.words}. "


def interrupted_search(result: Result) -> str:
    """What a search had found when it was interrupted; empty without such a search."""
    kind = SEARCHES.get((result.profile.get("plan") or {}).get("search") or "")
    probes = measured_stages(result)
    if kind is None or result.search is not None or not probes:
        return ""
    met, missed = ([one.target.load for one in probes if met_limits(one) is within] for within in (True, False))
    found = [f"{max(met):g} met the limits"] if met else []
    above = [load for load in missed if not met or load > max(met)]
    found += [f"{min(above):g} did not"] if above else []
    words = f": {', '.join(found)}" if found and kind.needs_limits else ""
    return f"The search for the {kind.label} was interrupted after {counted(len(probes), 'probe')}{words}. "


def _queue_words(result: Result, stages: Sequence[StageResult]) -> str:
    names = titles(stages)
    stages = [stage for stage in stages if not _has_stalled(result, stage)]  # there the stall alone made requests wait
    if not stages:
        return "Not known: the server stalled under each load."
    for stage in sorted(stages, key=by_load):
        words = next((one.text for one in stage.verdicts if one.id in _QUEUES), None) or _behind(stage)
        if words is not None:
            return f"Yes, at {names[stage.index]}: {words}."
    highest = names[max(stages, key=by_load).index]
    if _says_what_waits(result):
        return f"No: up to {highest} no queue built up in the engine."
    lasting = [stage for stage in stages if stage.open_loop is not None and stage.open_loop.behind is None]
    if lasting:
        stage = lasting[0]
        return f"Not known: requests of {names[stage.index]} last too long for a stage of {stage.measured_s:.0f} s."
    if all(stage.open_loop is not None for stage in stages):
        return f"No: up to {highest} all were answered as fast as they came."
    return "Not known: the engine does not say what waits in it."


def _has_stalled(result: Result, stage: StageResult) -> bool:
    return any(one.id == STALLED and one.subject == f"stage {stage.index + 1}" for one in result.verdicts)


def _says_what_waits(result: Result) -> bool:
    return any(waiting is not None for waiting in result.series.get("engine_waiting", []))


def _behind(stage: StageResult) -> str | None:
    """By how much an open loop falls behind its rate; None if it does not, or it is not known."""
    loop, rate = stage.open_loop, stage.target.rate
    return loop.words(rate) if loop is not None and loop.behind and rate is not None else None


def by_load(stage: StageResult) -> float:
    """The sort key of stages by load: mean open streams."""
    return stage.concurrency.mean or float(stage.target.concurrency or 0)


def _limit(result: Result, stages: Sequence[StageResult]) -> Note:
    question = "What was the limit?"
    if result.client.limited:
        why = f"The client: {result.client.why}. These are not the server's numbers alone."
        return Note(question, Bad(why))
    if result.measured_by is not None:
        return Note(question, f"Not known: {result.measured_by} does not say whether its client kept up.")
    if any(stage.bursts is not None and stage.bursts.held_back for stage in stages):
        return Note(question, Bad("Not known: something between engine and client holds the streams back."))
    most = max(stages, key=_output)
    found = {one.id: one.text for one in most.verdicts}
    words = [found[name] for name in (*_BOUNDS, *_QUEUES) if name in found]
    words += [behind] if (behind := _behind(most)) is not None else []
    at = f"at {titles(stages)[most.index]}"
    if _has_stalled(result, most):
        return Note(question, Bad(f"The server: it stalled {at}, where throughput was highest."))
    if not words and not _says_what_waits(result):
        return Note(question, "Not known: not the client, but the engine does not say what waits in it.")
    if not words:
        kept_up = f"{at}, where throughput was highest, the client kept up and no queue built up in the engine"
        return Note(question, f"The load itself: {kept_up}.")
    whose = "The host" if "host-limited" in found else "The server"
    text = f"{whose}, not the client: {at} {'; '.join(words)}."
    return Note(question, judged(text, good="host-limited" not in found))


def _slo(stages: Sequence[StageResult]) -> Note:
    names = titles(stages)
    limited = [stage for stage in stages if met_limits(stage) is not None]
    missed = sorted((stage for stage in limited if not met_limits(stage)), key=by_load)
    if not missed:
        unsure = [f"at {names[stage.index]} {needed}" for stage in limited if (needed := needed_words(stage))]
        if not unsure:
            return Note("Within its limits?", "Yes, at every stage.")
        more = f", and {len(unsure) - 1} more" if len(unsure) > 1 else ""
        return Note("Within its limits?", f"By the figures yes, but not for sure: {unsure[0]}{more}.")
    first = missed[0]
    words = missed_words(first)
    if first.failures is not None and not first.failures.met:
        words.append(failure_words(first.failures, first.requests.errors))
    text = f"Missed at {len(missed)} of {len(limited)} stages, first at {names[first.index]}: {'; '.join(words)}."
    return Note("Within its limits?", Bad(text))


def first_line(text: str) -> str:
    return text.partition("\n")[0].rstrip(".")
