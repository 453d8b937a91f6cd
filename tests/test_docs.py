"""The pages outside the manual: their links lead somewhere. Those of the manual itself are checked by mkdocs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PATH = re.compile(r"`((?:loadgen|tui|tests|benchmarks|profiles|docs)/[^`\s]*)`")
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_the_pages_outside_the_manual(page: str) -> None:
    missing = [link for link in _LINK.findall((ROOT / page).read_text()) if not (ROOT / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("[CRS]*.md")), *sorted((ROOT / "docs").glob("*.md"))])
def test_files_that_a_page_names_exist(page: Path) -> None:
    missing = [path for path in _PATH.findall(page.read_text()) if not (ROOT / path).exists()]
    assert not missing
