"""Messages that come and go in the corner: once each, and few at a time."""

from __future__ import annotations

from tests.tui.cockpit import Seat, seated
from tests.tui.scripted import running
from tui.app import MAX_TOASTS


def shown(seat: Seat) -> list[str]:
    return [note.message for note in seat.app._notifications]


async def test_a_message_is_shown_once_without_a_secret_and_few_at_a_time() -> None:
    async with seated() as seat:
        await seat.show(running())
        for _ in range(5):
            seat.app.notify("cannot be opened: http://x/?api_key=hunter2-hunter2", timeout=60)
        await seat.settle()
        assert shown(seat) == ["cannot be opened: http://x/?api_key=***"]
        for number in range(MAX_TOASTS + 1):
            seat.app.notify(f"message {number}", timeout=60)
            await seat.settle()
            assert len(shown(seat)) <= MAX_TOASTS
        assert shown(seat)[-1] == f"message {MAX_TOASTS}"
