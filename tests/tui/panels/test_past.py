"""What came of a run that was: its figures are whole in any width."""

from pathlib import Path

import pytest

from tests.report.test_text import stage
from tests.tui.panels.test_stage_state import lines
from tui.catalog import PastRun
from tui.panels.past import run_detail

RUN = PastRun(Path("runs/x"), "mine", None, "complete", stages=[stage(8), stage(16)])


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (60, "load req/s tok/s TTFT p50 p99 TPOT p50 p99"),
        (53, "load req/s tok/s TTFT p50 p99 TPOT p99"),
        (52, "load req/s tok/s TTFT p99 TPOT p99"),
        (45, "load tok/s TTFT p99 TPOT p99"),
    ],
)
def test_the_least_important_figures_of_its_stages_go_first(width: int, heads: str) -> None:
    found, *rows = lines(run_detail(RUN, width)[2:5], width)
    assert found.split() == heads.split()
    whole = {number for row in lines(run_detail(RUN, 60)[3:5], 60) for number in row.split()}
    assert len(rows) == 2 and {number for row in rows for number in row.split()} <= whole
