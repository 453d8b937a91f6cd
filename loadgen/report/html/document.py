"""The report as a document: what ran and whether it is well first, then the figures, the tables, the configuration.

The file is whole: plotly's code, the style sheet and the data are in it, and its content policy forbids the browser to
fetch anything, and to run any script but the two that it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from loadgen.format import UNKNOWN, Statistic, bounded, significant
from loadgen.metrics.deltas import MAIN_LATENCIES, Summary
from loadgen.metrics.result import Result, StageResult
from loadgen.metrics.slo import met_limits
from loadgen.report.assessment import assessment, best_of, best_stage, titles
from loadgen.report.columns import moving_points
from loadgen.report.configuration import engine_of, hardware_of, model_of
from loadgen.report.html import charts, markup, sections
from loadgen.report.html.timeline import timeline
from loadgen.report.notes import LATENCY_TITLES, has_numbers, latencies
from loadgen.report.tabular import plain

_DEFINITIONS = (
    "TTFT is the time from the request's bytes to the first event with generated output; TPOT the time from there to "
    "the last event by output token; ITL the gap between events by token; E2E from the request to the last event. "
    "Percentiles are nearest rank over HDR histograms of three significant digits; warm-up is in the time axis and in "
    "no statistic. Throughput is what arrived in the measured window; energy is that of the GPU sockets."
)


def html_report(result: Result) -> str:
    figures = _figures(result)
    body = _body(result, figures)
    scripts = [get_plotlyjs(), _asset("report.js")]
    return "\n".join(
        [
            "<!doctype html>",
            "<html lang='en'>",
            *_head(result, scripts),
            "<body>",
            body,
            f"<script type='application/json' id='figures'>{_json(figures)}</script>",
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(result: Result, scripts: list[str]) -> list[str]:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    # plotly writes style sheets of its own, and draws its images from data it has made.
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    return [
        "<head>",
        "<meta charset='utf-8'>",
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        "<meta name='color-scheme' content='light dark'>",
        f"<title>{plain(model_of(result))} \N{MIDDLE DOT} {plain(result.run_id)}</title>",
        f"<style>{_asset('report.css')}</style>",
        "</head>",
    ]


def _body(result: Result, figures: dict[str, go.Figure]) -> str:
    parts = [
        _opening(result),
        _curve(result, figures),
        _by_held(result, figures),
        sections.stages_section(result),
        sections.published_section(result),
        _distributions(result, figures),
        _time(result, figures),
        sections.gpu_section(result),
        sections.engine_section(result),
        sections.client_section(result),
        sections.findings_section(result),
        sections.configuration_section(result),
        f"<footer>{plain(_DEFINITIONS)}</footer>",
    ]
    return "\n".join(["<main>", *(part for part in parts if part), "</main>"])


def _opening(result: Result) -> str:
    finished = "" if result.state == "complete" else f", {result.state.replace('_', ' ')}"
    words = f"{engine_of(result)}, {_when(result)}{finished}"
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


def _when(result: Result) -> str:
    return f"{result.started_at[:10]} {result.started_at[11:16]} UTC"


def _headline(result: Result) -> str:
    """The numbers by which a run is remembered, of its best stage."""
    stage = best_stage(result) or best_of([one for one in result.stages if has_numbers(one)])
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


def _figures(result: Result) -> dict[str, go.Figure]:
    """The figures of this run by the name of their place; what has nothing to show has none."""
    found: dict[str, go.Figure | None] = {}
    if charts.has_curve(result):
        found = {f"curve-{metric}": charts.latency_curve(result, metric) for metric in ("ttft", "tpot")}
        found["curve-user"] = charts.user_curve(result)
    points = moving_points(result)
    if points:
        found |= {f"held-{metric}": charts.latency_by_held(points, metric) for metric in ("ttft", "itl")}
        found["held-output"] = charts.throughput_by_held(points)
    found |= {f"distribution-{metric}": charts.distribution(result, metric) for metric in MAIN_LATENCIES}
    found["timeline"] = timeline(result)
    return {name: figure for name, figure in found.items() if figure is not None}


def _curve(result: Result, figures: dict[str, go.Figure]) -> str:
    if "curve-user" not in figures:
        return ""
    return markup.section(
        "The load curve",
        markup.grid(
            3,
            markup.chart("curve-ttft", "TTFT, ms, against output tok/s", charts.curve_key(result, "ttft")),
            markup.chart("curve-tpot", "TPOT, ms, against output tok/s", charts.curve_key(result, "tpot")),
            markup.chart("curve-user", "Output tok/s against tok/s per user"),
        ),
        note="One point a stage, in the order of load. An open point missed a limit, or the client was limited.",
    )


def _by_held(result: Result, figures: dict[str, go.Figure]) -> str:
    if "held-output" not in figures:
        return ""
    key = charts.held_key(moving_points(result))
    return markup.section(
        "By the streams held",
        markup.grid(
            3,
            markup.chart("held-ttft", "TTFT, ms", key),
            markup.chart("held-itl", "ITL, ms", key),
            markup.chart("held-output", "Output tok/s", {name: one for name, one in key.items() if name[0] != "p"}),
        ),
        sections.curve_table(result),
        note="All that was measured while so many streams were held, however the load came there; up and down are "
        "apart. Times are of the gaps and first tokens of those moments: E2E belongs to no load.",
    )


def _distributions(result: Result, figures: dict[str, go.Figure]) -> str:
    names = {name: colour for name, (_, colour) in charts.drawn_stages(result).items()}
    drawn = {metric: LATENCY_TITLES[metric] for metric in MAIN_LATENCIES if f"distribution-{metric}" in figures}
    if not drawn:
        return ""
    return markup.section(
        "Latency distributions",
        markup.legend(names),
        markup.grid(2, *(markup.chart(f"distribution-{metric}", f"{title}, ms") for metric, title in drawn.items())),
        sections.latency_table(result),
        note="By percentile, each nine as wide as the one before; a line ends where the stage has no more streams.",
    )


def _time(result: Result, figures: dict[str, go.Figure]) -> str:
    if "timeline" not in figures:
        return ""
    return markup.section(
        "What happened when",
        markup.chart("timeline"),
        sections.events_table(result),
        note="Grey lines are beginnings of stages, dotted ones notes and errors. Of several GPUs the first is light, "
        "the last strong. Drag to look closer, double click to go back.",
    )


def _json(figures: dict[str, go.Figure]) -> str:
    """The figures as a JSON object that cannot end the element it stands in."""
    entries = ",".join(f'"{name}":{figure.to_json()}' for name, figure in figures.items())
    return "{" + entries.replace("<", "\\u003c") + "}"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("loadgen.report.html").joinpath(name).read_text(encoding="utf-8")
