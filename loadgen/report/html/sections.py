"""The tables of what was measured: stages, published figures, events, GPUs and energy, engine, client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadgen.format import UNKNOWN, gib, grouped, signed_percent
from loadgen.metrics.deltas import Summary
from loadgen.metrics.result import InstanceResult, Result, StageResult, TruthCheck
from loadgen.metrics.samples import GpuFigure, GpuStage
from loadgen.metrics.slo import met_limits
from loadgen.report.assessment import best_stage, titles
from loadgen.report.cells import published_name, statistic
from loadgen.report.html import markup
from loadgen.report.html.markup import Bad, Column
from loadgen.report.load_curve import curve_cells, moving_points, shape_of
from loadgen.report.notes import has_numbers, latencies, latency_titles, request_counts, stage_notes, took_part

_EMPTY = Summary(count=0)
_STATISTICS = {name: name for name in ("count", "mean", "stddev", "min", "p50", "p90", "p95", "p99")} | {
    "p99.9": "p999",
    "max": "max",
}


def stages_section(result: Result) -> str:
    """The published table, one row a stage, and what limited each."""
    stages = [stage for stage in result.stages if took_part(stage)]
    return markup.section(
        "Stages",
        markup.table(_STAGE_COLUMNS, [_stage_row(stage, titles(stages)[stage.index]) for stage in stages]),
        markup.subsection("What the numbers are of", markup.table(_NOTE_COLUMNS, _note_rows(stages))),
        markup.subsection("What became of the requests", _requests_table(stages)),
        markup.subsection("What limited them", markup.table(_VERDICT_COLUMNS, _verdict_rows(stages))),
        markup.subsection("Limits", _limits_table(stages)),
        markup.subsection("Failures", markup.table(_ERROR_COLUMNS, _error_rows(stages))),
    )


_STAGE_COLUMNS = (
    Column("load", text=True),
    Column("ISL / OSL"),
    Column("done", "requests"),
    Column("failed", "requests"),
    Column("req/s", "throughput"),
    Column("output tok/s", "throughput"),
    Column("per user", "throughput"),
    Column("p50", "TTFT, ms"),
    Column("p99", "TTFT, ms"),
    Column("p50", "TPOT, ms"),
    Column("p99", "TPOT, ms"),
    Column("p50", "E2E, ms"),
    Column("p99", "E2E, ms"),
    Column("J/token"),
    Column("limits", text=True),
)


def _stage_row(stage: StageResult, name: str) -> Sequence[str]:
    requests, rate = stage.requests, stage.throughput
    ttft, tpot, e2e = (latencies(stage).get(key, _EMPTY) for key in ("ttft", "tpot", "e2e"))
    return (
        name,
        f"{stage.isl} / {stage.osl}",
        grouped(requests.completed),
        Bad(grouped(requests.failed)) if requests.failed else "0",
        grouped(rate.requests_per_s, 2),
        grouped(rate.output_tokens_per_s),
        grouped(rate.output_tokens_per_s_per_user, 1),
        statistic(ttft, "p50", 1),
        statistic(ttft, "p99", 1),
        grouped(tpot.p50, 2),
        grouped(tpot.p99, 2),
        grouped(e2e.p50),
        grouped(e2e.p99),
        grouped(stage.energy.joules_per_output_token if stage.energy is not None else None, 2),
        {True: "met", False: Bad("missed"), None: UNKNOWN}[met_limits(stage)],
    )


_NOTE_COLUMNS = (Column("load", text=True), Column("what", text=True), Column("note", text=True))


def _note_rows(stages: Sequence[StageResult]) -> list[Sequence[str]]:
    names = titles(stages)
    return [
        (names[stage.index] if number == 0 else "", note.subject, note.text)
        for stage in stages
        for number, note in enumerate(stage_notes(stage))
    ]


def _requests_table(stages: Sequence[StageResult]) -> str:
    """A column for each outcome that occurred; none where all requests were answered."""
    names, found = titles(stages), [{one.name: one for one in request_counts(stage.requests)} for stage in stages]
    columns = list(dict.fromkeys(name for counts in found for name in counts))
    rows = [
        [names[stage.index], *(counts[name].words if name in counts else "0" for name in columns)]
        for stage, counts in zip(stages, found, strict=True)
    ]
    return markup.table([Column("load", text=True), *(Column(name) for name in columns)], rows if columns[1:] else [])


_VERDICT_COLUMNS = (Column("load", text=True), Column("verdict", text=True))


def _verdict_rows(stages: Sequence[StageResult]) -> list[Sequence[str]]:
    names = titles(stages)
    return [(names[stage.index], words) for stage in stages if (words := _verdict_words(stage))]


def _verdict_words(stage: StageResult) -> str:
    words = "; ".join(verdict.text for verdict in stage.verdicts)
    return Bad(words) if any(verdict.bad for verdict in stage.verdicts) else words


def _limits_table(stages: Sequence[StageResult]) -> str:
    """What was measured for each limit, a column a limit."""
    limits = {name: check.limit_ms for stage in stages for name, check in stage.slo.items()}
    goodput = next((stage.goodput for stage in stages if stage.goodput is not None), None)
    failures = [one for stage in stages if (one := stage.failures) is not None and (one.allowed or not one.met)]
    names = titles(stages)
    rows = [
        [
            names[stage.index],
            *(_checked(stage, name) for name in limits),
            *([_goodput_cell(stage)] if goodput is not None else []),
            *([_failures_cell(stage)] if failures else []),
        ]
        for stage in stages
    ]
    columns = [Column(f"{name}, ms (at most {limit_ms:,g})") for name, limit_ms in limits.items()]
    if goodput is not None:
        good = ", ".join(f"{name} at most {limit_ms:,g} ms" for name, limit_ms in goodput.limits_ms.items())
        columns.append(Column(f"streams with {good} (at least {goodput.wanted:.0%})"))
    if failures:
        columns.append(Column(f"failed or never sent (at most {100 * failures[0].allowed:g} %)"))
    return markup.table([Column("load", text=True), *columns], rows) if columns else ""


def _checked(stage: StageResult, name: str) -> str:
    check = stage.slo.get(name)
    if check is None:
        return UNKNOWN
    measured = grouped(check.measured_ms, 1)
    return measured if check.met else Bad(measured)


def _failures_cell(stage: StageResult) -> str:
    failures = stage.failures
    if failures is None:
        return UNKNOWN
    words = f"{failures.count:,} of {failures.scheduled:,}"
    return words if failures.met else Bad(words)


def _goodput_cell(stage: StageResult) -> str:
    goodput = stage.goodput
    if goodput is None:
        return UNKNOWN
    share = UNKNOWN if goodput.share is None else f"{goodput.share:.1%}"
    return share if goodput.met else Bad(share)


_ERROR_COLUMNS = (Column("kind", text=True), Column("count"), Column("first message", text=True))


def _error_rows(stages: Sequence[StageResult]) -> list[Sequence[str]]:
    counts: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for stage in stages:
        counts.update(stage.requests.errors)
        for kind, texts in stage.requests.messages.items():
            messages.setdefault(kind, texts[0] if texts else "")
    return [(kind, grouped(count), messages.get(kind, "")) for kind, count in counts.most_common()]


def latency_table(result: Result) -> str:
    stages = [stage for stage in result.stages if has_numbers(stage) and not stage.curve]
    names = titles(stages)
    columns = [Column("ms", text=True), Column("load", text=True), *(Column(name) for name in _STATISTICS)]
    rows = [
        [title if number == 0 else "", names[stage.index], *_statistics(stage.latency_ms.get(key, _EMPTY))]
        for key, title in latency_titles(stages).items()
        for number, stage in enumerate(stages)
    ]
    return markup.table(columns, rows)


def _statistics(summary: Summary) -> list[str]:
    return [statistic(summary, key, 0 if key == "count" else 2) for key in _STATISTICS.values()]


def curve_table(result: Result) -> str:
    """What was measured against the streams held."""
    words = [Column("ISL / OSL"), Column("load", text=True), Column("held")]
    throughput = [Column("tok/s", "output"), Column("per user", "output")]
    times = [Column(name, group) for group in ("TTFT, ms", "ITL, ms") for name in ("p50", "p99", "count")]
    rows = [[shape_of(point), *curve_cells(point)] for point in moving_points(result)]
    return markup.table([*words, *throughput, *times], rows)


def published_section(result: Result) -> str:
    reference = result.reference
    if reference is None:
        return ""
    names = titles(result.stages)
    columns = (
        Column("load", text=True),
        Column("figure", text=True),
        Column("published"),
        Column("measured"),
        Column("difference"),
    )
    rows = [
        (
            names[one.stage],
            published_name(one),
            grouped(one.published, 2),
            grouped(one.measured, 2),
            signed_percent(one.difference_percent),
        )
        for one in reference.comparisons
    ]
    missing = "" if rows else "No stage of this run has the load of a published figure."
    return markup.section(
        "Published and measured",
        markup.paragraph(missing),
        markup.table(columns, rows),
        markup.lines(reference.notes),
        note=reference.source,
    )


def events_table(result: Result) -> str:
    columns = (Column("s"), Column("kind", text=True), Column("what", text=True))
    rows = [
        (grouped(event.t_s, 1), Bad(event.kind) if event.kind == "error" else event.kind, event.text)
        for event in result.events
    ]
    return markup.table(columns, rows)


def gpu_section(result: Result) -> str:
    """What is wrong with the GPUs, each of them under the most load, and the energy of each stage."""
    stage = best_stage(result)
    looks = stage.gpu if stage is not None else []
    at = f"At {titles(result.stages)[stage.index]}; means over the measured window." if stage and looks else ""
    return markup.section(
        "GPUs and energy",
        markup.lines(f"{verdict.subject}: {verdict.text}" for verdict in result.verdicts),
        markup.table(_GPU_COLUMNS, [_gpu_row(gpu) for gpu in looks]),
        markup.subsection("Energy of the sockets", markup.table(_ENERGY_COLUMNS, _energy_rows(result))),
        note=at,
    )


_GPU_COLUMNS = (
    Column("GPU", text=True),
    Column("busy %"),
    Column("memory busy %"),
    Column("HBM GiB, most"),
    Column("of"),
    Column("power W"),
    Column("hotspot \N{DEGREE SIGN}C, most"),
    Column("clock MHz"),
    Column("held back", text=True),
)


def _gpu_row(gpu: GpuStage) -> Sequence[str]:
    throttled = ", ".join(f"{reason} {share:.0f} %" for reason, share in gpu.throttled_percent.items())
    return (
        f"{gpu.index}  {gpu.name}",
        _mean(gpu.gfx_percent),
        _mean(gpu.memory_percent),
        grouped(gib(gpu.hbm_used_bytes_max), 1),
        grouped(gib(gpu.hbm_total_bytes), 1),
        _mean(gpu.power_w),
        grouped(gpu.temperature_hotspot_c.max if gpu.temperature_hotspot_c is not None else None),
        _mean(gpu.gfx_clock_mhz),
        Bad(throttled) if throttled else UNKNOWN,
    )


def _mean(figure: GpuFigure | None) -> str:
    return UNKNOWN if figure is None else grouped(figure.mean)


_ENERGY_COLUMNS = (
    Column("load", text=True),
    Column("kJ"),
    Column("mean W"),
    Column("J/output token"),
    Column("output tok/s per W"),
    Column("measured by", text=True),
)


def _energy_rows(result: Result) -> list[Sequence[str]]:
    names = titles(result.stages)
    return [
        (
            names[stage.index],
            grouped(energy.joules / 1000, 1),
            grouped(energy.joules / energy.window_s),
            grouped(energy.joules_per_output_token, 2),
            grouped(energy.tokens_per_s_per_w, 3),
            Bad(f"{energy.source}, counters distrusted") if energy.distrusted else str(energy.source),
        )
        for stage in result.stages
        if (energy := stage.energy) is not None and energy.joules is not None
    ]


def engine_section(result: Result) -> str:
    """The engine's own word beside the client's, and each server's part where there are several."""
    names = titles(result.stages)
    checked = [(names[stage.index], stage, stage.truth) for stage in result.stages if stage.truth is not None]
    rows = [_truth_row(name, stage, truth) for name, stage, truth in checked]
    whys: dict[str, list[str]] = {}
    for name, _, truth in checked:
        whys.setdefault(truth.why, []).append(name)
    notes = [f"{why} ({', '.join(loads)})" for why, loads in whys.items() if why]
    stage = best_stage(result)
    servers = [_instance_row(one) for one in stage.instances] if stage is not None else []
    return (
        markup.section(
            "Client and engine",
            markup.table(_TRUTH_COLUMNS, rows),
            markup.subsection("Notes", markup.lines(notes)),
            markup.subsection("Servers", markup.table(_INSTANCE_COLUMNS, servers)),
            note="Both saw the same requests: mean times to first token, and where the engine's own were spent.",
        )
        if rows or servers
        else ""
    )


