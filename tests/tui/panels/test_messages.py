"""What happened, in full, and what of it has no room."""

import pytest

from loadgen.schema.result import RunEvent
from tests.tui.cockpit import seated
from tests.tui.painted import lines
from tests.tui.scripted import running
from tui.panels.messages import all_events

LONG = RunEvent(90.0, "error", f"the server was killed: {'why, ' * 40}\n  -> look for who sent it, to the very end")
EVENTS = (*(RunEvent(float(n), "note", f"note {n}") for n in range(30)), LONG)


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 40)])
async def test_a_long_event_is_read_whole_and_the_earlier_ones_are_counted(size: tuple[int, int]) -> None:
    async with seated(size) as seat:
        await seat.show(running(events=EVENTS))
        await seat.press("8")
        x = max(row.find("events and notes") for row in seat.rows)
        reported = " ".join(row[x:].strip() for row in seat.rows)
    assert reported.count("why, ") + reported.count("why,") >= 40 and "to the very end" in reported
    assert "note 29" in reported
    assert ("earlier events: / filters" in reported) == (size != (120, 40))


def test_the_rows_are_counted_exactly() -> None:
    for height in (3, 4, 30, 31, 33):
        title, first, *rest = lines(all_events, running(events=EVENTS[:30]), 80, height)
        assert title.endswith("30, notes 30") and len(rest) + 2 == min(height, 31)
        assert rest[-1].endswith("note 29")
        if height < 31:
            assert first == f" … {30 - len(rest)} earlier events: / filters"
        else:
            assert first.endswith("note 0")


def test_of_an_event_higher_than_the_view_the_beginning_is_shown() -> None:
    shown = lines(all_events, running(events=EVENTS), 60, 4)
    assert shown[1] == " … 30 earlier events: / filters" and "the server was killed" in shown[2]
    assert len(shown) == 4 and shown[3].endswith("…")
