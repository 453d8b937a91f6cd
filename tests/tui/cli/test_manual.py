"""The manual page is that of the parsers, and has every command."""

from pathlib import Path

from tui.cli.manual import manual_page
from tui.cli.verbs import VERBS

_PAGE = Path(__file__).parents[3] / "docs" / "vramp.1"


def test_the_shipped_page_is_that_of_the_parsers() -> None:
    assert _PAGE.read_text(encoding="utf-8") == manual_page(), "run `make docs`"


def test_every_command_has_a_section_with_its_exit_codes() -> None:
    page = manual_page()
    sections = page.split(".SH ")
    for verb in VERBS:
        (section,) = [text for text in sections if text.startswith(f'"VRAMP {verb.name.upper()}"')]
        assert "exit codes" in section or verb.name in ("bench", "simulate", "completion"), verb.name
    assert "exit codes" in page.split('.SS "vramp bench serve"')[1]


def test_no_line_of_a_text_is_a_request_of_troff() -> None:
    known = (".TH", ".SH", ".SS", ".PP", ".TP", ".B ", ".nf", ".fi")
    assert all(line.startswith(known) for line in manual_page().splitlines() if line.startswith((".", "'")))
