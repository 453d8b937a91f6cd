"""The results: what was found, the table, and how to go on, at every size."""

import msgspec
import pytest

from loadgen.schema.comparison import Comparison
from loadgen.schema.shared import Diagnosis, SearchResult
from loadgen.schema.snapshot import Snapshot
from tests.tui.painted import lines
from tests.tui.scripted import running
from tui.charts.timeline import Timeline
from tui.panels.frame import Frame, Wanted
from tui.panels.results import results

PATH = "runs/20260102T030405Z-mine/result.json"
FOUND = SearchResult("knee", "concurrency", 48.0, 40.0, 56.0, resolved=True, why="", probes=9)


def done(**changes: object) -> Snapshot:
    base = {"phase": "done", "headline": "complete: the plan is done", "healthy": True, "result_path": PATH}
    return msgspec.structs.replace(running(), **(base | changes))


def text(snapshot: Snapshot, width: int = 120, height: int = 40) -> str:
    timeline = Timeline()
    timeline.add(snapshot)
    return "\n".join(lines(results, Frame(snapshot, Wanted(), timeline=timeline), width, height))


@pytest.mark.parametrize(("width", "height"), [(80, 12), (80, 18), (120, 30), (200, 60)])
def test_the_table_and_the_commands_have_room_at_every_size(width: int, height: int) -> None:
    shown = text(done(), width, height)
    for words in ("vramp report runs/20260102T030405Z-mine", "vramp replay runs/20260102T030405Z-mine", PATH):
        assert words in shown
    assert "▸" in shown or "TTFT p50" in shown


def test_what_a_search_found_is_in_words() -> None:
    assert "knee: concurrency 48 (40 to 56), by 9 probes" in text(done(search=FOUND))
    unresolved = msgspec.structs.replace(FOUND, found=None, resolved=False, why="too noisy")
    assert "knee: not resolved: too noisy" in text(done(search=unresolved))


def test_published_stands_beside_measured() -> None:
    comparison = Comparison(3, "", "ttft_p50_ms", published=800.0, measured=880.0, difference_percent=10.0)
    assert "(+10.0%)" in text(done(reference=(comparison,)))


def test_every_stage_stands_beside_what_was_published_for_it() -> None:
    compared = [Comparison(stage, "MI300X", "ttft_p50_ms", 800.0, 880.0, 10.0 + stage) for stage in range(4)]
    shown = text(done(reference=tuple(compared)))
    assert "published MI300X, and each stage's difference ─" in shown
    for number, conc in enumerate((8, 16, 32, 64)):
        assert f" {number + 1} conc {conc:<7}  TTFT p50 800 (+{10 + number}.0%)" in shown
    small = text(done(reference=tuple(compared)), 80, 18)
    assert "the last 3 of 4 stages" in small and "(+13.0%)" in small and "(+10.0%)" not in small


def test_why_the_server_died_is_not_lost() -> None:
    cause = Diagnosis("kv-cache", "no memory is left for the KV cache", (), "lower it")
    server = msgspec.structs.replace(running().server, state="died", diagnosis=cause)
    shown = text(done(server=server, headline="server_died: the server ended", healthy=False))
    assert f" {cause.title}" in shown and "→ lower it" in shown


def test_without_a_result_it_says_so() -> None:
    assert "no result was written" in text(done(result_path=None))
    assert "the run is live" in text(running())


def test_a_name_from_outside_cannot_move_the_cursor() -> None:
    assert "\x1b" not in text(done(result_path="runs/\x1b[2Jx/result.json", headline="\x1b[31mred"))
