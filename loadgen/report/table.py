"""The table of a result, in the words and order of published benchmarks: a group of rows per stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadgen.format import UNKNOWN, exact, exact_percent, fixed, signed_percent
from loadgen.record.figures import FIGURES
from loadgen.record.slo import sure_words
from loadgen.report.columns import (
    PUBLISHED,
    NamedSummary,
    curve_lines,
    host_columns,
    instance_columns,
    run_curve,
    statistic_columns,
)
from loadgen.report.notes import (
    Note,
    first_messages,
    foreign_notes,
    has_numbers,
    mfu_unknown,
    reference_notes,
    request_counts,
    stage_notes,
    took_part,
)
from loadgen.report.output import output_lines
from loadgen.report.served import LATENCY, latencies_of, watched_notes
from loadgen.report.tabular import Column, text_lines
from loadgen.schema.comparison import Compared, ReferenceResult
from loadgen.schema.engine import EngineStage, OthersTraffic
from loadgen.schema.journal import SearchPoint
from loadgen.schema.result import Requests, Result, SloCheck, StageResult

_LATENCIES = {"ttft": "TTFT", "ttft_from_intended": " from due", "tpot": "TPOT", "itl": "ITL", "e2e": "E2EL"}
_LATENCY_COLUMNS = (
    Column[NamedSummary]("", lambda row: row.title, words=True, width=16),
    *(
        replace(column, short="median") if column.label == "p50" else column
        for column in statistic_columns("mean p50 p90 p99 max")
    ),
)
_WIDTH = 78
_BESIDE = ("output_tok_s", "req_s", "ttft", "tpot", "goodput", "j_per_token")
"""The figures shown beside a baseline; `vramp compare` shows all."""


def result_table(result: Result) -> str:
    """All stages, the client's health, and how the run ended."""
    groups, notes = [], watched_notes(result.stages)
    for stage in result.stages:
        if stage.target.concurrency == 0:
            served = [] if result.environment.get("engine") == "none" else _served_lines(stage)
            groups += _watched_lines(stage, served, notes[stage.index])
        elif took_part(stage):
            groups += _stage_lines(stage, result.reference)
    curve = curve_lines(run_curve(result))
    if curve:
        groups += [f"{' all stages, by the streams held ':=^{_WIDTH}}", *curve]
    reference = result.reference
    if reference is not None:
        groups += [
            "-" * _WIDTH,
            f"published: {reference.source}",
            *(f"  {note}" for note in reference_notes(reference)),
        ]
    return "\n".join([*groups, *_footer(result)])


def _stage_lines(stage: StageResult, reference: ReferenceResult | None) -> list[str]:
    head = f"stage {stage.index + 1}: {stage.label}, ISL {stage.isl}, OSL {stage.osl}"
    return [
        f"{f' {head} ':=^{_WIDTH}}",
        *_request_lines(stage.requests),
        *(_measured_lines(stage) if has_numbers(stage) else []),
        *_failure_lines(stage),
        # The client's limit has a line of its own.
        *(_line("Verdict", verdict.text) for verdict in stage.verdicts if verdict.id != "client-limited"),
        *(_line(note.subject, note.text) for note in stage_notes(stage)),
        *_reason_lines(stage),
        *_reference_lines(stage, reference),
        *_baseline_lines(stage),
    ]


def _watched_lines(stage: StageResult, served: Sequence[str], notes: Sequence[Note]) -> list[str]:
    """A stage without load: what the engine served to others, and what the GPUs drew."""
    return [
        f"{f' stage {stage.index + 1}: {stage.label} ':=^{_WIDTH}}",
        _line("Duration (s)", stage.measured_s),
        *served,
        *text_lines(LATENCY, latencies_of(stage.engine), fixed),
        *(_line(note.subject, note.text) for note in notes),
        *_energy_lines(stage),
        *(_line("Verdict", verdict.text) for verdict in stage.verdicts),
        *(_line(note.subject, note.text) for note in stage_notes(stage)),
    ]


def _served_lines(stage: StageResult) -> list[str]:
    """What the engine did meanwhile."""
    engine, others = stage.engine or EngineStage(), stage.others or OthersTraffic()
    return [
        _line("Requests of others, mean in the engine", others.running),
        _line("Requests that ended", engine.requests),
        _line("Request throughput (req/s)", engine.requests_per_s),
        _line("Input token throughput (tok/s)", engine.prompt_tokens_per_s),
        _line("Output token throughput (tok/s)", engine.generation_tokens_per_s),
    ]


