"""A page: the tags around texts, placeholders of figures, and the complete file.

The file is self-contained: plotly's code, the style sheet and the data are in it, and its content security policy
forbids the browser to fetch anything, or to run any script but the two whose hashes it lists. Everything that is not a
tag of ours is escaped here; an empty part yields an empty text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from loadgen.grouping import by_key
from loadgen.report.document import Section
from loadgen.report.tabular import html_table, plain

Figures = dict[str, go.Figure]  # by the name of their placeholder
_NOSCRIPT = "<noscript><p class='bad'>The figures need JavaScript; everything else is here without it.</p></noscript>"


def page(title: str, parts: Sequence[str], figures: Figures) -> str:
    """A complete file from these parts, with the figures for their placeholders; without any, it has no script."""
    body = "\n".join(part for part in parts if part)
    scripts = [get_plotlyjs(), _asset("report.js")] if figures else []
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    # plotly writes style sheets of its own, and exports images as data URLs.
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    # Escaped so that the data cannot close their element.
    data = ",".join(f'"{name}":{figure.to_json()}' for name, figure in figures.items()).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang='en'>
<head>
<meta charset='utf-8'>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name='viewport' content='width=device-width, initial-scale=1'>
<meta name='color-scheme' content='light dark'>
<title>{plain(title)}</title>
<style>{_asset("report.css")}</style>
</head>
<body>
<main>
{_NOSCRIPT if figures else ""}
{body}
</main>
{f"<script type='application/json' id='figures'>{{{data}}}</script>" if figures else ""}
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _asset(name: str) -> str:
    return files("loadgen.report.html").joinpath(name).read_text(encoding="utf-8")


def opening(made_by: str, title: str, of: str, *parts: str, kind: str = "") -> str:
    """The head of a page: the command that made it, its title in two tones, and what is below."""
    heading = f"<h1{f' class={kind!r}' if kind else ''}>{plain(title)} <span>{plain(of)}</span></h1>"
    return "\n".join(["<header>", f"<p class='kicker'>{plain(made_by)}</p>", heading, *parts, "</header>"])


def section(title: str, *parts: str, note: str = "") -> str:
    body = "\n".join(part for part in parts if part)
    if not body:
        return ""
    lead = f"<p class='note'>{plain(note)}</p>\n" if note else ""
    return f"<section>\n<h2>{plain(title)}</h2>\n{lead}{body}\n</section>"


def subsection(title: str, body: str) -> str:
    return (f"<h3>{plain(title)}</h3>\n{body}" if title else body) if body else ""


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind!r}' if kind else ''}>{plain(text)}</p>" if text else ""


def pairs(values: Mapping[str, object]) -> str:
    """Names and values side by side."""
    entries = "\n".join(f"<dt>{plain(name)}</dt><dd>{plain(value)}</dd>" for name, value in values.items())
    return f"<dl>\n{entries}\n</dl>" if entries else ""


def bullets(texts: Iterable[str]) -> str:
    items = "\n".join(f"<li>{plain(text)}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def preformatted(text: str) -> str:
    return f"<pre>{plain(text)}</pre>" if text else ""


def grid(*figures: str, columns: int = 3) -> str:
    """Figures side by side where there is room."""
    return f"<div class='grid of{columns}'>{''.join(figures)}</div>" if figures else ""


def legend(entries: Mapping[str, str]) -> str:
    """Names and their colours, for figures that share them."""
    items = (f"<li><i style='background:{plain(colour)}'></i>{plain(name)}</li>" for name, colour in entries.items())
    return f"<ul class='legend'>{''.join(items)}</ul>" if entries else ""


def placed(figures: Figures, name: str, figure: go.Figure, title: str) -> str:
    """The placeholder of a figure under a title."""
    figures[name] = figure
    head = f"<h3>{plain(title)}</h3>" if title else ""
    return f"<figure>{head}<div class='chart' id='{plain(name)}'></div></figure>"


def rendered(found: Section, *figures: str) -> str:
    """A section of the document, with figures above its tables."""
    tables = [subsection(table.title, html_table(table.columns, table.rows)) for table in found.tables]
    named = by_key(found.notes)
    unnamed = bullets(named.pop("", []))
    words = pairs({subject: "; ".join(texts) for subject, texts in named.items()})
    return section(found.title, *figures, *tables, words, unnamed, note=found.about)
