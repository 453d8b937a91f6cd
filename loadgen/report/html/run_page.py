"""The report of a run: what ran and whether it is healthy, then figures, tables and configuration."""

from __future__ import annotations

from loadgen.format import UNKNOWN, Statistic, bounded, significant
from loadgen.report import document
from loadgen.report.assessment import best_stage, titles
from loadgen.report.columns import TOTAL_BY_E2E, moving_points
from loadgen.report.configuration import hardware_of, model_of
from loadgen.report.html import charts, sections
from loadgen.report.html.frontier import PALE_NOTE, axes_of, frontier_figure
from loadgen.report.html.page import Figures, grid, legend, page, placed, section
from loadgen.report.html.sections import rendered
from loadgen.report.html.timeline import timeline
from loadgen.report.notes import LATENCY_TITLES, latencies, took_part
from loadgen.report.tabular import html_table, plain
from loadgen.schema.deltas import MAIN_LATENCIES, Summary
from loadgen.schema.result import Result, StageResult, met_limits

_DEFINITIONS = (
    "TTFT is the time from the request's bytes to the first event with generated output; TPOT the time from there to "
    "the last event by output token; ITL the gap between events by token; E2E from the request to the last event. "
    "Percentiles are nearest rank over HDR histograms of three significant digits; warm-up is in the time axis and in "
    "no statistic. Throughput is what arrived in the measured window; energy is that of the GPU sockets."
)

_OF_STAGES = (
    document.throughput,
    document.requests,
    document.limits,
    document.notes,
    document.efficiency,
    document.baseline,
)


def html_report(result: Result) -> str:
    figures: Figures = {}
    stages = [stage for stage in result.stages if took_part(stage)]
    parts = [
        _opening(result),
        _curve(result, figures),
        rendered(document.published(result)),
        _by_held(result, figures),
        rendered(document.serving_curve(stages)),
        *(rendered(each(stages)) for each in _OF_STAGES),
        rendered(document.verdicts(result)),
        rendered(document.search(result)),
        rendered(document.without_load(result)),
        _distributions(result, figures),
        _time(result, figures),
        sections.output_section(result),
        sections.gpu_section(result),
        rendered(document.client_and_engine(result)),
        rendered(document.parts(result)),
        rendered(document.client(result)),
        sections.findings_section(result),
        sections.configuration_section(result),
        f"<footer>{plain(_DEFINITIONS)}</footer>",
    ]
    return page(f"{model_of(result)} \N{MIDDLE DOT} {result.run_id}", parts, figures)


def _opening(result: Result) -> str:
    head = document.heading(result)
    answers = "\n".join(
        f"<dt>{plain(one.question)}</dt><dd{' class=bad' if one.bad else ''}>{plain(one.text)}</dd>"
        for one in head.answers
    )
    return f"""<header>
<p class='kicker'>vramp {plain(result.vramp_version)} \N{MIDDLE DOT} {plain(result.run_id)}</p>
<h1>{plain(model_of(result))} <span>on {plain(hardware_of(result))}</span></h1>
<p class='note'>{plain(head.facts)}</p>
<dl class='answers'>
{answers}
</dl>
{_headline(result)}
</header>"""


def _headline(result: Result) -> str:
    """The headline figures, from the best stage."""
    stage = best_stage(result)
    if stage is None:
        return ""
    figures = "".join(f"<li><b>{plain(value)}</b>{plain(what)}</li>" for what, value in _numbers(stage).items())
    where = f"At {titles(result.stages)[stage.index]}, {stage.isl} tokens in and {stage.osl} out"
    return f"<ul class='numbers'>{figures}</ul>\n<p class='note'>{plain(where)}: {plain(_why(result, stage))}.</p>"


def _numbers(stage: StageResult) -> dict[str, str]:
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
    return {what: value for what, value in numbers.items() if value != UNKNOWN}


def _why(result: Result, stage: StageResult) -> str:
    """Why the headline is about this stage."""
    if len(result.stages) == 1:
        return "the only stage"
    return {
        True: "the most throughput within the limits",
        False: "the most throughput; no stage met its limits",
        None: "the most throughput",
    }[met_limits(stage)]


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
    places = grid(
        placed(figures, "held-ttft", charts.latency_by_held(points, "ttft"), "TTFT, ms"),
        placed(figures, "held-itl", charts.latency_by_held(points, "itl"), "ITL, ms"),
        placed(figures, "held-output", charts.throughput_by_held(points), "Output tok/s"),
    )
    note = (
        "All that was measured while so many streams were held, however the load came there; up and down are apart. "
        "Times are of the gaps and first tokens of those moments: E2E belongs to no load."
    )
    return rendered(document.by_streams_held(result)._replace(about=note), places)


def _distributions(result: Result, figures: Figures) -> str:
    found = {metric: charts.distribution(result, metric) for metric in MAIN_LATENCIES}
    places = [
        placed(figures, f"distribution-{metric}", figure, f"{LATENCY_TITLES[metric]}, ms")
        for metric, figure in found.items()
        if figure is not None
    ]
    table = document.latency(result.stages, "count mean stddev min p50 p90 p95 p99 p999 max")
    if not places:
        return rendered(table)
    about = "By percentile, each nine as wide as the one before; a line ends where the stage has no more streams."
    key = legend({name: colour for name, (_, colour) in charts.drawn_stages(result).items()})
    return rendered(table._replace(about=about), key, grid(*places, columns=2))


def _time(result: Result, figures: Figures) -> str:
    figure = timeline(result)
    if figure is None:
        return ""
    return section(
        "What happened when",
        placed(figures, "timeline", figure, ""),
        html_table(sections.EVENTS, result.events),
        note="Grey lines are beginnings of stages, dotted ones notes and errors. Of several GPUs the first is light, "
        "the last strong. Drag to look closer, double click to go back.",
    )
