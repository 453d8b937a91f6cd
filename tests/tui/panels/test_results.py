"""The results: what was found, the table, and how to go on, at every size."""

import msgspec
import pytest

from loadgen.schema.comparison import Comparison
from loadgen.schema.shared import Diagnosis, SearchResult
from loadgen.schema.snapshot import Snapshot
from tests.tui.painted import lines
from tests.tui.scripted import running
from tui.panels.results import results

replace = msgspec.structs.replace
PATH = "runs/20260102T030405Z-mine/result.json"
FOUND = SearchResult("knee", "concurrency", 48.0, 40.0, 56.0, resolved=True, why="", probes=9)


def done(**changes: object) -> Snapshot:
    base = {"phase": "done", "headline": "complete: the plan is done", "healthy": True, "result_path": PATH}
    return replace(running(), **(base | changes))


def text(snapshot: Snapshot, width: int = 120, height: int = 40) -> str:
    return "\n".join(lines(results, snapshot, width, height))


@pytest.mark.parametrize(("width", "height"), [(80, 12), (80, 18), (120, 30), (200, 60)])
def test_the_table_and_the_commands_have_room_at_every_size(width: int, height: int) -> None:
    shown = text(done(), width, height)
    for words in ("vramp report runs/20260102T030405Z-mine", "vramp replay runs/20260102T030405Z-mine", PATH):
        assert words in shown
    assert "▸" in shown or "TTFT p50" in shown


def test_the_result_of_a_search_is_in_words() -> None:
    assert "knee: concurrency 48 (40 to 56), by 9 probes" in text(done(search=FOUND))
    unresolved = replace(FOUND, found=None, resolved=False, why="too noisy")
    assert "knee: not resolved: too noisy" in text(done(search=unresolved))


def test_every_stage_has_its_difference_from_what_was_published() -> None:
    compared = tuple(Comparison(stage, "MI300X", "ttft_p50_ms", 800.0, 880.0, 10.0 + stage) for stage in range(4))
    shown = text(done(reference=compared))
    assert "published MI300X, and each stage's difference ─" in shown
    for number, conc in enumerate((8, 16, 32, 64)):
        assert f" {number + 1} conc {conc:<7}  TTFT p50 800 (+{10 + number}.0%)" in shown
    small = text(done(reference=compared), 80, 18)
    assert "the last 3 of 4 stages" in small and "(+13.0%)" in small and "(+10.0%)" not in small


def test_the_diagnosis_of_a_dead_server_is_kept() -> None:
    cause = Diagnosis("kv-cache", "no memory is left for the KV cache", (), "lower it")
    server = replace(running().server, state="died", diagnosis=cause)
    shown = text(done(server=server, headline="server_died: the server ended", healthy=False))
    assert f" {cause.title}" in shown and "→ lower it" in shown


def test_a_missing_result_is_reported() -> None:
    assert "no result was written" in text(done(result_path=None))
    assert "the run is live" in text(running())