_TRUTH_COLUMNS = (
    Column("load", text=True),
    Column("client", "TTFT, ms"),
    Column("engine", "TTFT, ms"),
    Column("between", "TTFT, ms"),
    Column("queue", "in the engine, ms"),
    Column("prefill", "in the engine, ms"),
    Column("front end", "in the engine, ms"),
    Column("preemptions"),
    Column("prefix hits"),
    Column("agree", text=True),
)


def _truth_row(name: str, stage: StageResult, truth: TruthCheck) -> Sequence[str]:
    engine = stage.engine
    times = (truth.ttft_client_ms, truth.ttft_server_ms, truth.ttft_outside_ms, truth.queue_ms, truth.prefill_ms)
    hits = engine.prefix_hit_rate if engine is not None else None
    return (
        name,
        *(grouped(time, 1) for time in times),
        grouped(truth.frontend_ms, 1),
        grouped(engine.preemptions if engine is not None else None),
        UNKNOWN if hits is None else f"{hits:.1%}",
        {True: "yes", False: Bad("no"), None: "not compared"}[truth.agrees],
    )


_INSTANCE_COLUMNS = (
    Column("server", text=True),
    Column("done"),
    Column("failed"),
    Column("output tok/s"),
    Column("TTFT p50, ms"),
    Column("TPOT p50, ms"),
)


