"""The list of runs and the trends as one page, with a figure for each trend."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from loadgen.report.history import Trend, TrendPoint
from loadgen.report.history_document import RUNS, NamedRun, trend_section
from loadgen.report.html.charts import ACCENT, SECOND, chart_text, styled
from loadgen.report.html.page import Figures, opening, page, placed, rendered, section
from loadgen.report.tabular import html_table


def history_page(folder: str, runs: Sequence[NamedRun], found: Sequence[Trend]) -> str:
    figures: Figures = {}
    parts = [opening("vramp runs", folder, f"{len(runs)} runs")]
    parts += [
        rendered(trend_section(trend), placed(figures, f"trend-{number}", trend_figure(trend), ""))
        for number, trend in enumerate(found)
    ]
    parts += [section("Runs", html_table(RUNS, runs))]
    return page(f"{folder} \N{MIDDLE DOT} vramp runs", parts, figures)


def trend_figure(trend: Trend) -> go.Figure:
    """A point a run in order of time, each with its interval; filled if it counts; a line for the mean of a version."""
    figure = go.Figure()
    for counts, name in ((True, "a run"), (False, "a run in doubt")):
        shown = [(place, point) for place, point in enumerate(trend.points, 1) if point.counts is counts]
        if shown:
            figure.add_trace(_runs(shown, name, ACCENT if counts else SECOND, open_marker=not counts))
    for version in trend.versions:
        places = [place for place, point in enumerate(trend.points, 1) if point.version == version.version]
        if version.value is not None and places:
            figure.add_trace(
                go.Scatter(
                    x=[min(places) - 0.4, max(places) + 0.4],
                    y=[version.value] * 2,
                    mode="lines+text",
                    text=[chart_text(f"vLLM {version.version}"), ""],
                    textposition="top right",
                    line={"color": SECOND, "dash": "dot"},
                    hoverinfo="skip",
                    showlegend=False,
                )
            )
    styled(figure, height=340).update_yaxes(title=chart_text(trend.title))
    return figure.update_xaxes(title="run, oldest first")


def _runs(shown: Sequence[tuple[int, TrendPoint]], name: str, colour: str, *, open_marker: bool) -> go.Scatter:
    points = [point for _, point in shown]
    return go.Scatter(
        x=[place for place, _ in shown],
        y=[point.value for point in points],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [point.high - point.value if point.high is not None else 0 for point in points],
            "arrayminus": [point.value - point.low if point.low is not None else 0 for point in points],
            "color": colour,
            "thickness": 1,
            "width": 3,
        },
        mode="markers",
        name=name,
        marker={"color": colour, "size": 8, "symbol": "circle-open" if open_marker else "circle"},
        text=[chart_text(f"{point.run}, vLLM {point.version or 'unknown'}") for point in points],
        hovertemplate="%{text}: %{y:.4g}<extra></extra>",
    )
