"""The tables of percentiles: as many columns as fit, and each number whole."""

import pytest

from tests.tui.panels.test_stage_state import at, lines
from tests.tui.scenes import moment
from tui.panels.latency import distribution, latency


@pytest.mark.parametrize(
    ("width", "heads"),
    [(80, "mean p50 p90 p99 p99.9 max"), (79, "mean p50 p90 p99 p99.9"), (64, "mean p50 p90"), (60, "mean p50")],
)
def test_the_last_seconds_have_the_columns_that_fit(width: int, heads: str) -> None:
    title, above, *rows = lines(latency(at(moment(200.0)), width, 7), width)
    assert above.partition("│")[2].split() == heads.split()
    for row, whole in zip(rows[:4], lines(latency(at(moment(200.0)), 80, 7), 80)[2:6], strict=True):
        assert row == whole[:44] + whole[44:][: 6 * len(heads.split())]
    assert title.partition("┬")[2].strip("─ …") == ("last 10 s: 100 done" if width > 64 else "last 10 s")


@pytest.mark.parametrize(("width", "last"), [(72, "max"), (71, "p99.9"), (60, "p99")])
def test_the_page_has_them_too(width: int, last: str) -> None:
    heads, *rows = lines(distribution(at(moment(200.0)), width, 20), width)[-5:]
    assert heads.split()[-1] == last and len(rows[0].rstrip()) == 24 + 6 * (len(heads.split()) - 1)
