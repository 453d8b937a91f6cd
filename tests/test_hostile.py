"""Folders of runs that came from somebody else: whatever is in them, every verb ends soon, in words, and writes nothing
outside of them.
"""

from __future__ import annotations

import copy
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from loadgen.errors import ResultError
from loadgen.format import harmless
from loadgen.run.replay import Replay
from loadgen.schema.result import RESULT
from loadgen.store.files import HISTOGRAMS
from loadgen.store.journal import JOURNAL
from tests.journal import STARTED
from tests.store.test_recover import journal, stage
from tui.cli.__main__ import main

EVIL = "\x1b]0;title\x07\x1b[31mred\r\x9b2J\u202e<script>alert(1)</script>`x`|[bold]\x00"
VERBS = (
    ("report", "RUN"),
    ("report", "RUN", "--markdown"),
    ("report", "RUN", "--csv"),
    ("report", "RUN", "--html"),
    ("report", "RUN", "--vllm-json", "--out", "RUN/json"),
    ("compare", "RUN", "RUN", "--force"),
    ("baseline", "save", "theirs", "RUN", "--replace"),
    ("recover", "RUN", "--force"),
    ("replay", "RUN"),
)
READ = (JOURNAL, RESULT, "server.log")
WRITTEN = (RESULT, HISTOGRAMS, "report.html", "server.log")
MAX_MEMORY = 3 << 30


def vramp(*words: str) -> str:
    """What a verb says; it ends with an exit code of its own, anything else is a crash."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(words)
    text = said.getvalue()
    assert ended.value.code in (0, 1, 2), words
    assert text, words
    assert harmless(text) == text, words
    return text


def all_verbs(folder: Path) -> str:
    """Everything that can be done with a folder."""
    return "".join(vramp(*(word.replace("RUN", str(folder)) for word in words)) for words in VERBS)


def made(folder: Path) -> Path:
    """A run like any other."""
    folder.mkdir(parents=True)
    journal(folder, STARTED, *stage(0), *stage(1))
    (folder / "server.log").write_text("INFO hello\n")
    vramp("recover", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return made(tmp_path / "theirs")


def test_a_run_like_any_other(folder: Path) -> None:
    assert "cannot" not in all_verbs(folder)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_link_points_to_stays_as_it_is(folder: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_bytes((folder / name).read_bytes() if (folder / name).exists() else b"mine")
    before = (mine / "file").read_bytes()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(mine / "file")
    all_verbs(folder)
    assert (mine / "file").read_bytes() == before
    assert [path.name for path in mine.iterdir()] == ["file"]


def test_link_to_a_local_file_is_not_copied(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("mine alone")
    (folder / "server.log").unlink()
    (folder / "server.log").symlink_to(tmp_path / "id_rsa")
    all_verbs(folder)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in files if b"mine alone" in path.read_bytes()] == []


@pytest.mark.parametrize("name", WRITTEN)
def test_a_link_into_nowhere_makes_nothing_there(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "nowhere")
    all_verbs(folder)
    assert not (tmp_path / "nowhere").exists()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 30)


def _deep(path: Path) -> None:
    path.write_bytes(b'{"t_s":' + b'{"a":[' * 200_000 + b"\n")


def _deep_profile(path: Path) -> None:
    document: Any = "deep"
    for _ in range(300):
        document = {"a": [document]}
    line = {"type": "RunStarted", "unix_s": 1.0, "run_id": "r", "vramp_version": "0", "environment": {}, "workers": 1}
    path.write_text(json.dumps(line | {"profile": document, "seed": 1, "stages_planned": 1}) + "\n")


def _newlines(path: Path) -> None:
    path.write_bytes(b"\n" * 100_000)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """What would need more than this much fails instead."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("make", [_fifo, _device, _folder, _loop, _sparse, _deep, _deep_profile, _newlines])
@pytest.mark.parametrize("name", READ)
def test_what_is_no_file_of_ours_is_said_to_be_none(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink()
    make(folder / name)
    all_verbs(folder)


def test_evil_text_everywhere(folder: Path) -> None:
    """In every place that takes any text, and in the names of the folders themselves."""
    path, log = folder / RESULT, folder / JOURNAL
    document = json.loads(path.read_text())
    for key in ("vramp_version", "run_id", "reason"):
        document[key] = EVIL
    document["profile"] = {"name": EVIL, "server": {EVIL: EVIL}, "load": {"isl": EVIL}}
    document["environment"] = {"host": EVIL, "model": EVIL, "server_command": [EVIL], "server_env": {EVIL: EVIL}}
    document["events"] = [{"t_s": 1.0, "kind": EVIL, "text": EVIL}]
    document["findings"] = [{"id": EVIL, "severity": "blocks", "seen": EVIL, "why": EVIL, "fix": EVIL, "source": EVIL}]
    for entry in document["stages"]:
        entry |= {"label": EVIL, "stop_reason": EVIL, "limited": True, "why": EVIL, "variant": EVIL}
        entry["requests"]["errors"], entry["requests"]["messages"] = {EVIL: 1}, {EVIL: [EVIL]}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[0] |= {"run_id": EVIL, "vramp_version": EVIL, "profile": {"name": EVIL}}
    happened = {"type": "Happened", "t_s": 1.0, "kind": EVIL, "text": EVIL}
    evil = folder.with_name(f"name\nresult: {EVIL}".replace("/", "").replace("\x00", ""))
    folder.rename(evil)
    (evil / RESULT).write_text(json.dumps(document))
    (evil / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in (*lines, happened)))
    text = all_verbs(evil)
    assert "<script>alert(1)" not in (evil / "report.html").read_text()
    assert "red" in text


SCARY: list[Any] = [None, True, -1, 0, 1e308, -1e308, 10**30, 1e-320, "", EVIL, [], {}, [[]], {"a": 1}]
SCARY += ["9999-12-31T23:59:59+14:00"]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value[:5]) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from _places(entry, (*path, key))


def _changed(document: Any, changes: list[tuple[int, Any]]) -> Any:
    """With something else in some places, or nothing there."""
    document = copy.deepcopy(document)
    for place, scary in changes:
        places = list(_places(document))
        *parents, last = places[place % len(places)]
        table = document
        for parent in parents:
            table = table[parent]
        table[last] = scary
    return document


CHANGES = strategies.lists(
    strategies.tuples(strategies.integers(0, 10_000), strategies.sampled_from(SCARY)), min_size=1, max_size=4
)


@settings(max_examples=15)
@given(in_result=CHANGES, in_journal=CHANGES)
def test_numbers_and_types_that_cannot_be(
    tmp_path_factory: pytest.TempPathFactory, in_result: list[tuple[int, Any]], in_journal: list[tuple[int, Any]]
) -> None:
    base = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        patch.setenv("XDG_STATE_HOME", str(base / "state"))
        folder = made(base / "theirs")
        document = _changed(json.loads((folder / RESULT).read_text()), in_result)
        lines = _changed([json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()], in_journal)
        (folder / RESULT).write_text(json.dumps(document))
        (folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
        all_verbs(folder)
        try:
            Replay(folder / JOURNAL, 100.0)
        except ResultError as error:
            assert str(error)
