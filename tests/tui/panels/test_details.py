"""Details of a verdict, a stage or a GPU, by a click and by keys; the words for verdicts are those of the manual."""

import re
from pathlib import Path

from loadgen.metrics.verdicts import _GPU_RULES, _STAGE_RULES
from tests.tui.cockpit import Seat, seated
from tests.tui.scripted import running, with_gpus
from tui.panels.details import EXPLAINED
from tui.widgets.rows import target, target_at

MANUAL = Path(__file__).parents[3] / "docs" / "telemetry.md"


async def click(seat: Seat, words: str, column: int = 3) -> None:
    """On the row with these words, so far to the right of their beginning."""
    y = next(y for y, row in enumerate(seat.rows) if words in row)
    await seat.pilot.click(offset=(seat.rows[y].index(words) + column, y))
    await seat.settle()


def title(seat: Seat) -> str:
    row = next(row for row in seat.rows if ", tab the next" in row)
    return re.split(r" ─", row.partition("by plan")[2])[0].strip()


async def test_a_click_on_a_row_shows_what_is_known_of_it() -> None:
    async with seated((240, 60)) as seat:
        await seat.show(with_gpus())
        for view, row, shown in (
            ("1", "  2     16", "stage 2"),
            ("1", "   5 ━", "gpu 5"),
            ("1", "gpu 5  straggler", "straggler of gpu 5"),
            ("4", "5 MI300X", "gpu 5"),
            ("9", "gpu 5  straggler", "straggler of gpu 5"),
        ):
            if view != "1":
                await seat.press(view)
            await click(seat, row)
            assert title(seat) == shown
            await seat.press("escape")
            assert "throughput tok/s" in seat.text


async def test_keys_show_the_same_and_go_from_one_to_the_next() -> None:
    async with seated((160, 45)) as seat:
        await seat.show(with_gpus())
        await seat.press("tab", "i")
        assert title(seat) == "throttled of gpu 5"
        assert "the GPU is held back by heat, prochot or a brake" in seat.text and "temperature_hotspot_c" in seat.text
        seen = [title(seat)]
        for _ in range(14):
            await seat.press("tab")
            seen.append(title(seat))
        assert seen[2:5] == ["queueing of stage 4", "stage 4", "stage 3"] and seen[-1] == "gpu 7"
        await seat.press("shift+tab")
        assert title(seat) == "gpu 6"


async def test_what_has_no_room_is_counted_and_can_be_had() -> None:
    left = r"… (\d+) more rows: z, a taller terminal, or y copies all"
    async with seated() as seat:
        for size in ((60, 16), (64, 20), (80, 24)):
            await seat.pilot.resize_terminal(*size)
            await seat.show(with_gpus())
            seat.app.copy_to_clipboard("")
            await seat.press("i")
            (before,) = re.findall(left, seat.text)
            assert "ecc_uncorrectable" not in seat.text
            await seat.press("z")
            (now,) = re.findall(left, seat.text) or [0]
            assert int(now) < int(before)
            await seat.press("y")
            assert "ecc_uncorrectable" in seat.app.clipboard
            await seat.press("escape", "escape")


async def test_a_verdict_that_is_gone_is_said_to_be() -> None:
    async with seated((160, 45)) as seat:
        await seat.show(with_gpus())
        await seat.press("i")
        await seat.show(with_gpus(verdicts=()))
        assert "throttled of gpu 5" in seat.text and "no longer the case, tab the first" in seat.text
        await seat.show(running(stages=(), verdicts=()))
        await seat.press("tab")
        assert "nothing to show yet" in seat.text


def test_every_verdict_is_explained_in_the_words_of_the_manual() -> None:
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", MANUAL.read_text(encoding="utf-8"))
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if re.match(r"\| `[a-z-]+`", line)]
    reported = {
        id: (row[2].replace("`", "").strip(), row[3].replace("`", "").strip(" |"))
        for row in rows
        if row[1] in ("yes", "no")
        for id in re.findall("`([^`]+)`", row[0])
    }
    assert reported == EXPLAINED
    assert {id for id, _, _ in (*_GPU_RULES, *_STAGE_RULES)} <= EXPLAINED.keys()


def test_a_target_reaches_to_the_next_one_or_the_end() -> None:
    row = ((" ", "text"), target("a"), ("xx", "dim"), target("b"), ("yyy", "bad"), ("", "rule"))
    assert [target_at(row, column) for column in range(8)] == ["", "a", "a", "b", "b", "b", "b", "b"]
