"""What all figures have in common: colours that hold on white and on black, quiet axes, texts that are only texts.

Text, grid and hover boxes take their colours from the page's style sheet, so that a figure follows it into the dark
and onto paper; data keeps the colours of this module.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from typing import Any

import plotly.graph_objects as go

from loadgen.format import harmless

ACCENT = "#2f7fc4"
SECOND = "#8b96a1"
BAD = "#cf4a32"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
_CLEAR = "rgba(0,0,0,0)"
_FIRST, _LAST = (158, 178, 196), (22, 104, 178)
"""The ends of the ramp for what has an order: a light and a strong tone of the accent."""
_DIGITS = 4
_EDGE = 0.02


def ramp(count: int) -> list[str]:
    """So many tones of the accent, from light to strong."""
    shares = [number / (count - 1) if count > 1 else 1.0 for number in range(count)]
    ends = list(zip(_FIRST, _LAST, strict=True))
    return [f"rgb({','.join(str(round(first + (last - first) * share)) for first, last in ends)})" for share in shares]


def faint(colour: str, opacity: float) -> str:
    """A colour of this module, as good as transparent."""
    if colour.startswith("#"):
        channels = ",".join(str(int(colour[start : start + 2], 16)) for start in (1, 3, 5))
        return f"rgba({channels},{opacity})"
    return colour.replace("rgb(", "rgba(").replace(")", f",{opacity})")


def chart_text(text: str) -> str:
    """A text for a figure, which would take tags in it for formatting."""
    return html.escape(harmless(text).replace("\n", " "), quote=False)


def coloured(text: str, colour: str) -> str:
    """A text of ours in a colour."""
    return f"<span style='color:{colour}'>{chart_text(text)}</span>"


def shortened(values: Iterable[float | None]) -> list[float | None]:
    """Values with as many digits as a figure can show: a long run makes a long file."""
    known = (value if value is not None and math.isfinite(value) else None for value in values)
    return [None if value is None else float(f"{value:.{_DIGITS}g}") for value in known]


def styled(figure: go.Figure, *, height: int, layout: Mapping[str, Any] | None = None) -> go.Figure:
    """A figure in the common look; `layout` is what it has besides, or otherwise."""
    figure.update_layout(
        height=height,
        template="none",
        autosize=True,
        showlegend=False,
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        font={"family": FONT, "size": 12},
        margin={"l": 56, "r": 18, "t": 10, "b": 42},
        hoverlabel={"font": {"family": FONT, "size": 12}},
    )
    figure.update_layout(layout or {})
    axis = {"zeroline": False, "showline": False, "ticks": "", "gridwidth": 1}
    figure.update_xaxes(showgrid=False, title_standoff=6, **axis)
    return figure.update_yaxes(showgrid=True, **axis)


def log_axis(values: Iterable[float | None], *, most_ticks: int = 6) -> dict[str, Any]:
    """A logarithmic axis from a tick below the values to one above, at 1, 2 and 5, or at powers of ten only."""
    known = [value for value in values if value is not None and value > 0]
    if not known:
        return {"type": "log"}
    # One more at each end: a logarithm may be rounded over a power of ten.
    exponents = range(math.floor(math.log10(min(known))) - 1, math.ceil(math.log10(max(known))) + 2)
    # Written as they are read, a tick is equal to a value that lies on it.
    ticks = [float(f"{step}e{exponent}") for exponent in exponents for step in (1, 2, 5)]
    low = max(tick for tick in ticks if tick <= min(known))
    high = min(tick for tick in ticks if tick >= max(known) and tick > low)
    shown = [tick for tick in ticks if low <= tick <= high]
    if len(shown) > most_ticks:
        shown = [tick for tick in shown if f"{tick:e}".startswith("1.0")]
    return {
        "type": "log",
        "range": [math.log10(low) - _EDGE, math.log10(high) + _EDGE],
        "tickvals": shown,
        "ticktext": [f"{tick:,.10g}" for tick in shown],
    }
