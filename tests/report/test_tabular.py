"""One declaration of a column, in every format."""

import pytest

from loadgen.format import Statistic
from loadgen.report.tabular import Bad, Column, Value, html_table, markdown_table, text_lines

COLUMNS: tuple[Column[Value], ...] = (
    Column("what", lambda row: Bad("a|b<") if row else "a|b<", words=True),
    Column("output tok/s", lambda row: row, short="tok/s", group="throughput", alarm=True, decimals=1),
)


def test_a_table_is_text_markdown_and_html() -> None:
    assert text_lines(COLUMNS, [1234.56, 0]) == ["what    tok/s", "a|b<  1,234.6", "a|b<        0"]
    assert markdown_table(COLUMNS, [1234.56, 0]).splitlines() == [
        "| what | output tok/s |",
        "| :-- | --: |",
        r"| **a\|b\<** | 1,234.6 |",
        r"| a\|b\< | 0 |",
    ]
    page = html_table(COLUMNS, [3])
    assert "<th colspan='1' class=group>throughput</th>" in page
    assert "<td class='text bad'>a|b&lt;</td><td class='bad'>3</td>" in page


def test_no_rows_are_no_table() -> None:
    assert text_lines(COLUMNS, []) == []
    assert markdown_table(COLUMNS, []) == html_table(COLUMNS, []) == ""


@pytest.mark.parametrize(
    ("value", "report", "compact"),
    [
        (None, "-", "-"),
        ("words", "words", "words"),
        (True, "met", "ok"),
        (False, "missed", "MISS"),
        (12_345, "12,345", "12.3k"),
        (2310.25, "2,310.2", "2.31k"),
        (Statistic(2310.25), "2,310.2", "2.31k"),
        (Statistic(2310.25, at_least=True), ">= 2,310", "≥2.31k"),
        (Statistic(None), "-", "-"),
    ],
)
def test_a_cell_of_a_report_and_of_the_screen(value: Value, report: str, compact: str) -> None:
    column = Column[None]("x", lambda _: value, decimals=1)
    assert (column.report(None), column.compact(None)) == (report, compact)
