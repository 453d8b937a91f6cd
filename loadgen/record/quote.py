"""Fit to quote: whether the figures of a result, our own or another tool's, can be quoted, and if not, why.

Rules are rows: a name, a condition on the figures below, and what to do. A condition returns what breaks it, or why it
cannot be checked; what is unknown breaks nothing. What a run's own verdicts say already is taken from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from loadgen.metrics.verdicts import merged
from loadgen.record.subject import model_of
from loadgen.schema.result import Result, StageResult
from loadgen.schema.summary import Quote, QuoteProblem

MIN_WAVES = 10  # requests for each stream: with fewer, a tenth of the time or more is ramp-in and drain
MIN_FOR_P99 = 299  # so many values have one beyond the true p99 with 95 % confidence
MIN_VALUES = 30  # for a mean that is compared with others
MAX_LITTLE = 0.15  # how far rate times E2E may be from the measured concurrency
MIN_HELD = 0.8  # of the streams asked for: answers of different lengths end at different times
MAX_PARTS = 0.2  # how far TTFT + (n - 1) TPOT may be from E2E: means of products and of ratios differ
MIN_STEP = 1.5  # between loads that must not have the same figures
ALIKE = 0.01
SAME_LENGTH = 0.05
MIN_FALL = 0.1  # of TPOT, from one load to the next
MAX_EDGES = 0.1  # of the measured time: ramp-in and drain
MAX_BEHIND = 0.05  # of the rate of an open loop
CHANCE = 3.0  # standard deviations of the number of arrivals
MAX_CARRIED = 0.1  # of the streams: with more, E2E is that of the short ones
MAX_FAILED = 0.01  # of the requests
MAX_OVERDUE = 0.1  # of the streams' time, where nobody knows who held the output back
FULL_PERCENT = 100.0
_OUTPUT = ("output-drift", "output-broken", "output-degenerate")  # ids of verdicts
_MAX_COUNT = 1 << 53  # in an edited result, which floats cannot hold


class QuotedStage(msgspec.Struct, frozen=True, kw_only=True):
    """One load and its figures, as a table or a result has them; None is unknown."""

    name: str
    concurrency: int | None = None  # streams that a closed loop asked for
    rate: float | None = None  # requests a second that an open loop asked for
    isl: int = 0
    osl: int = 0
    kind: str = ""  # loads of one kind differ in nothing else: not in the server's variant, not in the cache's state
    held: float | None = None  # measured mean of open streams
    behind: str | None = None  # how an open loop fell behind; empty if it did not, as far as that was measured
    whole_run: bool = True  # the figures include ramp-in and drain
    edges: float | None = None  # the share of the measured time in ramp-in and drain, if that was measured
    measured_s: float | None = None
    completed: int | None = None
    failed: int | None = None
    output_tokens: int | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    osl_mean: float | None = None
    mean_ms: Mapping[str, float] = {}  # by latency: ttft, tpot, e2e
    p99_values: Mapping[str, int] = {}  # how many values each p99 is of, by latency
    peak_percent: Mapping[str, float] = {}  # of the part's peak: `MFU`, `HBM bandwidth`
    verdicts: Mapping[str, str] = {}  # by id
    known: Collection[str] = ()  # rules for whose verdicts there is the evidence

    @property
    def load(self) -> float:
        return float(self.concurrency or self.rate or 0)


class QuotedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A table or a result."""

    stages: Sequence[QuotedStage]
    simulated: bool = False
    cut_short: str = ""  # how the run ended before its plan
    faults: Sequence[str] | None = None  # of GPUs, host and server; None if no GPU was measured
    named: Mapping[str, str | None] = {}  # what a reader needs to measure it again; None is missing


class RuleOutcome(NamedTuple):
    """What breaks a rule, or why it cannot be checked; if neither, it is kept."""

    broken: Sequence[str] = ()
    unknown: str = ""


def quote_of(result: Result) -> Quote | None:
    """The judgement on a result; None if nothing was measured under a constant load."""
    stages = [
        _quoted(result, stage)
        for stage in result.stages
        if stage.target.concurrency != 0 and stage.target.moves is None and stage.requests.completed > 0
    ]
    return judge(_run(result, stages)) if stages else None