def _request_lines(requests: Requests) -> Iterator[str]:
    failed = "Failed requests" if requests.failed else "Carried in"
    for one in request_counts(requests):
        yield _line(one.name, one.words)
        if one.name == failed:
            yield from (_line(f"  {kind}", count) for kind, count in requests.errors.items())


def _measured_lines(stage: StageResult) -> list[str]:
    throughput = stage.throughput
    return [
        _line("Benchmark duration (s)", stage.measured_s),
        _line("Mean concurrency", stage.concurrency.mean),
        _line("Total input tokens", stage.tokens.input),
        _line("Total generated tokens", stage.tokens.output),
        _line("Request throughput (req/s)", throughput.requests_per_s),
        _line("Output token throughput (tok/s)", throughput.output_tokens_per_s),
        _line("Total token throughput (tok/s)", throughput.total_tokens_per_s),
        *(curve_lines(stage.curve) or _latency_lines(stage)),
        *(_line(f"SLO {name} <= {exact(check.limit_ms)} ms", _checked(check)) for name, check in stage.slo.items()),
        *_engine_lines(stage),
        *_prefix_lines(stage),
        *_goodput_lines(stage),
        *_energy_lines(stage),
        *_cost_lines(stage),
        *text_lines(instance_columns(decimals=2), stage.instances, fixed, short=False),
        *text_lines(host_columns(decimals=2), stage.hosts, fixed, short=False),
    ]


def _latency_lines(stage: StageResult) -> list[str]:
    """Lines with the known latencies; in open loop also TTFT from intended, for arrivals that were held back."""
    rows = [
        NamedSummary(f"{title} (ms)", stage.latency_ms[name])
        for name, title in _LATENCIES.items()
        if (name != "ttft_from_intended" or stage.target.rate is not None)
        and (name != "e2e" or stage.e2e_inconclusive is None)
    ]
    return text_lines(_LATENCY_COLUMNS, rows, fixed)


def _failure_lines(stage: StageResult) -> list[str]:
    failures = stage.failures
    if failures is None or (failures.met and not failures.allowed):
        return []
    words = f"{'met' if failures.met else 'MISSED'} ({failures.count} of {failures.scheduled})"
    return [_line(f"SLO failed or unsent <= {100 * failures.allowed:g} %", words)]


def _checked(check: SloCheck) -> str:
    if check.is_empty:
        return "not measured"
    word, missed = "met" if check.met else "MISSED", not check.met and check.missed
    streams = f"; {check.missed} of {check.population} beyond it" if missed else ""
    sure = sure_words(check)
    return f"{word} ({fixed(check.measured_ms, 3)}{streams}{'; ' if sure else ''}{sure})"


def _engine_lines(stage: StageResult) -> list[str]:
    truth = stage.truth
    if truth is None:
        return []
    if truth.ttft_server_ms is None:
        return [_line("Engine's own mean TTFT (ms)", f"{UNKNOWN} ({truth.why})")]
    return [
        _line("Mean TTFT of all streams (ms)", truth.ttft_client_ms),
        _line("The engine's own of the same (ms)", truth.ttft_server_ms),
        _line("Mean TTFT outside the engine (ms)", truth.ttft_outside_ms),
        *([_line("These means are of", truth.over)] if truth.over else []),
    ]


def _prefix_lines(stage: StageResult) -> list[str]:
    hits = stage.engine.prefix_hit_rate if stage.engine is not None else None
    return [_line("Prefix cache hits (% of prompt tokens)", 100 * hits)] if hits is not None else []


def _goodput_lines(stage: StageResult) -> list[str]:
    goodput = stage.goodput
    if goodput is None or goodput.share is None:
        return []
    limits = ", ".join(f"{name} <= {exact(limit)} ms" for name, limit in goodput.limits_ms.items())
    met = "met" if goodput.met else f"MISSED, wanted {exact_percent(goodput.wanted)}"
    return [_line(f"Goodput ({limits})", f"{exact_percent(goodput.share)} of the streams: {met}")]


def _search_lines(result: Result) -> list[str]:
    search = result.search
    if search is None:
        return []
    found = "nothing" if search.found is None else f"{search.by} {search.found:g}"
    bounds = f" ({search.low:g} to {search.high:g})" if search.low is not None and search.high is not None else ""
    resolved = "" if search.resolved else "UNRESOLVED: "
    head = f"search for the {search.kind}: {resolved}{found}{bounds}, {search.probes} probes; {search.why}"
    points = [point for point in search.points if search.kind == "knee" and point.held is not None]
    return [head, *text_lines(_KNEE_CURVE, sorted(points, key=lambda point: point.load), fixed)]