def _instance_row(one: InstanceResult) -> Sequence[str]:
    ttft, tpot = one.latency_ms.get("ttft", _EMPTY), one.latency_ms.get("tpot", _EMPTY)
    output = one.throughput.output_tokens_per_s
    done, failed = one.requests.completed, one.requests.failed
    return one.url, grouped(done), grouped(failed), grouped(output), grouped(ttft.p50, 1), grouped(tpot.p50, 2)


def client_section(result: Result) -> str:
    """Whether the client could do what was asked of it."""
    client = result.client
    lag, late = client.read_lag_ms, client.send_lag_ms
    lags = [grouped(value, 2) for value in (lag.p50, lag.p99, lag.max)]
    reads = UNKNOWN if client.coalesced_reads is None else f"{client.coalesced_reads:.2%}"
    ahead = UNKNOWN if client.realtime is None else f"{client.realtime:.0%} of the time"
    return markup.section(
        "The client's own health",
        markup.pairs(
            {
                "Verdict": Bad(f"limited: {client.why}") if client.limited else "not limited",
                "Timestamps": {"kernel": "the kernel's, at reception", "user": "of the process, after the read"}.get(
                    client.timestamps or "", "none: nothing was read"
                ),
                "Read lag": f"p50 {lags[0]} ms, p99 {lags[1]} ms, most {lags[2]} ms",
                "Sent late by": f"mean {grouped(late.mean, 2)} ms, p99 {grouped(late.p99, 2)} ms",
                "Reads of several events": reads,
                "Workers": f"{client.workers}, {client.cpu_s:.1f} s of CPU in all, {client.connects} connections",
                "Ran before other processes": ahead,
            }
        ),
    )
