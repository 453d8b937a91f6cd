"""The page in a browser: it draws what it carries, asks nobody for anything, and fits on paper."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.report.compare import compare_runs
from loadgen.report.html.compare import compare_page
from loadgen.report.html.run_page import html_report
from loadgen.schema.result import Result
from tests.chromium import Page, chromium

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(300)]

DRAWN = "return [...document.querySelectorAll('.chart')].filter(one => one.querySelector('path.js-line')).length"
PLACES = "return document.querySelectorAll('.chart').length"
ALL_DRAWN = f"""
const done = arguments[arguments.length - 1];
const drawn = () => {{ {DRAWN} }};
const places = () => {{ {PLACES} }};
const look = () => drawn() === places() ? done(true) : requestAnimationFrame(look);
look();
"""
FETCHED = "return performance.getEntriesByType('resource').map(one => one.name)"
WIDEST = "return Math.max(...[...document.querySelectorAll('.chart .main-svg')].map(one => one.clientWidth))"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def opened(page: Page, result: Result, folder: Path) -> None:
    open_page(page, folder / "report.html", html_report(result))


def open_page(page: Page, path: Path, text: str) -> None:
    """Open it, and wait until its charts are drawn: plotly draws in the frames after the load."""
    path.write_text(text, encoding="utf-8")
    page.open(path.as_uri())
    assert page.run_when_it_calls(ALL_DRAWN)


def test_every_figure_is_drawn_and_nothing_is_fetched(page: Page, measured: Result, tmp_path: Path) -> None:
    opened(page, measured, tmp_path)
    assert page.run(DRAWN) == page.run(PLACES) >= 7
    assert page.run(FETCHED) == []
    assert page.log() == []


def test_several_runs_are_on_one_picture(page: Page, measured: Result, tmp_path: Path) -> None:
    runs = [("one", measured), ("other", measured)]
    open_page(page, tmp_path / "compare.html", compare_page(runs, [compare_runs(*runs)]))
    assert page.run(DRAWN) == page.run(PLACES) == 1
    assert page.run(FETCHED) == page.log() == []


def test_harm_stays_text(page: Page, hostile: Result, tmp_path: Path) -> None:
    page.before_load("window.alert = () => { window.harmed = true; }")
    opened(page, hostile, tmp_path)
    assert page.run(DRAWN) == page.run(PLACES)
    assert page.run("return [document.images.length, document.links.length, window.harmed === true]") == [0, 0, False]
    assert page.log() == []


def test_figures_shrink_to_a_sheet_and_grow_back(page: Page, measured: Result, tmp_path: Path) -> None:
    opened(page, measured, tmp_path)
    before = page.run(WIDEST)
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(WIDEST) <= 690 < before
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(WIDEST) == before