def judge(run: QuotedRun) -> Quote:
    found = {rule: rule.outcome(run) for rule in RULES}
    problems = []
    for rule, (broken, _) in found.items():
        if broken:
            evidence = f"{broken[0]}, and {len(broken) - 1} more" if len(broken) > 2 else "; ".join(broken)
            problems.append(QuoteProblem(rule.name, evidence, rule.remedy))
    not_checked = {rule.name: one.unknown for rule, one in found.items() if one.unknown and not one.broken}
    kept = tuple(rule.name for rule, outcome in found.items() if not outcome.broken and not outcome.unknown)
    return Quote(not problems, tuple(problems), not_checked, kept)


# The figures of a result.


def _run(result: Result, stages: Sequence[QuotedStage]) -> QuotedRun:
    environment = result.environment
    reason = result.reason.partition("\n")[0]
    model = model_of(result)
    faults = [f"{one.subject}: {one.text}" for one in merged(result.verdicts) if one.bad and one.id not in _OUTPUT]
    is_measured = result.gpus and result.measured_by is None
    return QuotedRun(
        stages=stages,
        simulated=environment.get("engine") == "simulator",
        cut_short="" if result.state == "complete" else f"{result.state.replace('_', ' ')}: {reason.rstrip('.')}",
        faults=faults or ([] if is_measured else None),
        named={
            "the model": None if model == "unknown model" else model,
            "the engine's version": environment.get("vllm_version"),
            "the GPUs": ", ".join(gpu.name for gpu in result.gpus) or None,
            "how the server was started": " ".join(environment.get("server_command") or ()) or None,
        },
    )


def _quoted(result: Result, stage: StageResult) -> QuotedStage:
    is_own, wave = result.measured_by is None, stage.first_wave
    compute = stage.compute
    # A row of another tool that has no duration does not say of how many requests it is either.
    is_counted = is_own or stage.duration_s > 0
    known = {name: stage.latency_ms[name] for name in ("ttft", "tpot", "e2e") if name in stage.latency_ms}
    e2e_is_known = stage.e2e_inconclusive is None and (stage.carried_share or 0.0) <= MAX_CARRIED
    means = {name: one.mean for name, one in known.items() if one.mean is not None and one.count}
    peaks = {} if compute is None else {"MFU": compute.mfu_percent, "HBM bandwidth": compute.hbm_bandwidth_percent}
    return QuotedStage(
        name=stage.label,
        concurrency=None if stage.target.concurrency is None else min(stage.target.concurrency, _MAX_COUNT),
        rate=stage.target.rate if stage.target.arrival != "replay" else None,  # which a trace has only on average
        isl=min(stage.isl, _MAX_COUNT),
        osl=min(stage.osl, _MAX_COUNT),
        kind=f"{stage.variant} {stage.pass_number}",
        held=stage.concurrency.mean if is_own else None,
        behind=_behind(stage),
        # Of our own, stages bounded by requests have a share of drain; of other tools', steady states, which is 0.
        whole_run=(wave is not None and wave.counted) or (stage.tail_share is not None) == is_own,
        edges=_edges(stage) if is_own else stage.tail_share,
        measured_s=stage.measured_s,
        completed=min(stage.requests.completed, _MAX_COUNT) if is_counted else None,
        failed=min(stage.requests.failed_in_all, _MAX_COUNT) if is_counted else None,
        output_tokens=min(stage.tokens.output, _MAX_COUNT) if is_counted else None,
        requests_per_s=stage.throughput.requests_per_s,
        output_tokens_per_s=stage.throughput.output_tokens_per_s,
        osl_mean=stage.tokens.output_per_request if is_counted else None,
        mean_ms={name: mean for name, mean in means.items() if name != "e2e" or e2e_is_known},
        p99_values={name: one.count for name, one in known.items() if one.p99 is not None and is_counted},
        peak_percent={name: value for name, value in peaks.items() if value is not None},
        verdicts={one.id: one.text for one in stage.verdicts}
        | ({} if stage.inconclusive is None else {"inconclusive": stage.inconclusive}),
        known=[*_known(result, stage)],
    )


def _behind(stage: StageResult) -> str | None:
    loop, rate = stage.open_loop, stage.target.rate
    if loop is None or loop.behind is None or rate is None:
        return None
    return f"at {stage.label}, {loop.words(rate)}" if loop.behind else ""


def _known(result: Result, stage: StageResult) -> Iterator[str]:
    """The rules for whose verdicts a stage has the evidence."""
    bursts = stage.bursts
    is_explained = bursts is None or bursts.held_back is not None or bursts.overdue <= MAX_OVERDUE
    if result.measured_by is None and is_explained:
        yield "client"
    if stage.others is not None:
        yield "other-traffic"
    if stage.engine is not None and stage.engine.prefix_hit_rate is not None:
        yield "prefix-cache"
    if stage.engine is not None and stage.engine.kind == "vllm":  # which counts drafts where there are any
        yield "speculation"
    if stage.canary is not None or (stage.answers is not None and stage.answers.read):
        yield "output"


