"""Tables of stages, loads and percentiles drop whole columns where there is little room, and never cut a number."""

from pathlib import Path

import pytest

from tests.report.test_text import stage
from tests.tui.painted import lines, text_of
from tests.tui.panels.test_curve import ramped
from tests.tui.scenes import moment
from tests.tui.scripted import running
from tui.catalog import PastRun
from tui.panels.latency import distribution, latency
from tui.panels.past import run_detail
from tui.panels.stages import loads, stages

MOST = "# load held req/s tok/s TTFT p50 p99 TPOT p50 p99 SLO fail"


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (80, MOST.replace("tok/s", "tok/s /user")),
        (73, MOST),
        (69, MOST.replace("TPOT p50 p99", "TPOT p99")),
        (64, "# load held req/s tok/s TTFT p99 TPOT p99 SLO fail"),
        (60, "# load held tok/s TTFT p99 TPOT p99 SLO fail"),
        (50, "# load tok/s TTFT p99 TPOT p99 SLO fail"),
    ],
)
def test_the_least_important_columns_go_first_and_the_limits_last(width: int, heads: str) -> None:
    found, *rows = lines(stages, running(), width, 5)
    assert found.split() == heads.split()
    whole = {number for row in lines(stages, running(), 200, 5)[1:] for number in row.split()}
    assert len(rows) == 4 and {number for row in rows for number in row.split()} <= whole
    assert [row.split()[-2:] for row in rows] == [["ok", "0"]] * 3 + [["MISS", "0"]]


@pytest.mark.parametrize("width", range(46, 80, 3))
def test_the_loads_keep_their_numbers_whole_too(width: int) -> None:
    whole = {number for row in lines(loads, ramped(), 200, 8)[1:] for number in row.split()}
    heads, *rows = lines(loads, ramped(), width, 8)[1:]
    assert rows and {number for row in rows for number in row.split()} <= whole
    assert "TTFT p" in heads and "ITL p" in heads


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (60, "load req/s tok/s TTFT p50 p99 TPOT p50 p99"),
        (53, "load req/s tok/s TTFT p50 p99 TPOT p99"),
        (45, "load tok/s TTFT p99 TPOT p99"),
    ],
)
def test_the_stages_of_a_past_run_do_so_too(width: int, heads: str) -> None:
    run = PastRun("load", "complete", "", "mine", folder=Path("runs/x"), stages=[stage(8), stage(16)])
    found, *rows = map(text_of, run_detail(run, width, {})[2:5])
    assert found.split() == heads.split()
    whole = {number for row in run_detail(run, 60, {})[3:5] for number in text_of(row).split()}
    assert len(rows) == 2 and {number for row in rows for number in row.split()} <= whole


@pytest.mark.parametrize(("width", "heads"), [(80, "mean p50 p90 p99 p99.9 max"), (64, "mean p50 p90")])
def test_the_percentiles_of_the_last_seconds_have_the_columns_that_fit(width: int, heads: str) -> None:
    title, above, *rows = lines(latency, moment(200.0), width, 7)
    assert above.partition("│")[2].split() == heads.split()
    for row, whole in zip(rows[:4], lines(latency, moment(200.0), 80, 7)[2:6], strict=True):
        assert row == whole[:44] + whole[44:][: 6 * len(heads.split())]
    assert title.partition("┬")[2].strip("─ …") == ("last 10 s: 100 done" if width > 64 else "last 10 s")


@pytest.mark.parametrize(("width", "last"), [(72, "max"), (71, "p99.9"), (60, "p99")])
def test_the_page_of_percentiles_does_so_too(width: int, last: str) -> None:
    heads, *rows = lines(distribution, moment(200.0), width, 20)[-5:]
    assert heads.split()[-1] == last and len(rows[0].rstrip()) == 24 + 6 * (len(heads.split()) - 1)
