"""Tables of stages and loads give whole columns away where there is little room, and never cut a number."""

import pytest

from tests.tui.cockpit import seated
from tests.tui.panels.test_curve import ramped
from tests.tui.panels.test_stage_state import at, lines
from tests.tui.scripted import running, with_gpus
from tui.panels.stages import loads, stages

MOST = "# load held req/s tok/s TTFT p50 p99 TPOT p50 p99 SLO fail"


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (80, MOST.replace("tok/s", "tok/s /user")),
        (73, MOST),
        (72, MOST.replace("TPOT p50 p99", "TPOT p99")),
        (69, MOST.replace("TPOT p50 p99", "TPOT p99")),
        (64, "# load held req/s tok/s TTFT p99 TPOT p99 SLO fail"),
        (60, "# load held tok/s TTFT p99 TPOT p99 SLO fail"),
        (50, "# load tok/s TTFT p99 TPOT p99 SLO fail"),
    ],
)
def test_the_least_important_columns_go_first_and_the_limits_last(width: int, heads: str) -> None:
    found, *rows = lines(stages(at(running()), width, 5), width)
    assert found.split() == heads.split()
    whole = {number for row in lines(stages(at(running()), 200, 5), 200)[1:] for number in row.split()}
    assert len(rows) == 4 and {number for row in rows for number in row.split()} <= whole
    assert [row.split()[-2:] for row in rows] == [["ok", "0"]] * 3 + [["MISS", "0"]]


@pytest.mark.parametrize("width", range(46, 80))
def test_the_loads_keep_their_numbers_whole_too(width: int) -> None:
    whole = {number for row in lines(loads(at(ramped()), 200, 8), 200)[1:] for number in row.split()}
    heads, *rows = lines(loads(at(ramped()), width, 8), width)[1:]
    assert rows and {number for row in rows for number in row.split()} <= whole
    assert "TTFT p" in heads and "ITL p" in heads


@pytest.mark.parametrize(("size", "gpus"), [((64, 20), 0), ((70, 24), 8), ((150, 30), 0), ((150, 30), 8)])
async def test_limits_and_failures_are_on_the_screen(size: tuple[int, int], gpus: int) -> None:
    async with seated(size) as seat:
        await seat.show(with_gpus(gpus) if gpus else running())
        assert any(" SLO  fail" in row for row in seat.rows) and any(" MISS     0" in row for row in seat.rows)
