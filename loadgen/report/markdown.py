"""The document of a result as GitHub Markdown, to paste into an issue.

Every text of the result is escaped: a model's name can neither hide a link nor break out of its cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from loadgen.report.document import Section, heading, sections
from loadgen.report.tabular import escaped, markdown_table
from loadgen.schema.result import Result


def markdown_report(result: Result) -> str:
    head = heading(result)
    answers = "\n".join(f"- **{note.subject}** {escaped(note.text)}" for note in head.notes)
    return "\n\n".join(
        [f"### {escaped(head.title)}", escaped(head.about), answers, sections_markdown(sections(result))]
    )


def sections_markdown(found: Iterable[Section]) -> str:
    return "\n\n".join(block for section in found for block in _blocks(section) if block)


def _blocks(section: Section) -> Iterator[str]:
    yield f"#### {escaped(section.title)}"
    yield escaped(section.about)
    for table in section.tables:
        if table.rows:
            yield escaped(table.title)
            yield markdown_table(table.columns, table.rows)
    yield "\n".join(
        f"- **{escaped(note.subject)}:** {escaped(note.text)}" if note.subject else f"- {escaped(note.text)}"
        for note in section.notes
    )
