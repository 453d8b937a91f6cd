"""The colours: the only place where they are written as values.

Every series and every state has one variable, used by `app.tcss` alone, so that the same colour means the same thing on
all panels and under every theme that the operator may choose. Red is kept for what must be acted on. Series on one
chart can be told apart with any kind of colour blindness, and differ in ink: nothing depends on colour alone.
"""

from __future__ import annotations

from textual.theme import Theme

SERIES = {
    "series-throughput": "#3fcf9b",
    "series-p50": "#6cb6ff",
    "series-p99": "#e6a86b",
    "series-held": "#dfe5ec",
    "series-running": "#3fcf9b",
    "series-waiting": "#c792ea",
    "series-kv": "#d7ba7d",
    "series-busy": "#3fcf9b",
    "series-power": "#f0b35f",
    "series-heat": "#d9659c",
    "series-hbm": "#5b9bff",
}
"""Variables that every theme gets, not only ours."""

COCKPIT = Theme(
    name="vramp",
    primary="#6cb6ff",
    secondary="#3fcf9b",
    accent="#8ab4f8",
    warning="#e3b341",
    error="#ff6b6b",
    success="#3fcf9b",
    foreground="#d5dbe3",
    background="#11151a",
    surface="#161b22",
    panel="#2b333d",
    dark=True,
    variables={"block-cursor-background": "#2f4a68", "block-cursor-foreground": "#d5dbe3"},
)

SERIES_OF_16 = {
    "series-throughput": "#55ff55",
    "series-p50": "#55ffff",
    "series-p99": "#ffff55",
    "series-held": "#ffffff",
    "series-running": "#55ff55",
    "series-waiting": "#ff55ff",
    "series-kv": "#ffff55",
    "series-busy": "#55ff55",
    "series-power": "#ffff55",
    "series-heat": "#ff55ff",
    "series-hbm": "#55ffff",
}
COCKPIT_OF_16 = Theme(
    name="vramp",
    primary="#55ffff",
    secondary="#55ff55",
    accent="#55ffff",
    warning="#ffff55",
    error="#ff5555",
    success="#55ff55",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#555555",
    dark=True,
    variables={"block-cursor-background": "#0000aa", "block-cursor-foreground": "#ffffff"},
)
"""The same for terminals of 16 colours, chosen by hand: the nearest to ours would be white for several series."""
