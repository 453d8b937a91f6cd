"""The report of a run: what ran and whether it is healthy, then figures, tables and configuration."""

from __future__ import annotations

from loadgen.format import UNKNOWN, Statistic, bounded, significant
from loadgen.record.slo import met_limits
from loadgen.report.assessment import assessment, best_stage, measured_stages, titles
from loadgen.report.columns import (
    CURVE,
    EFFICIENCY,
    SHAPE,
    TOTAL_BY_E2E,
    known,
    load_column,
    moving_points,
)
from loadgen.report.configuration import engine_of, hardware_of, model_of
from loadgen.report.html import charts, sections
from loadgen.report.html.frontier import PALE_NOTE, Series, axes_of, frontier_figure
from loadgen.report.html.page import Figures, grid, legend, page, pairs, placed, section, subsection
from loadgen.report.html.timeline import timeline
from loadgen.report.notes import LATENCY_TITLES, latencies, mfu_unknown
from loadgen.report.served import LATENCY, MORE, NO_LOAD_NOTE, SERVED, latencies_of, watched, watched_notes
from loadgen.report.tabular import html_table, plain
from loadgen.schema.deltas import MAIN_LATENCIES, Summary
from loadgen.schema.result import Result, StageResult

_DEFINITIONS = (
    "TTFT is the time from the request's bytes to the first event with generated output; TPOT the time from there to "
    "the last event by output token; ITL the gap between events by token; E2E from the request to the last event. "
    "Percentiles are nearest rank over HDR histograms of three significant digits; warm-up is in the time axis and in "
    "no statistic. Throughput is what arrived in the measured window; energy is that of the GPU sockets."
)


def html_report(result: Result) -> str:
    figures: Figures = {}
    parts = [
        _opening(result),
        _curve(result, figures),
        sections.published_section(result),
        _by_held(result, figures),
        sections.stages_section(result),
        _efficiency(result),
        _without_load(result),
        _distributions(result, figures),
        _time(result, figures),
        sections.output_section(result),
        sections.gpu_section(result),
        sections.engine_section(result),
        sections.client_section(result),
        sections.findings_section(result),
        sections.configuration_section(result),
        f"<footer>{plain(_DEFINITIONS)}</footer>",
    ]
    return page(f"{model_of(result)} \N{MIDDLE DOT} {result.run_id}", parts, figures)


def _opening(result: Result) -> str:
    finished = "" if result.state == "complete" else f", {result.state.replace('_', ' ')}"
    words = f"{engine_of(result)}, {result.started_at[:10]} {result.started_at[11:16]} UTC{finished}"
    words += f"; sent {result.data.words}" if result.data is not None else ""
    answers = "\n".join(
        f"<dt>{plain(one.question)}</dt><dd{' class=bad' if one.bad else ''}>{plain(one.text)}</dd>"
        for one in assessment(result)
    )
    return f"""<header>
<p class='kicker'>vramp {plain(result.vramp_version)} \N{MIDDLE DOT} {plain(result.run_id)}</p>
<h1>{plain(model_of(result))} <span>on {plain(hardware_of(result))}</span></h1>
<p class='note'>{plain(words)}</p>
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
    places = [
        placed(
            figures,
            f"curve-{metric}",
            charts.latency_curve(result, metric),
            f"{LATENCY_TITLES[metric]}, ms, against output tok/s",
            charts.latency_key(result, metric),
        )
        for metric in ("ttft", "tpot")
    ]
    total, total_key = charts.throughput_curve(result), charts.throughput_key(result)
    places.append(placed(figures, "curve-total", total, TOTAL_BY_E2E.title(), total_key))
    shapes = charts.series_by_shape(result)
    series = [Series(f"{stages[0].isl}/{stages[0].osl}", colour, stages) for stages, colour in shapes]
    title, key = axes_of(series).title(), charts.shape_key(result)
    places.append(placed(figures, "frontier", frontier_figure(series), title, key))
    note = (
        "One point a stage, in the order of load. An open point missed a limit, or the client was limited. "
        f"On the frontier, {PALE_NOTE}"
    )
    return section("The load curve", grid(*places, columns=2), note=note)


def _by_held(result: Result, figures: Figures) -> str:
    points = moving_points(result)
    if not points:
        return ""
    key = charts.held_key(points)
    shapes = {name: one for name, one in key.items() if name[0] != "p"}
    places = grid(
        placed(figures, "held-ttft", charts.latency_by_held(points, "ttft"), "TTFT, ms", key),
        placed(figures, "held-itl", charts.latency_by_held(points, "itl"), "ITL, ms", key),
        placed(figures, "held-output", charts.throughput_by_held(points), "Output tok/s", shapes),
    )
    note = (
        "All that was measured while so many streams were held, however the load came there; up and down are apart. "
        "Times are of the gaps and first tokens of those moments: E2E belongs to no load."
    )
    return section("By the streams held", places, html_table([*SHAPE, *CURVE], points), note=note)


def _without_load(result: Result) -> str:
    """What others sent in stages without load."""
    stages = watched(result.stages)
    if not stages:
        return ""
    names, notes = titles(result.stages), watched_notes(result.stages)
    parts = [
        subsection(
            names[stage.index],
            html_table(LATENCY, latencies_of(stage.engine))
            + pairs({note.subject: note.text for note in notes[stage.index]}),
        )
        for stage in stages
    ]
    energy = known(EFFICIENCY, stages)
    table = html_table([load_column(stages), *SERVED, *MORE, *energy], stages)
    return section("Without load", table, *parts, note=NO_LOAD_NOTE)


def _efficiency(result: Result) -> str:
    """Efficiency figures by stage, and why MFU is unknown."""
    stages = measured_stages(result)
    shown = known(EFFICIENCY, stages)
    table = html_table([load_column(stages), *shown], stages) if shown else ""
    whys = dict.fromkeys(filter(None, map(mfu_unknown, stages)))
    note = f"MFU is not known: {'; '.join(whys)}." if whys else ""
    return section("Tokens by user, GPU, power and money", table, note=note)


def _distributions(result: Result, figures: Figures) -> str:
    found = {metric: charts.distribution(result, metric) for metric in MAIN_LATENCIES}
    places = [
        placed(figures, f"distribution-{metric}", figure, f"{LATENCY_TITLES[metric]}, ms")
        for metric, figure in found.items()
        if figure is not None
    ]
    if not places:
        return ""
    return section(
        "Latency distributions",
        legend({name: colour for name, (_, colour) in charts.drawn_stages(result).items()}),
        grid(*places, columns=2),
        sections.latency_table(result),
        note="By percentile, each nine as wide as the one before; a line ends where the stage has no more streams.",
    )


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
