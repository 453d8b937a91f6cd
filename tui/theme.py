"""The colours: the only place where they are written as values.

Every series and every state has one variable, used by `app.tcss` alone, so that the same colour means the same thing on
all panels and under every theme that the operator may choose. Red is kept for what must be acted on.
"""

from __future__ import annotations

from textual.theme import Theme

SERIES = {
    "series-throughput": "#7fc8a9",
    "series-p50": "#6cb6ff",
    "series-p99": "#e6a86b",
    "series-held": "#a5b4c4",
    "series-running": "#7fc8a9",
    "series-waiting": "#c792ea",
    "series-kv": "#d7ba7d",
    "series-busy": "#7fc8a9",
    "series-power": "#e6a86b",
    "series-heat": "#e58fb1",
    "series-hbm": "#6cb6ff",
}
"""Variables that themes other than ours get too."""

COCKPIT = Theme(
    name="vramp",
    primary="#6cb6ff",
    secondary="#7fc8a9",
    accent="#8ab4f8",
    warning="#e3b341",
    error="#ff6b6b",
    success="#7fc8a9",
    foreground="#d5dbe3",
    background="#11151a",
    surface="#161b22",
    panel="#2b333d",
    dark=True,
    variables={"block-cursor-background": "#2f4a68", "block-cursor-foreground": "#d5dbe3"},
)
