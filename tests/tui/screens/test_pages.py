"""The views: what a click, the log's keys, the clipboard and a replay do."""

from __future__ import annotations

import msgspec
import pytest
from textual.events import MouseScrollUp
from textual.geometry import Region
from textual.strip import Strip

from loadgen.run.operations import NextStage, Pause, Resume
from loadgen.schema.finding import Finding
from loadgen.schema.result import RunEvent
from loadgen.schema.snapshot import ReplayView
from tests.tui.cockpit import Seat, seated
from tests.tui.painted import frame_of
from tests.tui.scenes import afternoon, moment, playing, watch
from tests.tui.scripted import ScriptedRun, running, with_gpus
from tui.charts.timeline import CAPACITY, MAX_MARKS, Timeline
from tui.config import Config
from tui.keys import PAGES
from tui.panels.frame import Panel
from tui.screens.pages import PANEL_PAGES, copied_verdicts


async def test_a_click_on_a_panel_shows_its_view_and_on_a_chart_maximizes_it() -> None:
    async with seated((160, 45)) as seat:
        await watch(seat)
        for panel, page in (("stages", "curve"), ("latency-right", "latency"), ("server", "engine"), ("gpus", "gpus")):
            await seat.pilot.click(f"#{panel}", offset=(3, 0))
            await seat.settle()
            assert seat.screen.query_one(f"#page-{page}").is_on_screen and PANEL_PAGES[panel] == page
            await seat.press("escape")
        await seat.pilot.click("#ttft", offset=(3, 3))
        await seat.settle()
        assert "TTFT ms (log)" in seat.rows[1] and seat.screen.maximized is not None
        await seat.press("escape")
        assert "TPOT ms" in seat.text and "load ─" in seat.text
        await seat.pilot.click("#keys", offset=(seat.rows[-2].index("errors"), 0))
        await seat.settle()
        assert "→ the server failed" in seat.text


async def test_a_view_is_never_empty_before_its_figures_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str | None, list[str]] = {}
    render_lines = Panel.render_lines

    def watched(panel: Panel, crop: Region) -> list[Strip]:
        strips = render_lines(panel, crop)
        drawn.setdefault(panel.id, []).append("".join(strip.text for strip in strips).strip())
        return strips

    monkeypatch.setattr(Panel, "render_lines", watched)
    async with seated((160, 45)) as seat:
        await watch(seat)
        drawn.clear()
        for page in PAGES:
            await seat.press(page.key)
    assert {"curve", "distribution", "gpu-grid", "engine-table", "failures", "all-verdicts", "results"} <= drawn.keys()
    assert not [panel for panel, texts in drawn.items() if any(texts) and not texts[0]]


async def test_t_goes_through_the_latencies_and_in_the_curve_the_frontier() -> None:
    async with seated((80, 24)) as seat:
        await watch(seat)
        await seat.press("3")
        for title in ("TTFT ms", "TPOT ms", "ITL ms", "E2E ms"):
            assert f"{title} " in seat.rows[6] and "by percentile" in seat.rows[6]
            await seat.press("t")
        await seat.press("2", "t", "t", "t")
        assert "total tok/s by E2E" in seat.rows[6]
        await seat.press("t")
        assert "tok/s per GPU by tok/s per user" in seat.rows[6]
        await seat.press("3")
        assert "TPOT ms " in seat.rows[6]  # the frontier's inverse
        await seat.press("2", "t")
        assert "TTFT ms by streams held" in seat.rows[6]


async def test_y_copies_a_table_that_can_be_pasted_from_every_view() -> None:
    async with seated((80, 24)) as seat:
        await watch(seat)
        for page in sorted(PAGES, key=lambda page: page.name == "sessions"):
            if page.name == "sessions":
                await seat.show(playing(120.0))
            seat.app.copy_to_clipboard("")
            await seat.press("escape", "escape", page.key, "y")
            copied = seat.app.clipboard.splitlines()
            if page.name == "log":
                assert len(copied) == 23
                continue
            columns = {line.replace("\\|", "").count("|") for line in copied}
            assert len(columns) == 1 and len(copied) > 2 and set(copied[1]) <= set("| -"), page.name


def test_a_finding_that_needs_nothing_is_copied_without_a_remedy() -> None:
    finding = Finding("unlike-publication", "info", "another model", "figures differ")
    copied = copied_verdicts(frame_of(msgspec.structs.replace(running(), findings=(finding,))))
    assert "| another model: figures differ |" in copied


async def test_hints_of_the_log_name_the_keys_that_were_moved() -> None:
    """A server that was started elsewhere has no log to show."""
    async with seated((120, 40), config=Config(keys={"log.follow": "f5", "cockpit.log": "f6"})) as seat:
        await show_log(seat, 450)
        await seat.press("f6", "up")
        assert "PAUSED, f5 follows" in seat.text
        for engine, log in (("vllm", "its log (f6) has"), ("attach", "its log has")):
            server = msgspec.structs.replace(running().server, engine=engine)
            await seat.show(running(errors={"http_5xx": (2, ["HTTP 500"])}, server=server))
            await seat.press("escape", "escape", "7")
            assert log in seat.text


async def show_log(seat: Seat, total: int) -> None:
    lines = tuple(f"[{n}] step {n}" for n in range(total))
    server = msgspec.structs.replace(running().server, log_tail=lines[-200:], log_total=total)
    await seat.show(running(200.0 + total, server=server))


