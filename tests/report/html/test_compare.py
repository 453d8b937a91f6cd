"""The page of several runs: all of them on one picture, their prices and differences, and no harm from their names."""

import msgspec
import pytest

from loadgen.report.compare import compare_runs
from loadgen.report.html.compare import compare_page, short_names
from loadgen.schema.result import CostResult, Result
from tests.report.conftest import EVIL
from tests.report.html.test_run_page import TAGS, Page

replace = msgspec.structs.replace


def page_of(*runs: tuple[str, Result]) -> Page:
    a, *others = runs
    return Page(compare_page(runs, [compare_runs(a, b) for b in others]))


def test_runs_and_what_their_tokens_took(measured: Result) -> None:
    stages = [replace(one, cost=CostResult(2.1, 1.234, 0.456)) for one in measured.stages]
    priced = replace(measured, stages=stages, profile=measured.profile | {"cost": {"gpu_hour": 2.1}})
    page = page_of(("first", measured), ("second", priced))
    (figure,) = page.figures.values()
    assert len(figure["data"]) == 4  # a line and points for each run
    assert "Tokens by user, GPU, power and money" in page.text and "1.234" in page.text
    assert "$ per GPU and hour" in page.text and "2.10" in page.text
    assert "second against first" in page.text and "server" in page.text


def test_a_run_compared_with_itself_has_two_names(measured: Result) -> None:
    page = page_of(("one", measured), ("other", measured))
    assert "the configuration is the same" in page.text
    assert page.text.count("\none\n") >= 3 and page.text.count("\nother\n") >= 3


def test_texts_from_outside_are_texts(hostile: Result) -> None:
    page = page_of((EVIL, hostile), (EVIL, hostile))
    assert page.tags <= TAGS
    assert len(page.scripts) == 3


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["runs/x/quick.json", "runs/x/wide.json"], ["quick.json", "wide.json"]),
        (["runs/a/result.json", "runs/b/result.json"], ["a", "b"]),
        (["last", "good"], ["last", "good"]),
        (["runs/a", "runs/a", "runs/b"], ["a", "a", "b"]),
        (["runs/a", "runs/a"], ["a", "a"]),
        (["a", "a/b"], ["a", "a/b"]),
        (["x/r", "y/z/r"], ["x", "y/z"]),
    ],
)
def test_names_are_as_short_as_they_can_be(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short


def test_runs_without_numbers_have_no_picture(measured: Result) -> None:
    nothing = replace(measured, stages=[])
    page = page_of(("one", nothing), ("other", nothing))
    assert page.figures == {} and "The frontier" not in page.text
