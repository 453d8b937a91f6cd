"""The screen of an acceptance: phases, criteria with their intervals, and how it is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadgen.run.operations import Abort, Operation, Stop
from loadgen.schema.accept_view import AcceptView
from loadgen.schema.certificate import Certificate, Criterion, Demand, PhaseRecord
from tests.tui.cockpit import Seat
from tests.tui.scripted import ScriptedRun, running
from tests.tui.test_goldens import compare
from tui.app import Cockpit
from tui.panels.accept import bar, phase_detail
from tui.screens.accept import AcceptScreen
from tui.screens.dialogs import AskLeave

TTFT = Criterion(
    demand=Demand(
        phase="performance",
        figure="ttft_p99_ms",
        unit="ms",
        rule="mean",
        load="conc 8, ISL 512, OSL 64",
        direction="at_most",
        bound=500.0,
        margin=25.0,
        source="our [bold]service[/] agreement",
    ),
    outcome="pass",
    reason="the interval lies below 500 ms",
    observed=412.0,
    low=398.0,
    high=431.0,
    starts=2,
    samples=1480,
)
RATE = replace(
    TTFT,
    demand=replace(
        TTFT.demand, figure="output_tokens_per_s", unit="tok/s", direction="at_least", bound=1000.0, margin=0.0
    ),
    outcome="inconclusive",
    observed=1010.0,
    low=930.0,
    high=1090.0,
)
ECC = Criterion(
    demand=Demand(
        phase="burn-in", figure="ecc_uncorrectable", rule="events", direction="none_of", source="none may occur"
    ),
    outcome="fail",
    reason="1 event in 2.1 h: gpu 3",
    observed=1.0,
)
CERTIFICATE = Certificate(
    vramp_version="1.0",
    verdict="inconclusive",
    reasons=(),
    by=None,
    box=None,
    profile="mi300x",
    model=None,
    started_at="2026-11-28T08:00:00Z",
    finished_at="2026-11-28T10:00:00Z",
    pass_confidence=0.95,
    false_fail=0.01,
    phases=(
        PhaseRecord(name="box", state="pass", reason="", finished_at="2026-11-28T08:00:10Z"),
        PhaseRecord(name="silicon", state="skipped", reason="rccl: not installed", finished_at="2026-11-28T08:00:12Z"),
        PhaseRecord(name="performance", state="inconclusive", reason="", runs=("03-performance", "04-performance")),
        PhaseRecord(name="burn-in", state="inconclusive", reason="not run yet"),
    ),
    criteria=(TTFT, RATE, ECC),
    not_tested=(),
)
GOING_ON = AcceptView(CERTIFICATE, "performance", "05-performance", running(), 83_400.0, ending=False, over=False)
OVER = AcceptView(replace(CERTIFICATE, verdict="fail"), None, "", None, 0.0, ending=False, over=True)


@asynccontextmanager
async def seated(size: tuple[int, int] = (120, 40)) -> AsyncIterator[Seat]:
    """An acceptance that goes on until it is ended."""
    run, ended = ScriptedRun(), asyncio.Event()

    async def states() -> AsyncIterator[AcceptView]:
        yield GOING_ON
        await ended.wait()
        yield OVER

    def apply(operation: Operation) -> None:
        run.apply(operation)
        ended.set()

    app = Cockpit(AcceptScreen(Path("runs/x-accept"), states(), apply))
    async with app.run_test(size=size) as pilot:
        seat = Seat(app, pilot, run)
        await seat.settle()
        yield seat
        await app.close_acceptance()


@pytest.mark.parametrize("size", ["80x24", "160x45"])
async def test_phases_and_criteria(size: str) -> None:
    columns, rows = map(int, size.split("x"))
    async with seated((columns, rows)) as seat:
        await seat.press("down", "down", "down")
        compare(f"accept-{size}", seat.rows)


async def test_leaving_asks_until_it_is_over() -> None:
    async with seated() as seat:
        await seat.press("q")
        assert isinstance(seat.app.screen, AskLeave)
        await seat.press("g", "q", "f")
        await seat.until_left()
        assert seat.calls == [Stop()]


async def test_ctrl_c_finishes_then_aborts() -> None:
    async with seated() as seat:
        await seat.press("ctrl+c", "ctrl+c")
        assert seat.calls[:1] == [Stop()] and seat.calls[1:] in ([], [Abort()])


def test_bar_of_what_has_no_bound_is_empty() -> None:
    assert bar(ECC, 10) == ((" " * 10, "text"),)
    nothing = replace(TTFT, observed=None, low=None, high=None)
    assert bar(nothing, 10) == ((" " * 10, "text"),)
    open_end = replace(TTFT, high=None)
    assert bar(open_end, 10) == ((" " * 10, "text"),)


def test_bar_has_what_is_good_on_the_left() -> None:
    shown = ["".join(text for text, _ in bar(one, 21)) for one in (TTFT, RATE)]
    assert shown == ["━●━━╌╌╌╌┊╌│╌╌╌╌╌╌╌╌╌╌", "━━━━━━━━━●│━━━━━━━━╌╌"]


def test_the_run_that_goes_on_names_the_key_that_watches_it() -> None:
    phase = GOING_ON.certificate.phases[2]
    for keymap, key in (({}, "enter"), ({"accept.watch": "f5"}, "f5")):
        shown = "".join(text for row in phase_detail(GOING_ON, phase, 80, keymap) for text, _ in row)
        assert f"05-performance/  {key} watches it" in shown


def test_a_phase_that_goes_on_or_waits_was_not_interrupted() -> None:
    def shown(view: AcceptView) -> str:
        phases = [replace(phase, reason="it was interrupted") for phase in view.certificate.phases[2:]]
        return "".join(text for phase in phases for row in phase_detail(view, phase, 80, {}) for text, _ in row)

    assert "interrupted" not in shown(GOING_ON) and "interrupted" in shown(OVER)
