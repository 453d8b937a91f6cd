"""What is on the screen of a run beyond what the goldens have: what is never lost, and what needs the operator."""

from __future__ import annotations

from typing import Any, Literal, get_origin, get_type_hints

import msgspec
import pytest
from rich.cells import cell_len

from loadgen.format import harmless
from loadgen.run.operations import StartAnyway
from loadgen.schema.comparison import Comparison
from loadgen.schema.finding import Finding, Verdict
from loadgen.schema.result import SloCheck
from loadgen.schema.shared import Milestone
from loadgen.schema.snapshot import Liveness, Phase
from tests.tui.cockpit import seated
from tests.tui.scripted import FAILURES, host, running, starting, with_gpus
from tui.panels.frame import Panel

EVIL = "\x1b]0;t\x07\x1b[31mred\r\x9b2J\u202e<evil>"
SIZES = [(80, 24), (120, 40), (160, 45), (240, 60)]
replace = msgspec.structs.replace


async def test_the_cost_of_a_token_is_a_column_once_it_is_known() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running())
        assert "J/tok" not in seat.text and "/user" in seat.text
        await seat.show(with_gpus())
        heads = next(row for row in seat.rows if "J/tok" in row)
        stage = next(row for row in seat.rows if row.startswith("▸  4 "))
        assert "/user" not in heads and stage.split()[-3:] == ["MISS", "0", "0.525"]


async def test_the_host_shows_what_slows_it_down() -> None:
    async with seated((80, 45)) as seat:
        await seat.show(running(host=host()))
        assert " host    cpu  12% max  98% server  910% memory  210/1511 GiB load  31.4" in seat.text
        await seat.pilot.resize_terminal(160, 45)
        await seat.show(running(host=host()))
        assert "governor powersave" in seat.text
        await seat.show(running(host=host(governor="performance")))
        assert "governor" not in seat.text
        await seat.show(running())
        assert "cpu   -% max   -% server    -%" in seat.text


async def test_bad_verdicts_come_first_and_those_without_room_are_counted() -> None:
    async with seated() as seat:
        await seat.show(running())
        assert next(row for row in seat.rows if "verdicts ─" in row).rstrip().endswith("nothing bad")
        bad = [Verdict("throttled", f"gpu {n}", "THROTTLED thermal 18%") for n in range(4)]
        await seat.show(running(verdicts=(*bad, Verdict("queueing", "stage 4", "queueing", bad=False))))
        assert "+2 more  4 bad" in seat.text and "! gpu 2  THROTTLED thermal 18%" in seat.text
        assert "gpu 3" not in seat.text


async def test_limits_of_the_client_and_failures_are_shown() -> None:
    async with seated() as seat:
        client = replace(running().client, limited=True, why="read lag p99 12 ms")
        await seat.show(running(client=client, errors=FAILURES))
        assert "! LIMITED" in seat.text and "read lag p99 12 ms" in seat.text
        start = next(n for n, row in enumerate(seat.rows) if "errors ─" in row)
        assert seat.rows[start].rstrip().endswith("19")
        assert "12  http_500  500 Internal Server Error: CUDA out of memory" in seat.rows[start + 1]
        await seat.show(running(engine=None, requests=None, stages=()))
        assert "running     -  waiting     -" in seat.text
        assert "TTFT ms     -     -     -     -     -     -│" in seat.text


async def test_a_run_that_is_done_names_its_result_and_q_leaves_at_once() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running(phase="done", result_path="runs/x/result.json"))
        seat.run.finish()
        await seat.app.workers.wait_for_complete()
        await seat.pilot.pause()
        assert "run done  runs/x/result.json" in seat.text
        await seat.press("1")
        assert "TTFT ms" in seat.text and not seat.has_left()
        await seat.press("q")
        assert seat.has_left() and seat.calls == []


async def test_every_row_is_whole_after_any_resize() -> None:
    async with seated((240, 60)) as seat:
        await seat.show(running())
        for size in [(80, 24), (20, 5), (240, 10), (1, 1), (120, 40)]:
            await seat.pilot.resize_terminal(*size)
            await seat.pilot.pause()
            assert len(seat.rows) == size[1]
        assert "TTFT ms" in seat.text


