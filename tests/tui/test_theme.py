"""The colours as eyes without red, green or blue cones see them, and the inks and signs that stand next to them."""

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.color import Color, ColorSystem

from tui.charts.definitions import ENGINE_CHARTS, GPU_STRIPS, OVERVIEW_CHARTS
from tui.charts.timeline import KINDS
from tui.theme import COCKPIT, COCKPIT_OF_16, SERIES, SERIES_OF_16

STANDARD_TERMINAL = (
    *("#000000", "#aa0000", "#00aa00", "#aa5500", "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa"),
    *("#555555", "#ff5555", "#55ff55", "#ffff55", "#5555ff", "#ff55ff", "#55ffff", "#ffffff"),
)
LEAST = 15.0
"""Distance in CIELAB; 2.3 is just noticeable side by side."""
EYES = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What is seen of linear RGB: Machado, Oliveira and Fernandes 2009, severity 1."""
XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
WHITE = (0.95047, 1.0, 1.08883)
COLOURS = {name.removeprefix("series-"): value for name, value in SERIES.items()} | {
    "good": COCKPIT.success or "",
    "warn": COCKPIT.warning or "",
    "bad": COCKPIT.error or "",
}
CHARTS = (*OVERVIEW_CHARTS.values(), *ENGINE_CHARTS.values())
TOGETHER = [
    ("good", "warn", "bad"),
    tuple(strip.role for strip in GPU_STRIPS),
    *(tuple(series.role for series in chart.series if series.role in COLOURS) for chart in CHARTS),
]


def seen(colour: str, eyes: str) -> NDArray[np.float64]:
    """A colour in CIELAB."""
    rgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(XYZ) @ np.clip(np.array(EYES[eyes]) @ linear, 0, 1) / np.array(WHITE)
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", EYES)
def test_what_is_shown_together_can_be_distinguished(eyes: str) -> None:
    for roles in TOGETHER:
        for a, b in combinations(roles, 2):
            distance = np.linalg.norm(seen(COLOURS[a], eyes) - seen(COLOURS[b], eyes))
            assert distance >= LEAST, (a, b, distance)


def test_the_series_of_a_chart_differ_in_ink_too() -> None:
    for chart in CHARTS:
        inks = [series.ink for series in chart.series]
        assert len(set(inks)) == len(inks), chart.title


def test_marks_of_different_meaning_have_different_signs() -> None:
    signs = {(kind.sign, kind.role, kind.rank) for kind in KINDS.values()}
    assert len({sign for sign, _, _ in signs}) == len(signs)


def test_a_terminal_with_sixteen_colours_shows_the_ones_that_were_meant() -> None:
    meant = [*SERIES_OF_16.values(), COCKPIT_OF_16.success, COCKPIT_OF_16.warning, COCKPIT_OF_16.error]
    for colour in meant:
        assert colour is not None
        number = Color.parse(colour).downgrade(ColorSystem.STANDARD).number
        assert number is not None and STANDARD_TERMINAL[number] == colour
    assert SERIES_OF_16.keys() == SERIES.keys()
    for roles in TOGETHER[2:]:
        assert len({SERIES_OF_16[f"series-{role}"] for role in roles if f"series-{role}" in SERIES_OF_16}) == len(
            [role for role in roles if f"series-{role}" in SERIES_OF_16]
        )