def _edges(stage: StageResult) -> float:
    """The measured time in which fewer streams ran than asked for, and the share of a first wave that was counted."""
    wave, completed = stage.first_wave, stage.requests.completed
    first = min(wave.streams, completed) / completed if wave is not None and wave.counted else 0.0
    return min(1.0, (stage.tail_share or 0.0) + first)


# The rules.


def _littles_law(run: QuotedRun) -> RuleOutcome:
    """Little's law: open streams are the rate times the time that each is open."""
    broken, checked = [], False
    for stage in run.stages:
        e2e_ms, rate = stage.mean_ms.get("e2e"), stage.requests_per_s
        held = stage.held if stage.held is not None else stage.concurrency
        if e2e_ms is None or rate is None or not held or (stage.completed or 0) < MIN_VALUES or _is_short(stage):
            continue
        checked, product = True, rate * e2e_ms / 1000
        least = 1 - MAX_LITTLE if stage.held is not None else MIN_HELD
        if not least <= product / held <= 1 + MAX_LITTLE:
            seen = f"{product:.4g} streams; {held:.4g} {'were open' if stage.held is not None else 'were asked for'}"
            broken.append(f"at {stage.name}, {rate:.4g} requests/s of {e2e_ms:.4g} ms are {seen}")
    return RuleOutcome(broken, "" if checked else "rate, concurrency and E2E are not all known over enough requests")


def _is_short(stage: QuotedStage) -> bool:
    """Whether a closed loop has too few requests for its streams, as another rule says."""
    if stage.concurrency is None or stage.completed is None:
        return False
    return stage.completed < MIN_WAVES * stage.concurrency


def _offered_rate(run: QuotedRun) -> RuleOutcome:
    """An open loop that falls behind: its latencies grow for as long as it is measured."""
    broken: list[str] = []
    checked = False
    for stage in run.stages:
        e2e_s, completed = stage.mean_ms.get("e2e", 0.0) / 1000, stage.completed or 0
        if stage.behind is not None:
            checked, broken = True, [*broken, *([stage.behind] if stage.behind else [])]
        elif stage.held is None and stage.rate is not None and stage.measured_s and completed >= MIN_VALUES:
            checked, least = True, 1 - max(MAX_BEHIND, CHANCE / math.sqrt(completed))
            arrivals_s = stage.measured_s - e2e_s  # the last answers come after the last arrival
            if arrivals_s > 0 and completed / arrivals_s < least * stage.rate:
                broken.append(f"{completed / arrivals_s:.4g} of {stage.rate:.4g} requests/s were answered")
    return RuleOutcome(broken, "" if checked else "no open loop with enough requests")


def _e2e_parts(run: QuotedRun) -> RuleOutcome:
    broken, checked = [], False
    for stage in run.stages:
        ttft, tpot, e2e = (stage.mean_ms.get(name) for name in ("ttft", "tpot", "e2e"))
        if ttft is None or tpot is None or not e2e or not stage.osl_mean or (stage.completed or 0) < MIN_VALUES:
            continue
        checked, total = True, ttft + (stage.osl_mean - 1) * tpot
        if abs(total / e2e - 1) > MAX_PARTS:
            broken.append(
                f"at {stage.name}, TTFT {ttft:.4g} + {stage.osl_mean - 1:.4g} x TPOT {tpot:.4g} ms are {total:.4g} ms, "
                f"and E2E is {e2e:.4g}"
            )
    return RuleOutcome(broken, "" if checked else "TTFT, TPOT, E2E and OSL are not all known over enough requests")


def _few_requests(run: QuotedRun) -> RuleOutcome:
    loops = [one for one in run.stages if one.concurrency and one.completed is not None and one.whole_run]
    broken = [f"{one.completed} requests at {one.concurrency} streams" for one in loops if _is_short(one)]
    return RuleOutcome(broken, "" if loops else "no closed loop was bounded by a known number of requests")


