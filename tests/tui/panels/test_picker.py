"""What the picker tells of a profile: loads in words, columns in their places, findings counted."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loadgen.profile.document import build_profile
from loadgen.profile.schema import Profile
from loadgen.schema.finding import Finding
from tests.tui.painted import texts
from tui.catalog import Entry, PastRun
from tui.panels.past import ago, run_detail, run_head, run_row
from tui.panels.picker import detail, entry_head, entry_row, load_words, preflight
from tui.widgets.rows import Rows

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def profile(**parts: Any) -> Profile:
    return build_profile({"name": "mine", "server": {"engine": "simulator"}, **parts}, where="test")


def text(rows: Rows) -> str:
    return "\n".join(texts(rows))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"load": {"concurrency": [8], "isl": 16, "osl": 8, "requests": 5}}, ["1 stage: conc 8", "16/8   5 requests"]),
        ({"load": {"rate": [0.5, 2], "duration": "30s"}}, ["2 stages: rate 0.500, 2/s", "256/128   30 s"]),
        (
            {"plan": {"ladder": 512}, "load": {"requests": 1}},
            ["10 stages: conc 1, 2, 4, 8, 16, 32, 64, …, 512\n", "   1 request\n"],
        ),
        ({"plan": {"search": "knee", "most": 64}}, ["search for the knee: concurrency 1 to 64"]),
        ({"plan": {"search": "knee"}, "load": {"passes": 2}}, ["load.passes"]),
    ],
)
def test_a_load_is_reported_in_two_lines(parts: dict[str, Any], words: list[str]) -> None:
    lines = "".join(f"{line}\n" for line in load_words(profile(**parts)))
    assert all(each in lines for each in words), lines


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "just now"), (61, "1 min ago"), (7300, "2 h ago"), (3 * 86400, "3 d ago"), (40 * 86400, "2025-11-23")],
)
def test_how_long_ago(seconds: int, words: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == words
    assert ago(None, NOW) == "-"


@pytest.mark.parametrize("width", [40, 58, 84, 120])
def test_rows_fit_and_stand_below_their_heads(width: int) -> None:
    entry = Entry(Path("mine.toml"), {}, profile())
    past = PastRun("load", "killed", "", "mine", started_at=NOW.isoformat(), folder=Path("runs/x"))
    head, row = entry_head(width), entry_row(entry, past, NOW, width)
    assert text([row]).index("killed") == text([head]).index("last run")
    assert text([run_row(past, NOW, width)]).index("killed") == text([run_head(width)]).index("state")


def test_a_finding_is_reported_with_its_remedy_and_counted() -> None:
    found = [Finding("port-taken", "blocks", "port 8000 is taken", "nobody can listen", "vramp stop 8000")]
    assert "! 1 blocks" in text(preflight(found, 0.0, 60)) and "→ vramp stop 8000" in text(preflight(found, 0.0, 60))
    assert "nothing blocks" in text(preflight([], 0.0, 60))
    assert "checking this box … 4 s" in text(preflight(None, 4.2, 60))
    assert "no such variant" in text(preflight(None, 0.0, 60, "no such variant"))


def test_text_from_files_cannot_move_the_cursor() -> None:
    entry = Entry(Path("\x1b[2J.toml"), {}, profile(description="\x1b]0;title\x07words"))
    past = PastRun("load", "failed", "\x1b[31mred\nsecond line", "\x1b[2J", folder=Path("runs/\x1b[2J"))
    shown = text([*detail(entry, None, past, NOW, 60), *run_detail(past, 60, {}), run_row(past, NOW, 60)])
    assert "\x1b" not in shown and "second line" in shown


def test_a_file_of_prompts_is_reported_next_to_the_published_one() -> None:
    published = {"source": "a publication", "data": "x.json of a hub"}
    reported = text(
        detail(Entry(Path("a.toml"), {}, profile(load={"data": "sample"}, reference=published)), None, None, NOW, 90)
    )
    assert "sample   published with x.json of a hub" in reported
    assert "published with" not in text(detail(Entry(Path("a.toml"), {}, profile()), None, None, NOW, 90))