_KNEE_CURVE: tuple[Column[SearchPoint], ...] = (
    Column("streams held", lambda point: point.held, width=14),
    Column("output tok/s", lambda point: point.output_tokens_per_s, width=16),
    Column("error %", lambda point: point.error_percent, width=12),
)


def _energy_lines(stage: StageResult) -> list[str]:
    energy = stage.energy
    if energy is None or energy.joules is None:
        return []
    source = f"{energy.source}{', counters distrusted' if energy.distrusted else ''}, {len(energy.sockets)} sockets"
    lines = [
        _line("Energy (J)", f"{energy.joules:.0f} ({source})"),
        _line("Mean power (W)", f"{energy.joules / energy.window_s:.0f}"),
    ]
    if energy.joules_per_output_token is None:
        return lines
    return [
        *lines,
        _line("Energy per output token (J)", energy.joules_per_output_token),
        _line("Output tok/s per W", energy.tokens_per_s_per_w),
    ]


def _cost_lines(stage: StageResult) -> list[str]:
    per_gpu, cost = stage.throughput.output_tokens_per_s_per_gpu, stage.cost
    lines = [_line("Output tok/s per GPU", per_gpu)] if per_gpu is not None else []
    if cost is None:
        return lines
    return [
        *lines,
        _line("Cost per million output tokens ($)", fixed(cost.usd_per_million_output_tokens, 3)),
        _line("Cost per million tokens ($)", fixed(cost.usd_per_million_total_tokens, 3)),
    ]


def _reference_lines(stage: StageResult, reference: ReferenceResult | None) -> list[str]:
    found = [one for one in reference.comparisons if one.stage == stage.index] if reference is not None else []
    figure, *numbers = PUBLISHED
    named = replace(figure, label="published", value=lambda one: f"  {figure.value(one)}", width=40)
    return text_lines([named, *numbers], found, fixed)


def _baseline_lines(stage: StageResult) -> list[str]:
    beside = stage.baseline
    if beside is None:
        return []
    head = f"{f'baseline {beside.name}':<24}{'baseline':>12}{'measured':>12}{'difference':>12}"
    lines = [_besides(one) for one in beside.figures if one.figure.startswith(_BESIDE)]
    return [*([head, *lines] if lines else []), _line(f"Against baseline {beside.name}", beside.verdict)]


def _besides(one: Compared) -> str:
    found = one.difference
    difference = signed_percent(found.percent if found is not None else None)
    word = "" if found is None or found.word == "no evidence" else f"  {found.word}"
    return f"{f'  {FIGURES[one.figure].title}':<24}{fixed(one.a):>12}{fixed(one.b):>12}{difference:>12}{word}"


def _reason_lines(stage: StageResult) -> list[str]:
    lines = [_line("Client-limited", stage.why)] if stage.limited else []
    return lines + first_messages(stage)


def _footer(result: Result) -> list[str]:
    return [
        "=" * _WIDTH,
        *([f"data: {result.data.words}"] if result.data is not None else []),
        *_mfu_lines(result),
        *_search_lines(result),
        *output_lines(result),
        *(f"{verdict.subject}: {verdict.text}" for verdict in result.verdicts),
        *([str(note) for note in foreign_notes(result)] or [_client_line(result)]),
        *([f"run: {result.state}: {result.reason}"] if result.state != "complete" else []),
    ]


def _client_line(result: Result) -> str:
    if result.kind == "monitor":
        return "client: sent nothing"
    client = result.client
    trust = f"LIMITED ({client.why})" if client.limited else "not limited"
    lag = fixed(client.read_lag_ms.p99)
    realtime = "" if client.realtime is None else f", realtime {client.realtime:.0%}"
    stamps = f"{client.timestamps or 'no'} timestamps, read lag p99 {lag} ms"
    placed = client.placement
    where = f"; workers on {placed.words}" if placed is not None and placed.pinned else ""
    return f"client: {trust}; {stamps}, {client.cpu_s:.1f} s of CPU{realtime}{where}"


def _mfu_lines(result: Result) -> list[str]:
    """Why the engine has no estimate of operations, once for all stages; each stage gives other reasons itself."""
    whys = dict.fromkeys(mfu_unknown(stage) for stage in result.stages if stage.compute is None)
    return [f"MFU: unknown: {why}" for why in whys if why]


def _line(name: str, value: float | str | None) -> str:
    text = value if isinstance(value, str) else str(value) if isinstance(value, int) else fixed(value)
    return f"{name + ':':<44}{text}"
