"""Tables: a column is declared once, and the same rows become aligned text, Markdown or HTML.

Every text is escaped here for its format, so that tables need not: a model's name can neither hide a link nor break out
of its cell.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

import msgspec

from loadgen import format as fmt
from loadgen.format import Statistic

Value = str | bool | int | float | Statistic | None
"""A cell's value; a bool says whether limits were met."""
Form = Callable[[float | None, int], str]
_Row = TypeVar("_Row", contravariant=True)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#$@&!])")


class Bad(str):
    """Words that need attention."""

    __slots__ = ()


def judged(words: str, *, good: bool) -> str:
    return words if good else Bad(words)


@dataclass(frozen=True)
class Column(Generic[_Row]):
    """One column of a table, in every format."""

    label: str
    value: Callable[[_Row], Value]
    unit: str = ""  # if the label does not include it
    short: str = ""  # the label if there is little room
    group: str = ""  # a heading over neighbouring columns in HTML
    under: str = ""  # the label below that heading
    words: bool = False  # left-aligned text; otherwise right-aligned numbers
    decimals: int | None = 2  # of non-integers in a report; None: three significant digits
    alarm: bool = False  # bad unless zero
    width: int = 0  # in characters, with leading blanks; 0: as wide as necessary
    role: str = "dim"  # the colour of its label in the cockpit

    def number(self, row: _Row) -> float | None:
        """The value as a number; None if it is unknown or words."""
        value = self.value(row)
        if isinstance(value, Statistic):
            return value.value
        return None if isinstance(value, str) else value

    def report(self, row: _Row, form: Form = fmt.grouped) -> str:
        value = self.value(row)
        decimals = self.decimals
        written = fmt.significant if decimals is None else lambda number: form(number, decimals)
        match value:
            case None:
                return fmt.UNKNOWN
            case str():
                return value
            case bool():
                return "met" if value else Bad("missed")
            case Statistic():
                return fmt.bounded(value, written)
            case int():
                return Bad(form(value, 0)) if self.alarm and value else form(value, 0)
            case _:
                return written(value)

    def compact(self, row: _Row) -> str:
        """The cell in the cockpit; numbers take at most five characters."""
        value = self.value(row)
        match value:
            case str():
                return value
            case bool():
                return "ok" if value else "MISS"
            case Statistic():
                return fmt.bounded_number(value)
            case int():
                return fmt.count(value)
            case _:
                return fmt.number(value)


def text_lines(
    columns: Sequence[Column[_Row]],
    rows: Sequence[_Row],
    form: Form = fmt.grouped,
    *,
    head: bool = True,
    short: bool = True,
) -> list[str]:
    """Aligned text; empty without rows."""
    if not rows:
        return []
    lines = [[(short and column.short) or column.label for column in columns]] if head else []
    lines += [[one_line(column.report(row, form)) for column in columns] for row in rows]
    for place, column in enumerate(columns):
        gap = 0 if place == 0 else 2
        width = max(column.width, gap + max(len(line[place]) for line in lines))
        for line in lines:
            text = " " * gap + line[place]
            line[place] = f"{text:<{width}}" if column.words else f"{line[place]:>{width}}"
    return ["".join(line).rstrip() for line in lines]


def one_line(text: str) -> str:
    """A text from outside as one line, without control characters."""
    return fmt.harmless(text).replace("\n", " ")


def markdown_table(columns: Sequence[Column[_Row]], rows: Sequence[_Row], *, short: bool = False) -> str:
    """A GitHub table; empty without rows."""
    if not rows:
        return ""
    head = [(short and column.short) or column.label for column in columns]
    rule = [":--" if column.words else "--:" for column in columns]
    body = [[_markdown_cell(column, column.report(row)) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *body])


def _markdown_cell(column: Column[_Row], text: str) -> str:
    return f"**{escaped(text)}**" if column.words and isinstance(text, Bad) else escaped(text)


def escaped(text: str) -> str:
    """A text as one line of Markdown that shows exactly this text."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def html_table(columns: Sequence[Column[_Row]], rows: Sequence[_Row]) -> str:
    """An HTML table; empty without rows."""
    if not rows:
        return ""
    labels = [
        f"<th{' class=text' if column.words else ''}>{plain(column.under or column.label)}</th>" for column in columns
    ]
    lines = [[_html_cell(column, column.report(row)) for column in columns] for row in rows]
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    head = f"{_html_groups(columns)}<tr>{''.join(labels)}</tr>"
    return f"<div class='wide'><table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table></div>"


def _html_groups(columns: Sequence[Column[_Row]]) -> str:
    if not any(column.group for column in columns):
        return ""
    spans = [(name, len(list(members))) for name, members in groupby(columns, key=lambda column: column.group)]
    cells = [f"<th colspan='{width}'{' class=group' if name else ''}>{plain(name)}</th>" for name, width in spans]
    return f"<tr>{''.join(cells)}</tr>"


def _html_cell(column: Column[_Row], text: str) -> str:
    kinds = " ".join(filter(None, ["text" if column.words else "", "bad" if isinstance(text, Bad) else ""]))
    return f"<td{f' class={kinds!r}' if kinds else ''}>{plain(text)}</td>"


def plain(value: object) -> str:
    """Any value as HTML text, without tags or control characters."""
    return html.escape(fmt.harmless(str(value)))


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def figure_words(value: float | None, *, at_least: bool = False) -> str:
    """A measured figure with as many decimals as its size needs."""
    return f"{'>= ' if at_least else ''}{fmt.fixed(value, 4 if value is not None and abs(value) < 1 else 2)}"


def json_text(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def figure(part: str, name: str) -> Callable[[object], Value]:
    """A figure in a part of a row; in the row itself if it has no such part."""
    return lambda row: getattr(getattr(row, part, row), name, None)
