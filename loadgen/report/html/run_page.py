"""The report of a run: what ran and whether it is healthy, then figures, tables and configuration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from operator import attrgetter

from loadgen.format import UNKNOWN, Statistic, bounded, gib, memory, significant
from loadgen.metrics.verdicts import POWER_LIMITS
from loadgen.record.subject import hardware_of, model_of
from loadgen.report import document
from loadgen.report.assessment import best_stage, titles
from loadgen.report.columns import TOTAL_BY_E2E, moving_points
from loadgen.report.configuration import flattened
from loadgen.report.html import charts
from loadgen.report.html.charts import PALE_NOTE, axes_of, frontier_figure
from loadgen.report.html.page import (
    Figures,
    grid,
    legend,
    opening,
    page,
    pairs,
    paragraph,
    placed,
    preformatted,
    rendered,
    section,
    subsection,
)
from loadgen.report.html.timeline import timeline
from loadgen.report.notes import LATENCY_TITLES, latencies
from loadgen.report.output import answer_columns, text_columns
from loadgen.report.tabular import Bad, Column, Value, html_table, judged, plain
from loadgen.schema.deltas import MAIN_LATENCIES, Summary
from loadgen.schema.finding import Finding, by_severity
from loadgen.schema.hardware_result import GpuStage
from loadgen.schema.result import Result, RunEvent, met_limits

_DEFINITIONS = (
    "TTFT is the time from the request's bytes to the first event with generated output; TPOT the time from there to "
    "the last event by output token; ITL the gap between events by token; E2E from the request to the last event. "
    "Percentiles are nearest rank over HDR histograms of three significant digits; warm-up is in the time axis and in "
    "no statistic. Throughput is what arrived in the measured window; energy is that of the GPU sockets."
)

_STATISTICS = "count mean stddev min p50 p90 p95 p99 p999 max"


def html_report(result: Result) -> str:
    """The document's sections, some with figures, and what only a page has room for."""
    figures: Figures = {}
    drawn = {document.by_load_held(result).title: _by_held(result, figures), "Latency": _distributions(result, figures)}
    parts = [_opening(result), _curve(result, figures)]
    for found in document.sections(result, _STATISTICS):
        tables, canary = [*found.tables], result.canary
        if found.title == "Output" and canary is not None:
            tables.append(document.Table(text_columns(canary.texts), canary.texts))
            tables.append(document.Table(answer_columns(canary.answers), canary.answers))
        parts.append(rendered(found._replace(tables=tables), drawn.get(found.title, "")))

    stage = best_stage(result)
    looks = stage.gpu if stage is not None else []
    where = f"At {titles(result.stages)[stage.index]}; means over the measured window." if stage and looks else ""
    died, diagnosis = "", result.diagnosis
    if diagnosis is not None:
        died = paragraph(f"{diagnosis.title}. {diagnosis.remedy}", "bad") + preformatted("\n".join(diagnosis.evidence))
    parts += [
        _time(result, figures),
        section("GPUs", html_table(_GPU, looks), note=where),
        section("Preflight", died, html_table(_FINDINGS, by_severity(result.findings))),
        _configuration_section(result),
        f"<footer>{plain(_DEFINITIONS)}</footer>",
    ]
    return page(f"{model_of(result)} \N{MIDDLE DOT} {result.run_id}", parts, figures)


def _opening(result: Result) -> str:
    head = document.heading(result)
    answers = "\n".join(
        f"<dt>{plain(one.subject)}</dt><dd{' class=bad' if isinstance(one.text, Bad) else ''}>{plain(one.text)}</dd>"
        for one in head.notes
    )
    made_by = f"vramp {result.vramp_version} \N{MIDDLE DOT} {result.run_id}"
    about, listed = paragraph(head.about, "note"), f"<dl class='answers'>\n{answers}\n</dl>"
    return opening(made_by, model_of(result), f"on {hardware_of(result)}", about, listed, _headline(result))


