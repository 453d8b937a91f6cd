"""The baseline on the screen: a row where nothing was published, and a panel of all figures."""

import pytest

from loadgen.record.figures import baseline_of, with_baseline
from loadgen.schema.comparison import BaselineView, Comparison
from tests.metrics.served import run_of, served
from tests.tui.painted import frame_of, lines, painted, text_of
from tests.tui.scripted import running
from tui.panels.comparison import baseline, baseline_row, published
from tui.widgets.rows import width_of


def baseline_view(scale: float = 1.2, concurrency: int = 16, seconds: float = 30.0) -> BaselineView:
    run = run_of(served(2, scale=scale, concurrency=concurrency, seconds=seconds))
    view = with_baseline(run, baseline_of("go\x1b[1mod", run_of(served(1)))).stages[0].baseline
    assert view is not None
    return view


def test_the_row_has_figures_differences_and_a_word() -> None:
    row = baseline_row(frame_of(running(baseline=baseline_view())))
    text = text_of(row)
    assert text.startswith("baseline good  TTFT p50 99.9 (+") and "TPOT p50 7.99 (+" in text
    assert "% worse)" in text and "bad" in {role for _, role in row}


def test_the_row_takes_the_place_of_a_publication_that_does_not_exist() -> None:
    figure = Comparison(stage=3, of="", figure="ttft_p50_ms", published=834.0, measured=840.0, difference_percent=0.7)
    both = running(baseline=baseline_view(), reference=(figure,))
    assert text_of(published(frame_of(both))).startswith("published  TTFT p50 834")
    alone = frame_of(running(baseline=baseline_view(), reference=()))
    assert published(alone) == baseline_row(alone) != ()
    assert published(frame_of(running(reference=()))) == ()
    other = running(reference=(figure,), not_as_published=("data",))
    assert text_of(published(frame_of(other))).startswith("published (with other data)  TTFT p50 834")


def test_a_load_that_the_baseline_does_not_have_is_named() -> None:
    text = text_of(baseline_row(frame_of(running(baseline=baseline_view(concurrency=64)))))
    assert text == "baseline good  it has no stage with conc 64, ISL 512, OSL 128, but conc 16, ISL 512, OSL 128"


def test_the_panel_has_every_figure_with_its_interval() -> None:
    rows = lines(baseline, running(baseline=baseline_view()), 100, 40)
    assert rows[0].startswith("baseline good ─") and rows[0].endswith(" conc 16, ISL 512, OSL 128")
    assert rows[1].startswith(" worse: ")
    tpot = next(line.split() for line in rows if line.startswith(" TPOT mean, ms"))
    assert tpot[3:5] == ["7.98", "9.58"] and tpot[-1] == "worse" and "to" in tpot
    assert lines(baseline, running())[1] == " none; --baseline RUN names one"


@pytest.mark.parametrize(("width", "height"), [(40, 3), (10, 1)])
def test_the_panel_keeps_to_its_size(width: int, height: int) -> None:
    rows = painted(baseline, running(baseline=baseline_view()), width, height)
    assert len(rows) == height and all(width_of(row) <= width for row in rows)


def test_a_short_stage_has_no_interval_and_no_word() -> None:
    short = baseline_view(scale=1.0, seconds=2.0)
    line = next(line for line in lines(baseline, running(baseline=short), 100, 40) if line.startswith(" TTFT mean, ms"))
    assert line.rstrip().endswith("too short to tell")