async def test_stale_numbers_are_dim_and_have_an_age(monkeypatch: pytest.MonkeyPatch) -> None:
    def roles(panel: str) -> set[str]:
        return {role for row in seat.screen.query_one(f"#{panel}", Panel)._rows for _, role in row}

    async with seated() as seat:
        await seat.show(running())
        assert "p50" in roles("ttft")
        monkeypatch.setattr("tui.panels.frame.STALE_AFTER_S", 0.75)
        monkeypatch.setattr("tui.screens.cockpit.STALE_AFTER_S", 0.75)
        monkeypatch.setattr("tui.screens.cockpit.monotonic", lambda: seat.screen._arrived_s + 7.2)
        seat.screen.check_age()
        await seat.settle()
        assert roles("ttft") == {"dim"} and "bad" in roles("header")
        assert "! no data for 7 s" in seat.rows[0]
        await seat.show(running(201.0, phase="done"))
        assert "strong" in roles("load")


async def test_markup_in_texts_from_outside_is_shown_as_it_is() -> None:
    async with seated() as seat:
        for text in ("[bold red]x[/]", "[/]", "[@click=app.quit]x[/]"):
            server = replace(running().server, log_tail=(text,), model=text, version=text)
            errors = {text: (12, [text]), f"{text} too": (7, [text])}
            await seat.show(running(server=server, profile=text, headline=text, errors=errors))
            assert seat.text.count(text) >= 5
            strips = seat.app.screen._compositor.render_strips(seat.app.size)
            panels = [segment.style.meta for strip in strips[:-1] for segment in strip if segment.style]
            assert not any("@click" in meta for meta in panels)


async def test_no_text_of_a_snapshot_reaches_the_terminal_raw() -> None:
    """A watched run sends any snapshot that it likes; every text in it is hostile here."""
    snapshot = hostile(running(reference=(Comparison(3, "MI300X", "ttft_p50_ms", 1.0, None, None),)))
    stage = replace(snapshot.stages[-1], slo={EVIL: SloCheck(1.0, 1.0, met=True, needs=9)})
    ended = replace(snapshot.stages[0], inconclusive=EVIL, e2e_inconclusive=EVIL)
    load = replace(snapshot.load, waits_for=EVIL)
    waiting = replace(snapshot, stages=(ended, *snapshot.stages[1:-1], stage), load=load)
    async with seated() as seat:
        for shown, size in ((snapshot, SIZES[0]), (waiting, SIZES[1]), (waiting, SIZES[3])):
            await seat.pilot.resize_terminal(*size)
            await seat.show(shown)
            for key in ("1", "2", "3", "4", "5", "6", "7", "8", "9", "d", "i"):
                await seat.press(key)
                assert not [row for row in seat.rows if harmless(row) != row]


def hostile(value: Any) -> Any:
    """A copy in which every text is hostile, except where only certain words can be decoded."""
    match value:
        case str():
            return value + EVIL
        case tuple() | list():
            return type(value)(map(hostile, value))
        case dict():
            return {hostile(key): hostile(entry) for key, entry in value.items()}
        case msgspec.Struct():
            free = [name for name, kind in get_type_hints(type(value)).items() if get_origin(kind) is not Literal]
            return replace(value, **{name: hostile(getattr(value, name)) for name in free})
    return value


async def test_wide_characters_move_nothing() -> None:
    async with seated() as seat:
        server = replace(running().server, model="模型🚀", log_tail=("日志 " * 60,), log_total=1)
        for size in SIZES[:3]:
            await seat.pilot.resize_terminal(*size)
            await seat.show(running(server=server, profile="我的模型-🚀", headline="满载 ok", healthy=True))
            assert "我的模型-🚀" in seat.rows[0]
            assert seat.rows[1 if size[0] < 150 else 0].rstrip().endswith("满载 ok")
            assert all(cell_len(row) <= size[0] for row in seat.rows)
        await seat.press("6")
        assert seat.text.count("日志") == 60


