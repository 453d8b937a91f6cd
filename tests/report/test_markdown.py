"""Markdown as GitHub would read it."""

import re

from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.tabular import escaped
from loadgen.report.text import markdown_report
from loadgen.schema.result import Result
from tests.report.test_text import result, stage

UNESCAPED_PIPE = re.compile(r"(?<!\\)\|")


def tables(text: str) -> list[list[str]]:
    """The tables of a document, as lines."""
    blocks = text.split("\n\n")
    return [block.splitlines() for block in blocks if block.startswith("|")]


def test_one_row_a_stage() -> None:
    throughput, efficiency, latency, limits, engine = tables(markdown_report(result(stage(80))))
    assert throughput == [
        "| load | ISL/OSL | held | completed | failed | duration s | req/s | output tok/s | total tok/s | limits |",
        "| :-- | :-- | --: | --: | --: | --: | --: | --: | --: | :-- |",
        "| conc 8 | 4096/1024 | 8.00 | 80 | 0 | 171.00 | 0.47 | 479.07 | 2,394.07 | **missed** |",
    ]
    assert efficiency == [
        "| load | tok/s per user | decode tok/s per stream |",
        "| :-- | --: | --: |",
        "| conc 8 | 59.9 | 50.0 |",
    ]
    assert latency[2].startswith("| TTFT | conc 8 | 3 | 20.00 | 20.02 | 30.00 | 30.00 | 30.00 |")
    assert limits[2] == "| conc 8 | **30** |"
    assert engine[2].startswith("| conc 8 | 20.1 | 19.5 | 0.6 |")


def test_a_stage_in_which_everything_failed_has_no_numbers() -> None:
    found = tables(markdown_report(result(stage(0, reset=3))))
    assert [r"| reset | 3 | connection lost |"] in [table[2:] for table in found]
    assert not any("TTFT" in line for table in found for line in table)


def test_published_next_to_measured(measured: Result) -> None:
    (published,) = (table for table in tables(markdown_report(measured)) if "published" in table[0])
    assert len(published) == 2 + 4
    assert published[2].startswith(r"| conc 2 | ttft\_p50\_ms | 40.00 |")


def test_texts_from_outside_stay_texts(hostile: Result) -> None:
    text = markdown_report(hostile)
    assert "<script" not in text.replace("\\<script", "")
    assert "\x1b" not in text and "\u202e" not in text
    for table in tables(text):
        assert len({len(UNESCAPED_PIPE.findall(line)) for line in table}) == 1


@given(st.text())
def test_an_escaped_text_is_one_line_and_has_no_open_mark(text: str) -> None:
    shown = escaped(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]<>|@#]", shown)