def _steps(stages: Sequence[QuotedStage]) -> Iterator[tuple[QuotedStage, QuotedStage]]:
    """Each load with the next higher one that differs in nothing else."""
    for low in stages:
        above = [
            one
            for one in stages
            if one.load > low.load
            and (one.kind, one.concurrency is None) == (low.kind, low.concurrency is None)
            # Other tools' lengths are measured means.
            and math.isclose(one.isl, low.isl, rel_tol=SAME_LENGTH)
            and math.isclose(one.osl, low.osl, rel_tol=SAME_LENGTH)
        ]
        if above:
            yield low, min(above, key=lambda one: one.load)


def _identical_levels(run: QuotedRun) -> RuleOutcome:
    """A saturated server has the same throughput at each load, but not the same latency."""
    broken, checked = [], False
    for low, high in _steps(run.stages):
        before, after = low.output_tokens_per_s, high.output_tokens_per_s
        latencies = [(low.mean_ms[name], high.mean_ms[name]) for name in low.mean_ms if name in high.mean_ms]
        if high.load < MIN_STEP * low.load or not latencies or before is None or after is None:
            continue
        checked = True
        if all(abs(a - b) <= ALIKE * max(a, b) for a, b in [(before, after), *latencies]):
            words = f"throughput and latency are the same at {low.name} and {high.name}"
            broken.append(f"{words} ({before:.5g} and {after:.5g} tok/s)")
    return RuleOutcome(broken, "" if checked else "no two loads of one shape with throughput and latency")


def _falling_tpot(run: QuotedRun) -> RuleOutcome:
    broken, checked = [], False
    for low, high in _steps([one for one in run.stages if (one.completed or 0) >= MIN_VALUES]):
        before, after = low.mean_ms.get("tpot"), high.mean_ms.get("tpot")
        checked |= before is not None and after is not None
        if before is not None and after is not None and after < (1 - MIN_FALL) * before:
            broken.append(f"TPOT falls from {before:.4g} ms at {low.name} to {after:.4g} ms at {high.name}")
    return RuleOutcome(broken, "" if checked else "no two loads of one shape with TPOT over enough requests")


def _empty_answers(run: QuotedRun) -> RuleOutcome:
    known = [one for one in run.stages if one.completed and (one.output_tokens is not None or one.osl_mean is not None)]
    broken = [
        f"{one.completed} requests at {one.name} succeeded with {one.output_tokens or 0} output tokens"
        for one in known
        if (one.osl_mean if one.output_tokens is None else one.output_tokens / (one.completed or 1)) < 1  # type: ignore[operator]
    ]
    broken += _said(run, "short-answers")
    return RuleOutcome(broken, "" if known else "the number of output tokens is not known")


def _failed_requests(run: QuotedRun) -> RuleOutcome:
    known = [one for one in run.stages if one.failed is not None]
    broken = [
        f"{one.failed} of {one.failed + (one.completed or 0)} requests failed at {one.name}"
        for one in known
        if one.failed is not None and one.failed > MAX_FAILED * (one.failed + (one.completed or 0))
    ]
    return RuleOutcome(broken, "" if known else "the number of failed requests is not known")


def _edges_in_window(run: QuotedRun) -> RuleOutcome:
    """Where ramp-in and drain were not measured and are in the figures, each lasts about as long as a request."""
    broken, checked = _said(run, "inconclusive"), False
    for stage in run.stages:
        e2e_ms, edges = stage.mean_ms.get("e2e"), stage.edges
        if edges is not None and edges > MAX_EDGES:
            broken.append(f"{edges:.0%} of the measured time at {stage.name} is first wave or drain")
        lasts = (
            e2e_ms / 1000 / stage.measured_s if stage.whole_run and e2e_ms is not None and stage.measured_s else None
        )
        if edges is None and lasts is not None and lasts > MAX_EDGES and not _is_short(stage):
            broken.append(f"a request takes {lasts:.0%} of the time at {stage.name}, and ramp-in and drain are in it")
        checked |= edges is not None or lasts is not None
    return RuleOutcome(broken, "" if checked else "how long ramp-in and drain took is not known")


def _few_samples(run: QuotedRun) -> RuleOutcome:
    known = [(n, name.upper(), one.name) for one in run.stages for name, n in one.p99_values.items()]
    broken = [f"p99 of {name} at {stage} comes from {n} values" for n, name, stage in sorted(known) if n < MIN_FOR_P99]
    return RuleOutcome(broken, "" if known else "no p99 is known with the number of its values")


def _beyond_peak(run: QuotedRun) -> RuleOutcome:
    known = [(one, name, value) for one in run.stages for name, value in one.peak_percent.items()]
    broken = [f"{name} {value:.0f}% at {one.name}" for one, name, value in known if value > FULL_PERCENT]
    return RuleOutcome(broken, "" if known else "the work of the GPUs, or their peak, is not known")


