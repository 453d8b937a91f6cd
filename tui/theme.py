"""The colours: the only place where they are written as values.

Every series and every state has one variable, used by `app.tcss` alone, so that the same colour means the same thing on
all panels and under every theme that the operator may choose. Red is kept for what must be acted on. Series on one
chart can be told apart with any kind of colour blindness, and differ in ink: nothing depends on colour alone.
"""

from __future__ import annotations

from typing import Any

from textual.theme import Theme

# Each colour, and its stand-in on terminals of 16, chosen by hand: the nearest would be white for several series.
_SERIES = {
    "throughput": ("#3fcf9b", "#55ff55"),
    "p50": ("#6cb6ff", "#55ffff"),
    "p99": ("#e6a86b", "#ffff55"),
    "held": ("#dfe5ec", "#ffffff"),
    "running": ("#3fcf9b", "#55ff55"),
    "waiting": ("#c792ea", "#ff55ff"),
    "kv": ("#d7ba7d", "#ffff55"),
    "busy": ("#3fcf9b", "#55ff55"),
    "power": ("#f0b35f", "#ffff55"),
    "heat": ("#d9659c", "#ff55ff"),
    "hbm": ("#5b9bff", "#55ffff"),
}
_THEME = {
    "primary": ("#6cb6ff", "#55ffff"),
    "secondary": ("#3fcf9b", "#55ff55"),
    "accent": ("#8ab4f8", "#55ffff"),
    "warning": ("#e3b341", "#ffff55"),
    "error": ("#ff6b6b", "#ff5555"),
    "success": ("#3fcf9b", "#55ff55"),
    "foreground": ("#d5dbe3", "#ffffff"),
    "background": ("#11151a", "#000000"),
    "surface": ("#161b22", "#000000"),
    "panel": ("#2b333d", "#555555"),
}
_CURSOR = {
    "block-cursor-background": ("#2f4a68", "#0000aa"),
    "block-cursor-foreground": ("#d5dbe3", "#ffffff"),
}


def _theme(place: int) -> Theme:
    colours: dict[str, Any] = {name: both[place] for name, both in _THEME.items()}
    return Theme(name="vramp", variables={name: both[place] for name, both in _CURSOR.items()}, **colours)


SERIES, SERIES_OF_16 = ({f"series-{name}": both[place] for name, both in _SERIES.items()} for place in (0, 1))
"""Variables that every theme gets, not only ours."""
COCKPIT, COCKPIT_OF_16 = _theme(0), _theme(1)
