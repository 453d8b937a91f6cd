"""Dialogs over a cockpit: the layout of what is on them and under them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from textual._compositor import Compositor

from tests.server.fakes import eventually
from tests.tui.cockpit import Seat, seated
from tests.tui.scripted import with_gpus


@pytest.fixture
def laid_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each layout, by the kind of the screen that it is of."""
    layouts: list[str] = []
    arrange: Callable[..., Any] = Compositor._arrange_root

    def arranging(self: Compositor, root: Any, *args: Any, **others: Any) -> Any:
        layouts.append(type(root).__name__)
        return arrange(self, root, *args, **others)

    monkeypatch.setattr(Compositor, "_arrange_root", arranging)
    return layouts


def laid_out_at(seat: Seat, size: tuple[int, int]) -> bool:
    return seat.app.screen._compositor.size == size


async def test_the_terminal_is_resized_under_a_dialog() -> None:
    async with seated((120, 40)) as seat:
        await seat.show(with_gpus())
        for key in ("n", "R", "question_mark", "q"):
            await seat.press(key)
            for size in ((121, 40), (121, 41), (240, 60), (80, 24), (60, 16), (100, 30)):
                await seat.pilot.resize_terminal(*size)
                await eventually(partial(laid_out_at, seat, size))
                assert len(seat.app.screen_stack) == 2, key
                await seat.settle()
                assert seat.rows[-1].strip()  # what lies under it, laid out again
            for size in ((1, 1), (2, 2), (7, 3), (120, 40)):
                await seat.pilot.resize_terminal(*size)
                await eventually(partial(laid_out_at, seat, size))
            assert seat.app.failure is None and len(seat.app.screen_stack) == 2, key
            await seat.press("escape")


async def test_rows_know_their_height_while_they_are_laid_out_first(laid_out: list[str]) -> None:
    """Without it the help, whose height is that of its rows, would be laid out once more than other dialogs."""
    async with seated() as seat:
        await seat.show(with_gpus())
        await seat.press("question_mark")
        await seat.press("escape")
        await seat.press("n")
        assert laid_out.count("Help") == laid_out.count("AskText")
