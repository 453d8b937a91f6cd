"""The report as a document: what ran and whether it is well first, then the figures, the tables, the configuration.

The file is whole: plotly's code, the style sheet and the data are in it, and its content policy forbids the browser to
fetch anything, and to run any script but the two that it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from loadgen.format import UNKNOWN, Statistic, bounded, significant
from loadgen.metrics.deltas import MAIN_LATENCIES, Summary
from loadgen.metrics.result import Result, StageResult
from loadgen.metrics.slo import met_limits
from loadgen.report.assessment import assessment, best_stage, titles
from loadgen.report.columns import CURVE, OUTPUT_BY_USER, SHAPE, TOTAL_BY_E2E, moving_points
from loadgen.report.configuration import engine_of, hardware_of, model_of
from loadgen.report.html import charts, sections
from loadgen.report.html.timeline import timeline
from loadgen.report.notes import LATENCY_TITLES, latencies
from loadgen.report.tabular import html_table, plain

_DEFINITIONS = (
    "TTFT is the time from the request's bytes to the first event with generated output; TPOT the time from there to "
    "the last event by output token; ITL the gap between events by token; E2E from the request to the last event. "
    "Percentiles are nearest rank over HDR histograms of three significant digits; warm-up is in the time axis and in "
    "no statistic. Throughput is what arrived in the measured window; energy is that of the GPU sockets."
)


Figures = dict[str, go.Figure]  # by the name of their place


def html_report(result: Result) -> str:
    figures: Figures = {}
    parts = [
        _opening(result),
        _curve(result, figures),
        sections.published_section(result),
        _by_held(result, figures),
        sections.stages_section(result),
        _distributions(result, figures),
        _time(result, figures),
        sections.gpu_section(result),
        sections.engine_section(result),
        sections.client_section(result),
        sections.findings_section(result),
        sections.configuration_section(result),
        f"<footer>{plain(_DEFINITIONS)}</footer>",
    ]
    body = "\n".join(part for part in parts if part)
    scripts = [get_plotlyjs(), _asset("report.js")]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    # plotly writes style sheets of its own, and draws its images from data it has made.
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    return f"""<!doctype html>
<html lang='en'>
<head>
<meta charset='utf-8'>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name='viewport' content='width=device-width, initial-scale=1'>
<meta name='color-scheme' content='light dark'>
<title>{plain(model_of(result))} \N{MIDDLE DOT} {plain(result.run_id)}</title>
<style>{_asset("report.css")}</style>
</head>
<body>
<main>
{body}
</main>
<script type='application/json' id='figures'>{_json(figures)}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


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
</header>
<noscript><p class='bad'>The figures need JavaScript; everything else is here without it.</p></noscript>"""


def _headline(result: Result) -> str:
    """The numbers by which a run is remembered, of its best stage."""
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
    """Why the headline is of this stage."""
    if len(result.stages) == 1:
        return "the only stage"
    return {
        True: "the most throughput within the limits",
        False: "the most throughput; no stage met its limits",
        None: "the most throughput",
    }[met_limits(stage)]


def _placed(figures: Figures, name: str, figure: go.Figure, title: str, key: Mapping[str, str] | None = None) -> str:
    """The place of a figure under a title; `key` are its lines and their colours."""
    figures[name] = figure
    words = "".join(f" <i style='color:{plain(colour)}'>{plain(line)}</i>" for line, colour in (key or {}).items())
    head = f"<h3>{plain(title)}{words}</h3>" if title else ""
    return f"<figure>{head}<div class='chart' id='{plain(name)}'></div></figure>"


def _curve(result: Result, figures: Figures) -> str:
    if not charts.has_curve(result):
        return ""
    places = [
        _placed(
            figures,
            f"curve-{metric}",
            charts.latency_curve(result, metric),
            f"{LATENCY_TITLES[metric]}, ms, against output tok/s",
            charts.latency_key(result, metric),
        )
        for metric in ("ttft", "tpot")
    ]
    for name, axes in {"total": TOTAL_BY_E2E, "user": OUTPUT_BY_USER}.items():
        x_label, y_label = axes.labels()
        figure, key = charts.throughput_curve(result, axes), charts.throughput_key(result, axes)
        title = f"{y_label[0].upper()}{y_label[1:]} against {x_label}"
        places.append(_placed(figures, f"curve-{name}", figure, title, key))
    note = "One point a stage, in the order of load. An open point missed a limit, or the client was limited."
    return sections.section("The load curve", sections.grid(*places, columns=2), note=note)


def _by_held(result: Result, figures: Figures) -> str:
    points = moving_points(result)
    if not points:
        return ""
    key = charts.held_key(points)
    shapes = {name: one for name, one in key.items() if name[0] != "p"}
    grid = sections.grid(
        _placed(figures, "held-ttft", charts.latency_by_held(points, "ttft"), "TTFT, ms", key),
        _placed(figures, "held-itl", charts.latency_by_held(points, "itl"), "ITL, ms", key),
        _placed(figures, "held-output", charts.throughput_by_held(points), "Output tok/s", shapes),
    )
    note = (
        "All that was measured while so many streams were held, however the load came there; up and down are apart. "
        "Times are of the gaps and first tokens of those moments: E2E belongs to no load."
    )
    return sections.section("By the streams held", grid, html_table([*SHAPE, *CURVE], points), note=note)


def _distributions(result: Result, figures: Figures) -> str:
    found = {metric: charts.distribution(result, metric) for metric in MAIN_LATENCIES}
    places = [
        _placed(figures, f"distribution-{metric}", figure, f"{LATENCY_TITLES[metric]}, ms")
        for metric, figure in found.items()
        if figure is not None
    ]
    if not places:
        return ""
    return sections.section(
        "Latency distributions",
        sections.legend({name: colour for name, (_, colour) in charts.drawn_stages(result).items()}),
        sections.grid(*places, columns=2),
        sections.latency_table(result),
        note="By percentile, each nine as wide as the one before; a line ends where the stage has no more streams.",
    )


def _time(result: Result, figures: Figures) -> str:
    figure = timeline(result)
    if figure is None:
        return ""
    return sections.section(
        "What happened when",
        _placed(figures, "timeline", figure, ""),
        html_table(sections.EVENTS, result.events),
        note="Grey lines are beginnings of stages, dotted ones notes and errors. Of several GPUs the first is light, "
        "the last strong. Drag to look closer, double click to go back.",
    )


def _json(figures: Figures) -> str:
    """The figures as a JSON object that cannot end the element it stands in."""
    entries = ",".join(f'"{name}":{figure.to_json()}' for name, figure in figures.items())
    return "{" + entries.replace("<", "\\u003c") + "}"


def _asset(name: str) -> str:
    return files("loadgen.report.html").joinpath(name).read_text(encoding="utf-8")