async def test_the_log_follows_pauses_and_finds() -> None:
    async with seated((80, 24)) as seat:
        for total in (150, 300, 450):
            await show_log(seat, total)
        await seat.press("6")
        assert "[449]" in seat.text and "450 lines  follows" in seat.text
        await seat.press("up")
        assert "[448]" in seat.text and "[449]" not in seat.text and "PAUSED, f follows" in seat.text
        await show_log(seat, 500)
        assert "[448]" in seat.text and "[449]" not in seat.text and seat.calls == []
        await seat.press("home")
        assert "[0] step 0" in seat.text
        await seat.press("f")
        assert "[499]" in seat.text and "follows" in seat.text
        await seat.press("ctrl+f", *"step", "space", *"12", "enter")
        assert "[129]" in seat.text or "[128]" in seat.text
        await seat.press("/", *"step", "space", *"33", "enter")
        assert "[339]" in seat.text and "11 lines" in seat.text
        await seat.pilot._post_mouse_events([MouseScrollUp], "#log-view", button=0)
        await seat.settle()
        assert "follows" in seat.text


async def test_events_are_filtered_by_kind_or_text() -> None:
    events = (RunEvent(1.0, "load", "conc 2 -> conc 4"), RunEvent(2.0, "note", "the fans are loud"))
    async with seated((120, 40)) as seat:
        await seat.show(running(events=events))
        await seat.press("8", "/", *"NOTE", "enter")
        assert "the fans are loud" in seat.text and "conc 2 -> conc 4" not in seat.text
        assert "/NOTE  1, notes 1" in seat.text
        await seat.press("y")
        assert "the fans are loud" in seat.app.clipboard and "conc 4" not in seat.app.clipboard
        await seat.press("1")
        assert "conc 2 -> conc 4" in seat.text


class ScriptedReplay(ScriptedRun):
    def set_speed(self, speed: float) -> None:
        self.calls.append(("set_speed", speed))


async def test_the_keys_of_the_load_steer_the_time_of_a_replay() -> None:
    async with seated((160, 45), ScriptedReplay()) as seat:
        await seat.show(running(replay=ReplayView(83.0, 300.0, 4.0, paused=False)))
        assert "REPLAY x4 1:23 of 5:00" in seat.rows[0]
        await seat.press("]", "[", "space", ".")
        await seat.show(running(201.0, replay=ReplayView(83.0, 300.0, 4.0, paused=True)))
        assert "REPLAY x4 PAUSED" in seat.rows[0]
        await seat.press("space", "+", "n")
        assert seat.calls == [("set_speed", 8.0), ("set_speed", 2.0), Pause(), NextStage(), Resume()]
        (note,) = seat.app._notifications
        assert "This is a replay" in note.message and seat.dialog is None


async def test_the_results_show_once_the_run_is_done() -> None:
    async with seated((120, 40)) as seat:
        await watch(seat)
        await seat.show(moment(240.0, phase="done", result_path="runs/x/result.json"))
        assert "results ─" in seat.text and "throughput tok/s" not in seat.text
        await seat.press("1")
        await seat.show(moment(241.0, phase="done", result_path="runs/x/result.json"))
        assert "throughput tok/s" in seat.text


async def test_snapshots_that_are_never_drawn_are_on_the_time_axis() -> None:
    async with seated((160, 45)) as seat:
        for snapshot in (running(10.0), running(61.0), running(62.0)):
            seat.run.show(snapshot)
        while seat.screen.snapshot is None or seat.screen.snapshot.t_s < 62.0:
            await seat.settle()
        assert len(seat.screen._timeline.history) == 3


def test_the_memory_of_a_day_is_bounded() -> None:
    timeline = Timeline()
    beats = afternoon()[:240]
    past = beats[0].point
    for n in range(80):
        shot = beats[(n * 3) % len(beats)]
        t_s = 1_000.0 * (n + 1)
        points = tuple(msgspec.structs.replace(past, t_s=t_s - 1_000 + m, errors=int(m % 60 == 0)) for m in range(900))
        timeline.add(msgspec.structs.replace(shot, t_s=t_s, past=points, point=msgspec.structs.replace(past, t_s=t_s)))
    assert len(timeline.history) <= CAPACITY and len(timeline.gpus) <= 2_000
    assert 200 < len(timeline.marks.all) <= MAX_MARKS
    times = timeline.history.times
    assert times[0] < 600 and times[-1] == 80_000.0 and (times[1:] > times[:-1]).all()


def test_the_gpus_history_begins_anew_with_other_gpus() -> None:
    timeline = Timeline()
    for count in (0, 8, 8, 2):
        timeline.add(with_gpus(count) if count else running())
    assert len(timeline.gpus) == 0 or timeline.gpus.last("1 busy") is not None


async def test_a_theme_colours_everything_at_once() -> None:
    async with seated((160, 45)) as seat:
        await watch(seat)
        first = seat.app.export_screenshot()
        seat.app.theme = "nord"
        await seat.settle()
        second = seat.app.export_screenshot()
        await seat.press("question_mark")
        await seat.press("escape")
        assert seat.app.export_screenshot() == second != first
        seat.app.theme = "vramp"
        await seat.settle()
        assert seat.app.export_screenshot() == first


async def test_a_low_screen_keeps_the_last_three_stages() -> None:
    async with seated((64, 20)) as seat:
        for size in ((64, 20), (80, 20), (120, 24), (120, 30), (149, 36), (160, 30)):
            await seat.pilot.resize_terminal(*size)
            await seat.show(with_gpus())
            numbers = [row.replace("▸", " ").split()[0] for row in seat.rows[-4:-1]]
            assert numbers == ["2", "3", "4"], size
