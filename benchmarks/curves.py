"""Draws curves over time as an SVG picture for the manual, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW, _GAP, _LEGEND = 900, 150, 60, 24, 22, 18, 170
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "10 4", "4 4")
"""Curves differ by their dashes, too."""


class Curve(NamedTuple):
    name: str
    minutes: Sequence[float]
    values: Sequence[float | None]


class Panel(NamedTuple):
    title: str
    curves: Sequence[Curve]


def draw(panels: Sequence[Panel]) -> str:
    """Return an SVG of the panels one below the other, on one time axis in minutes."""
    last_min = max(curve.minutes[-1] for panel in panels for curve in panel.curves)
    height = len(panels) * (_HEIGHT + _TOP + _BELOW + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEGEND} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, number * (_HEIGHT + _TOP + _BELOW + _GAP) + _TOP, last_min)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, top: int, last_min: float) -> list[str]:
    known = [value for curve in panel.curves for value in curve.values if value is not None]
    most = max(known, default=1.0) * 1.05 or 1.0
    width = _WIDTH - _LEFT

    def place(minute: float, value: float) -> str:
        return f"{_LEFT + minute / last_min * width:.1f},{top + _HEIGHT * (1 - value / most):.1f}"

    parts = [
        f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape(panel.title)}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{width}" height="{_HEIGHT}" fill="none" stroke="#999"/>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = top + _HEIGHT * (1 - share)
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{share * most:.4g}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _LEFT + share * width
        parts.append(
            f'<text x="{x:.0f}" y="{top + _HEIGHT + 15}" text-anchor="middle">{share * last_min:.0f} min</text>'
        )
    for number, curve in enumerate(panel.curves):
        style = f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-dasharray="{_DASHES[number % len(_DASHES)]}"'
        points = " ".join(
            place(minute, value) for minute, value in zip(curve.minutes, curve.values, strict=True) if value is not None
        )
        y = top + 12 + 16 * number
        parts += [
            f'<polyline fill="none" stroke-width="1.5" {style} points="{points}"/>',
            f'<line x1="{_WIDTH + 8}" x2="{_WIDTH + 34}" y1="{y - 4}" y2="{y - 4}" stroke-width="1.5" {style}/>',
            f'<text x="{_WIDTH + 40}" y="{y}">{escape(curve.name)}</text>',
        ]
    return parts