def _headline(result: Result) -> str:
    """The headline figures, from the best stage."""
    stage = best_stage(result)
    if stage is None:
        return ""
    rate, energy = stage.throughput, stage.energy
    ttft, tpot = (latencies(stage).get(name, Summary(count=0)) for name in ("ttft", "tpot"))
    numbers = {
        "output tok/s": significant(rate.output_tokens_per_s),
        "tok/s per user": significant(rate.output_tokens_per_s_per_user),
        "ms TTFT, median": bounded(Statistic.of(ttft, "p50")),
        "ms TTFT, p99": bounded(Statistic.of(ttft, "p99")),
        "ms TPOT, median": bounded(Statistic.of(tpot, "p50")),
        "J per output token": significant(energy.joules_per_output_token if energy is not None else None),
    }
    shown = [f"<li><b>{plain(value)}</b>{plain(what)}</li>" for what, value in numbers.items() if value != UNKNOWN]
    where = f"At {titles(result.stages)[stage.index]}, {stage.isl} tokens in and {stage.osl} out"
    why = "the only stage" if len(result.stages) == 1 else _WHY_BEST[met_limits(stage)]
    return f"<ul class='numbers'>{''.join(shown)}</ul>\n<p class='note'>{plain(where)}: {plain(why)}.</p>"


_WHY_BEST = {
    True: "the most throughput within the limits",
    False: "the most throughput; no stage met its limits",
    None: "the most throughput",
}


def _curve(result: Result, figures: Figures) -> str:
    if not charts.has_curve(result):
        return ""
    places = []
    for metric in ("ttft", "tpot"):
        title = f"{LATENCY_TITLES[metric]}, ms, against output tok/s"
        places.append(placed(figures, f"curve-{metric}", charts.latency_curve(result, metric), title))
    places.append(placed(figures, "curve-total", charts.throughput_curve(result), TOTAL_BY_E2E.title()))
    series = charts.series_by_shape(result)
    places.append(placed(figures, "frontier", frontier_figure(series), axes_of(series).title()))
    note = (
        "One point a stage, in the order of load. An open point missed a limit, or the client was limited. "
        f"On the frontier, {PALE_NOTE}"
    )
    return section("The load curve", grid(*places, columns=2), note=note)


def _by_held(result: Result, figures: Figures) -> str:
    points = moving_points(result)
    if not points:
        return ""
    return grid(
        placed(figures, "held-ttft", charts.latency_by_held(points, "ttft"), "TTFT, ms"),
        placed(figures, "held-itl", charts.latency_by_held(points, "itl"), "ITL, ms"),
        placed(figures, "held-output", charts.throughput_by_held(points), "Output tok/s"),
    )


def _distributions(result: Result, figures: Figures) -> str:
    found = {metric: charts.distribution(result, metric) for metric in MAIN_LATENCIES}
    places = [
        placed(figures, f"distribution-{metric}", figure, f"{LATENCY_TITLES[metric]}, ms")
        for metric, figure in found.items()
        if figure is not None
    ]
    if not places:
        return ""
    about = "By percentile, each nine as wide as the one before; a line ends where the stage has no more streams."
    key = legend({name: colour for name, (_, colour) in charts.drawn_stages(result).items()})
    return "\n".join([paragraph(about, "note"), key, grid(*places, columns=2)])


def _time(result: Result, figures: Figures) -> str:
    figure = timeline(result)
    if figure is None:
        return ""
    return section(
        "What happened when",
        placed(figures, "timeline", figure, ""),
        html_table(_EVENTS, result.events),
        note="Grey lines are beginnings of stages, dotted ones notes and errors. Of several GPUs the first is light, "
        "the last strong. Drag to look closer, double click to go back.",
    )