def _provenance(run: QuotedRun) -> RuleOutcome:
    missing = [name for name, value in run.named.items() if value is None]
    return RuleOutcome([f"not named: {', '.join(missing)}"] if missing else ())


def _hardware(run: QuotedRun) -> RuleOutcome:
    broken = [*(run.faults or []), *_said(run, "host-limited")]
    return RuleOutcome(broken, "no GPU was measured" if run.faults is None else "")


def _said(run: QuotedRun, *ids: str) -> list[str]:
    """What the verdicts of the stages say."""
    found = ((one, one.verdicts[name]) for one in run.stages for name in ids if name in one.verdicts)
    return [f"at {stage.name}: {text.partition(';')[0]}" for stage, text in found]


class QuoteRule(NamedTuple):
    """Decided by a condition, or by verdicts that a run has where there is the evidence."""

    name: str  # stable, for scripts
    remedy: str
    check: Callable[[QuotedRun], RuleOutcome] | None = None
    verdicts: tuple[str, ...] = ()  # ids
    unknown: str = ""  # why the verdicts cannot be had

    def outcome(self, run: QuotedRun) -> RuleOutcome:
        if self.check is not None:
            return self.check(run)
        has_evidence = all(self.name in stage.known for stage in run.stages)
        return RuleOutcome(_said(run, *self.verdicts), "" if has_evidence else self.unknown)


RULES = (
    QuoteRule(
        "simulated",
        "measure a real engine",
        lambda run: RuleOutcome(["the engine is a simulator"] if run.simulated else ()),
    ),
    QuoteRule(
        "cut-short",
        "run it again, or quote only the stages that were complete, and say so",
        lambda run: RuleOutcome([run.cut_short] if run.cut_short else ()),
    ),
    QuoteRule(
        "failed-requests", "find out why; the figures are those of the requests that were left", _failed_requests
    ),
    QuoteRule("empty-answers", "look at the answers: ignore_eos, max_tokens, errors in the stream", _empty_answers),
    QuoteRule(
        "few-requests",
        f"at least {MIN_WAVES} requests for each stream, or figures without ramp-in and drain",
        _few_requests,
    ),
    QuoteRule("identical-levels", "enough requests at each level to reach its load", _identical_levels),
    QuoteRule("littles-law", "rate, concurrency and latency of the same requests in the same window", _littles_law),
    QuoteRule("offered-rate", "a lower rate, or quote it as overload, with its length", _offered_rate),
    QuoteRule("e2e-parts", "one definition: TPOT is (E2E - TTFT) / (n - 1), in tokens and not in chunks", _e2e_parts),
    QuoteRule("falling-tpot", "warm up each level, send new prompts, repeat it in another order", _falling_tpot),
    QuoteRule(
        "edges", "measure from after the first wave to before the last requests, or for longer", _edges_in_window
    ),
    QuoteRule("few-samples", f"at least {MIN_FOR_P99} values for a p99, or quote p50 and p90 alone", _few_samples),
    QuoteRule(
        "prefix-cache",
        "new prompts at each level (another seed), or an empty cache",
        verdicts=("prefix-cache",),
        unknown="hits of the prefix cache are not known",
    ),
    QuoteRule(
        "speculation",
        "prompts of a data set: random tokens say nothing about acceptance",
        verdicts=("spec-decode-random",),
        unknown="whether the engine speculates is not known",
    ),
    QuoteRule(
        "client",
        "free the client's cores, give it more, or remove what is between it and the engine",
        verdicts=("client-limited", "stream-buffered", "truth", "accounting", "clock-moved"),
        unknown="whether the client kept up, or who held the output back, is not known",
    ),
    QuoteRule(
        "other-traffic",
        "repeat it without other clients",
        verdicts=("other-traffic",),
        unknown="traffic of other clients is not known",
    ),
    QuoteRule(
        "output",
        "find out why the output is wrong",
        verdicts=_OUTPUT,
        unknown="no answer was checked",
    ),
    QuoteRule(
        "hardware", "fix the hardware or host, or quote the figures as those of this box and not of the part", _hardware
    ),
    QuoteRule("beyond-peak", "check the number of GPUs, the precision, and what was counted as a token", _beyond_peak),
    QuoteRule("provenance", "name model, engine version, GPUs and command line with the figures", _provenance),
)
