"""Tags around texts: everything that is not a tag of ours is escaped here, so that no section has to think of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadgen.report.tabular import plain


def section(title: str, *parts: str, note: str = "") -> str:
    """A heading and what belongs to it; empty where there is nothing."""
    body = "\n".join(part for part in parts if part)
    if not body:
        return ""
    lead = f"<p class='note'>{plain(note)}</p>\n" if note else ""
    return f"<section>\n<h2>{plain(title)}</h2>\n{lead}{body}\n</section>"


def subsection(title: str, body: str) -> str:
    """A smaller heading; empty where there is nothing."""
    return f"<h3>{plain(title)}</h3>\n{body}" if body else ""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; empty where there is no text."""
    return f"<p{f' class={kind!r}' if kind else ''}>{plain(text)}</p>" if text else ""


def pairs(values: Mapping[str, object]) -> str:
    """Names and values beside each other; empty where there are none."""
    entries = "\n".join(f"<dt>{plain(name)}</dt><dd>{plain(value)}</dd>" for name, value in values.items())
    return f"<dl>\n{entries}\n</dl>" if entries else ""


def lines(texts: Iterable[str]) -> str:
    """A list; empty where there is nothing in it."""
    items = "\n".join(f"<li>{plain(text)}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def preformatted(text: str) -> str:
    """A text as it is typed; empty where there is none."""
    return f"<pre>{plain(text)}</pre>" if text else ""


def chart(name: str, title: str = "", key: Mapping[str, str] | None = None) -> str:
    """The place of a figure, by its name, under a title; `key` are its lines and their colours."""
    words = "".join(f"<i style='color:{plain(colour)}'>{plain(line)}</i>" for line, colour in (key or {}).items())
    head = f"<h3>{plain(title)}{words}</h3>" if title else ""
    return f"<figure>{head}<div class='chart' id='{plain(name)}'></div></figure>"


def grid(columns: int, *figures: str) -> str:
    """Figures beside each other where there is room; empty without any."""
    return f"<div class='grid of{columns}'>{''.join(figures)}</div>" if figures else ""


def legend(entries: Mapping[str, str]) -> str:
    """Names and their colours, for figures that share them."""
    items = (f"<li><i style='background:{plain(colour)}'></i>{plain(name)}</li>" for name, colour in entries.items())
    return f"<ul class='legend'>{''.join(items)}</ul>" if entries else ""