async def test_the_panel_of_the_log_leaves_out_what_repeats() -> None:
    async with seated((120, 40)) as seat:
        lines = (
            "(APIServer pid=7) INFO 11-21 14:59:18 [loggers.py:1] Engine 000: Avg",
            "(EngineCore_DP0 pid=8) WARNING 11-21 14:59:19 [x.py:1] slow",
            "(APIServer pid=7) INFO:     Started",
            "Traceback",
        )
        await seat.show(running(server=replace(running().server, log_tail=lines)))
        for words in (" 14:59:18 Engine 000: Avg", " WARNING 14:59:19 slow", " INFO:     Started", " Traceback"):
            assert words in seat.text
        assert "pid=7" not in seat.text


async def test_a_feed_that_breaks_ends_the_app_and_keeps_the_reason() -> None:
    async with seated() as seat:
        await seat.show(running())
        seat.run.fail(ConnectionError("the feed broke"))
        await seat.until_left()
        assert str(seat.app.failure) == "the feed broke"


BLOCKS = Finding(
    "unknown-flag", "blocks", "--swap-space", "vLLM 0.32 has no such flag", "remove server.args.swap-space"
)
WARNS = Finding("numa-balancing", "warns", "kernel.numa_balancing is 1", "it can make GPUs hang")


async def test_a_blocked_start_shows_its_findings_and_waits_for_the_operator() -> None:
    async with seated() as seat:
        blocked = starting(phase="blocked", headline="preflight: the start would fail", findings=(BLOCKS, WARNS))
        await seat.show(blocked)
        for words in ("! blocks  --swap-space", BLOCKS.why, f"→ {BLOCKS.fix}", "▲ warns   kernel.numa_balancing is 1"):
            assert words in seat.text
        assert "loading weights" not in seat.text
        await seat.press("x")
        assert seat.calls == [StartAnyway()]


async def test_the_findings_can_be_read_at_any_time() -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running(findings=(WARNS,) * 20))
        assert "preflight" not in "\n".join(seat.rows[2:-1])
        await seat.press("x", "9")
        assert seat.text.count("▲ warns") > 1 and "more: `vramp check`" in seat.text
        assert seat.calls == []


async def test_a_silent_start_shows_signs_of_life_and_the_last_durations() -> None:
    async with seated() as seat:
        steps = (
            Milestone("import", "start and import", "done", started_s=0.0, finished_s=4.0),
            Milestone("compile", "compile", "running", started_s=4.0, expected_s=40.0, elapsed_s=30.0),
            Milestone("ready", "ready", expected_s=2.0),
        )
        life = Liveness(cpu_percent=198.0, rss_bytes=21_000_000_000, last_line_age_s=25.0)
        await seat.show(starting(server=replace(starting().server, milestones=steps, expected_s=50.0, liveness=life)))
        assert "0:42 of about 0:50" in seat.text
        assert "╌ 30 s of about 40 s" in seat.text
        assert next(row for row in seat.rows if "· ready" in row).rstrip().endswith("~2 s")
        assert "alive: CPU 198%   memory 21.0GB   last line 25 s ago" in seat.text


async def test_a_long_verdict_leaves_the_profile_and_the_stage_in_the_header() -> None:
    async with seated() as seat:
        for size in ((160, 45), (80, 24)):
            await seat.pilot.resize_terminal(*size)
            await seat.show(running(headline="the server was killed by SIGKILL: " + "why " * 60, healthy=False))
            header = "".join(seat.rows[:2])
            assert "vramp  mi300x-gpt-oss-120b" in header and "stage 4 of 4  conc 64" in header
            assert "! the server was killed by SIGKILL: why why" in header and "…" in header


@pytest.mark.parametrize(
    ("phase", "words"), [("running", "  stage"), ("draining", "  after stage"), ("holding", "  after stage")]
)
async def test_the_header_counts_only_stages_of_the_plan(phase: Phase, words: str) -> None:
    async with seated((80, 24)) as seat:
        await seat.show(running(phase=phase))
        assert f"{words} 4 of 4  conc 64" in "".join(seat.rows[:2])


async def test_the_log_can_be_filtered() -> None:
    async with seated() as seat:
        await seat.show(starting())
        await seat.press("/")
        await seat.press(*"SHARD", "space", *"7", "enter")
        assert "/SHARD 7: 1 line" in seat.text
        assert "shard 7" in seat.text and "shard 8" not in seat.text
        await seat.press("/", *["backspace"] * 7, "enter")
        assert "shard 28" in seat.text and "lines" not in seat.text
