"""The document of a result as plain text for a terminal or a log, and as GitHub Markdown to paste into an issue.

In the plain text, numbers have no thousands and nothing is wrapped. In Markdown, every text of the result is escaped: a
model's name can neither hide a link nor break out of its cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from loadgen.format import fixed
from loadgen.report.document import Section, heading, sections
from loadgen.report.tabular import escaped, markdown_table, one_line, text_lines
from loadgen.schema.result import Result

_WIDTH = 78


def text_report(result: Result) -> str:
    head = heading(result)
    lines = [head.title, head.about, *(f"{note.subject} {note.text}" for note in head.notes)]
    return "\n".join([*map(one_line, lines), sections_text(sections(result))])


def sections_text(found: Iterable[Section], width: int | None = None) -> str:
    return "\n".join(line for section in found for line in section_lines(section, width))


def section_lines(section: Section, width: int | None = None) -> list[str]:
    """The section; with a `width`, its notes are wrapped."""
    lines = [f"{f'{section.title} ':-<{_WIDTH}}", *([section.about] if section.about else [])]
    for table in section.tables:
        lines += [table.title] if table.title and table.rows else []
        lines += text_lines(table.columns, table.rows, fixed)
    notes = (f"{note.subject}: {note.text}" if note.subject else note.text for note in section.notes)
    texts = map(one_line, notes)
    return [*lines, *(texts if width is None else (row for text in texts for row in wrap(text, width) or [""]))]


def markdown_report(result: Result) -> str:
    head = heading(result)
    answers = "\n".join(f"- **{note.subject}** {escaped(note.text)}" for note in head.notes)
    return "\n\n".join(
        [f"### {escaped(head.title)}", escaped(head.about), answers, sections_markdown(sections(result))]
    )


def sections_markdown(found: Iterable[Section]) -> str:
    blocks = []
    for section in found:
        blocks += [f"#### {escaped(section.title)}", escaped(section.about)]
        for table in section.tables:
            blocks += [escaped(table.title), markdown_table(table.columns, table.rows)] if table.rows else []
        blocks.append(
            "\n".join(
                f"- **{escaped(note.subject)}:** {escaped(note.text)}" if note.subject else f"- {escaped(note.text)}"
                for note in section.notes
            )
        )
    return "\n\n".join(filter(None, blocks))
