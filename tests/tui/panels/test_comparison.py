"""The baseline on the screen: a row where nothing was published, and a panel of all figures."""

from typing import Any

import pytest

from loadgen.record.baseline import baseline_of, with_baseline
from loadgen.schema.comparison import BaselineView, Comparison
from tests.metrics.served import run_of, served
from tests.tui.scripted import running
from tui.panels.comparison import baseline, baseline_row, published
from tui.panels.frame import Frame, Wanted
from tui.widgets.rows import ROLES, Rows


def beside(scale: float = 1.2, concurrency: int = 16) -> BaselineView:
    run = run_of(served(2, scale=scale, concurrency=concurrency))
    view = with_baseline(run, baseline_of("go\x1b[1mod", run_of(served(1)))).stages[0].baseline
    assert view is not None
    return view


def view(**changes: Any) -> Frame:
    return Frame(running(**changes), Wanted())


def texts(rows: Rows) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


def test_the_row_has_figures_differences_and_a_word() -> None:
    row = baseline_row(view(baseline=beside()), 200)
    (text,) = texts([row])
    assert text.startswith("baseline good  TTFT p50 99.9 (+") and "TPOT p50 7.99 (+" in text
    assert "% worse)" in text and {role for _, role in row} <= set(ROLES) and "bad" in {role for _, role in row}


@pytest.mark.parametrize("width", [0, 20, 80])
def test_the_row_keeps_to_its_width(width: int) -> None:
    assert sum(len(text) for text, _ in baseline_row(view(baseline=beside()), width)) <= width


def test_the_row_takes_the_place_of_a_publication_that_is_not_there() -> None:
    figure = Comparison(stage=3, of="", figure="ttft_p50_ms", published=834.0, measured=840.0, difference_percent=0.7)
    both = view(baseline=beside(), reference=(figure,))
    assert texts([published(both, 120)])[0].startswith("published  TTFT p50 834")
    alone = view(baseline=beside(), reference=())
    assert published(alone, 120) == baseline_row(alone, 120) != ()
    assert published(view(reference=()), 120) == ()
    other = view(reference=(figure,), not_as_published=("data",))
    assert texts([published(other, 120)])[0].startswith("published (with other data)  TTFT p50 834")


def test_a_load_that_the_baseline_has_not_says_so() -> None:
    (text,) = texts([baseline_row(view(baseline=beside(concurrency=64)), 200)])
    assert text == "baseline good  it has no stage with conc 64, ISL 512, OSL 128, but conc 16, ISL 512, OSL 128"


def test_the_panel_has_every_figure_with_its_interval() -> None:
    lines = texts(baseline(view(baseline=beside()), 100, 40))
    assert lines[0].startswith("baseline good ─") and lines[0].endswith(" conc 16, ISL 512, OSL 128")
    assert lines[1].startswith(" worse: ")
    assert lines[2].split() == ["baseline", "now", "difference", "99%", "interval"]
    tpot = next(line.split() for line in lines if line.startswith(" TPOT mean, ms"))
    assert tpot[3:5] == ["7.98", "9.58"] and tpot[-1] == "worse" and "to" in tpot
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize(("width", "height"), [(40, 3), (80, 10), (10, 1)])
def test_the_panel_keeps_to_its_place(width: int, height: int) -> None:
    rows = baseline(view(baseline=beside()), width, height)
    assert len(rows) <= height and all(len(line) <= width for line in texts(rows))


def test_without_a_baseline_the_panel_tells_how_to_name_one() -> None:
    assert texts(baseline(view(), 80, 5))[1] == " none; --baseline RUN names one"


def test_a_short_stage_has_no_interval_and_no_word() -> None:
    run = run_of(served(2, seconds=2.0))
    short = with_baseline(run, baseline_of("good", run_of(served(1)))).stages[0].baseline
    line = next(line for line in texts(baseline(view(baseline=short), 100, 40)) if line.startswith(" TTFT mean, ms"))
    assert line.rstrip().endswith("too short to tell")