_EVENTS: tuple[Column[RunEvent], ...] = (
    Column("s", lambda event: event.t_s, decimals=1),
    Column("kind", lambda event: judged(event.kind, good=event.kind != "error"), words=True),
    Column("what", lambda event: event.text, words=True),
)


def _throttled(gpu: GpuStage) -> Value:
    words = ", ".join(f"{reason} {share:.0f} %" for reason, share in gpu.throttled_percent.items())
    return (words if gpu.throttled_percent.keys() <= POWER_LIMITS else Bad(words)) or None


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


_GPU: tuple[Column[GpuStage], ...] = (
    Column("GPU", lambda gpu: f"{gpu.index}  {gpu.name}", words=True),
    Column("activity %", lambda gpu: getattr(gpu.gfx_percent, "mean", None), decimals=0),
    Column("memory activity %", lambda gpu: getattr(gpu.memory_percent, "mean", None), decimals=0),
    Column("SM activity %", lambda gpu: getattr(gpu.sm_percent, "mean", None), decimals=0),
    Column("DRAM bandwidth %", lambda gpu: getattr(gpu.dram_percent, "mean", None), decimals=0),
    Column("HBM GiB, most", lambda gpu: gib(gpu.hbm_used_bytes_max), decimals=1),
    Column("HBM GiB, total", lambda gpu: gib(gpu.hbm_total_bytes), decimals=1),
    Column("power W", lambda gpu: getattr(gpu.power_w, "mean", None), decimals=0),
    Column("hotspot \N{DEGREE SIGN}C, most", lambda gpu: getattr(gpu.temperature_hotspot_c, "max", None), decimals=0),
    Column("clock MHz", lambda gpu: getattr(gpu.gfx_clock_mhz, "mean", None), decimals=0),
    Column("link read GB/s", lambda gpu: _giga(gpu.link_read_bytes_per_s), decimals=1),
    Column("link write GB/s", lambda gpu: _giga(gpu.link_write_bytes_per_s), decimals=1),
    Column("held back", _throttled, words=True),
    Column("server's", lambda gpu: {True: "yes", False: "no", None: None}[gpu.of_server], words=True),
)


_FINDINGS: tuple[Column[Finding], ...] = (
    Column("", lambda one: judged(one.severity, good=one.severity != "blocks"), words=True),
    Column("finding", attrgetter("id"), words=True),
    *(Column(name, attrgetter(name), words=True) for name in ("seen", "why", "fix")),
)


def _configuration_section(result: Result) -> str:
    """The profile as run, the server's command, the machine."""
    environment = dict(result.environment)
    command, variables = environment.pop("server_command", None), environment.pop("server_env", None)
    instances = environment.pop("server_instances", None)
    profile = {name: value for name, value in result.profile.items() if name != "reference"}
    others = [_command_text(one.get("command"), one.get("env")) for one in (instances or [])[1:]]
    devices = {}
    for gpu in result.gpus:
        hbm = memory(gpu.hbm_total_bytes) if gpu.hbm_total_bytes else None
        devices[f"GPU {gpu.index}"] = ", ".join(filter(None, [gpu.name, gpu.bdf, hbm]))
    return section(
        "Configuration",
        subsection("Server", preformatted(_command_text(command, variables))),
        subsection("Other servers", preformatted("\n\n".join(filter(None, others)))),
        subsection("Profile", pairs(flattened(profile))),
        subsection("Machine", pairs(flattened(environment) | devices)),
        subsection("Telemetry", pairs(flattened(result.telemetry_meta or {}))),
    )


def _command_text(command: Sequence[str] | None, variables: dict[str, str] | None) -> str:
    if not command:
        return ""
    exports = [f"{name}={shlex.quote(value)}" for name, value in (variables or {}).items()]
    groups: list[str] = []
    for word in command:
        if groups and not word.startswith("-"):
            groups[-1] += f" {shlex.quote(word)}"
        else:
            groups.append(shlex.quote(word))
    return " \\\n  ".join([*exports, *groups])
