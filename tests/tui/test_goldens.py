"""The screen as text, compared exactly: read a changed file before you keep it.

`VRAMP_GOLDENS=write pytest tests/tui/test_goldens.py` rewrites them.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.tui.cockpit import seated
from tests.tui.scenes import ERRORS, HOSTS, SNAPSHOT_S, playing, watch, watching, without_server
from tests.tui.scripted import running, starting

GOLDENS = Path(__file__).parent / "goldens"
SIZES = {"80x24": (80, 24), "120x40": (120, 40), "240x60": (240, 60)}
VIEWS = {
    "overview": ("", ("80x24", "120x40", "240x60")),
    "curve": ("2", ("80x24", "240x60")),
    "latency": ("3", ("80x24", "240x60")),
    "gpus": ("4", ("80x24", "120x40")),
    "engine": ("5", ("80x24", "240x60")),
    "log": ("6", ("80x24",)),
    "errors": ("7", ("80x24",)),
    "events": ("8", ("80x24",)),
    "verdicts": ("9", ("80x24",)),
    "results": ("d", ("120x40",)),
}


def compare(name: str, rows: list[str]) -> None:
    text = "".join(f"{row.rstrip()}\n" for row in rows)
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("VRAMP_GOLDENS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path}: read what has changed, then rewrite it"


@pytest.mark.parametrize("size", SIZES)
async def test_views_of_an_afternoon(size: str) -> None:
    async with seated(SIZES[size]) as seat:
        await watch(seat)
        for name, (key, sizes) in VIEWS.items():
            if size in sizes:
                await seat.press("escape", "escape", *key)
                compare(f"{name}-{size}", seat.rows)


@pytest.mark.parametrize("size", ["80x24", "120x40"])
async def test_sessions(size: str) -> None:
    async with seated(SIZES[size]) as seat:
        for step in range(240):
            seat.screen.gather(playing(step / 2))
        await seat.show(playing(120.0))
        await seat.press("a")
        compare(f"sessions-{size}", seat.rows)


@pytest.mark.parametrize("size", ["80x24", "120x40"])
async def test_moments_without_a_view(size: str) -> None:
    async with seated(SIZES[size]) as seat:
        await seat.show(starting())
        compare(f"starting-{size}", seat.rows)
        await seat.show(running(errors=ERRORS))
        compare(f"no-gpus-{size}", seat.rows)


@pytest.mark.parametrize("size", SIZES)
async def test_others_traffic_while_we_send_nothing(size: str) -> None:
    async with seated(SIZES[size]) as seat:
        for n in range(int(200 / SNAPSHOT_S)):
            seat.screen.gather(watching(n * SNAPSHOT_S))
        await seat.show(watching(200.0))
        compare(f"no-load-{size}", seat.rows)
        await seat.press("3")
        compare(f"no-load-latency-{size}", seat.rows)
        await seat.press("5")
        compare(f"no-load-engine-{size}", seat.rows)


@pytest.mark.parametrize("size", SIZES)
async def test_hosts_of_a_cluster(size: str) -> None:
    """One is far from the server, one is lost, and one has a name that would be markup."""
    async with seated(SIZES[size]) as seat:
        now = running()
        stage = msgspec.structs.replace(now.stages[-1], hosts=list(HOSTS))
        await seat.show(msgspec.structs.replace(now, stages=(*now.stages[:-1], stage)))
        compare(f"hosts-{size}", seat.rows)
        await seat.press("9")
        compare(f"hosts-verdicts-{size}", seat.rows)


@pytest.mark.parametrize("size", SIZES)
async def test_a_box_without_a_server(size: str) -> None:
    """GPUs and host over time; nothing of a server, which there is not."""
    async with seated(SIZES[size]) as seat:
        for n in range(int(200 / SNAPSHOT_S)):
            seat.screen.gather(without_server(n * SNAPSHOT_S))
        await seat.show(without_server(200.0))
        compare(f"box-{size}", seat.rows)
        await seat.show(msgspec.structs.replace(without_server(200.25), gpus=()))
        compare(f"box-no-gpus-{size}", seat.rows)


async def test_load_keys_without_a_server() -> None:
    async with seated(SIZES["120x40"]) as seat:
        await seat.show(without_server(5.0))
        await seat.press("+", "right_square_bracket", "0", "n", "s")
        assert not seat.calls
        assert {note.message for note in seat.app._notifications} == {"This run has no server to send load to"}
        assert "one" not in seat.rows[-1]
