"""The journal: complete lines or none, on disk at once, and clear words when the disk is full."""

import resource
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ResultError
from loadgen.metrics.histogram import Histogram
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import (
    Happened,
    Line,
    RunFinished,
    StageEnded,
    Ticked,
    decode_line,
    load_at,
)
from loadgen.store.journal import Journal, journal_is_held, read_journal


def lines() -> list[Line]:
    latency = Histogram()
    latency.record_ns([10_000_000, 20_000_000])
    stage = StageDelta(sent=2, completed=2, latency={"ttft": latency.encode()}, window_start_ns=5, window_end_ns=9)
    return [
        Happened(t_s=0.5, kind="note", text="line\nbreak \u2028 and \x1b[31m"),
        Ticked(t_s=1.0, span_s=0.25, stages={3: stage}, client=ClientDelta(cpu_ns=7), held=2, open_stages={3: 2}),
        StageEnded(t_s=1.5, index=3, reason="its time was up"),
        RunFinished(t_s=2.0, unix_s=1e9, state="complete", reason="the plan is done"),
    ]


def write(path: Path) -> None:
    journal = Journal(path)
    for line in lines():
        journal.write(line)
        # On disk at once: a reader next to us sees it.
        assert list(read_journal(path))[-1] == line
    journal.close()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "j")
    assert list(read_journal(tmp_path / "j")) == lines()
    assert len((tmp_path / "j").read_bytes().splitlines()) == len(lines())


def test_the_engines_word_is_written_once_and_read_with_every_tick(tmp_path: Path) -> None:
    path = tmp_path / "j"
    views = [None, EngineView(running=1.0), EngineView(running=1.0), EngineView(running=2.0), None, None]
    known: dict[str, Any] = {"span_s": 0.25, "stages": {}, "client": ClientDelta(), "held": 1}
    ticks = [Ticked(t_s=float(n), engine=view, **known) for n, view in enumerate(views)]
    journal = Journal(path)
    for tick in ticks:
        journal.write(tick)
    journal.close()
    assert list(read_journal(path)) == ticks
    written = path.read_bytes()
    assert (written.count(b'"running":1.0'), written.count(b'"engine_again":true')) == (1, 1)
    # What was said in a damaged line is not known afterwards.
    path.write_bytes(written.replace(b'"t_s":1.0', b'"t_s":"?"'))
    kept = [line.engine for line in read_journal(path, skipped=[]) if isinstance(line, Ticked)]
    assert kept == [None, None, EngineView(running=2.0), None, None]


def test_a_torn_last_line_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "j")
    whole = (tmp_path / "j").read_bytes()
    for cut in range(1, len(whole) - whole.rstrip(b"\n").rfind(b"\n") - 1):
        (tmp_path / "j").write_bytes(whole[:-cut])
        assert list(read_journal(tmp_path / "j")) == lines()[:-1]


def test_what_is_no_journal_is_refused_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "j").write_text('{"type":"Happened","t_s":1,"kind":"a","text":"b"}\nhello\n')
    with pytest.raises(ResultError, match=r"j:2: not a line of a journal"):
        list(read_journal(tmp_path / "j"))
    with pytest.raises(ResultError, match="cannot be read"):
        list(read_journal(tmp_path / "nothing"))


@pytest.mark.parametrize("own", ['{"requests":%s}', '{"open":-%s}', '{"input_tokens":%s}', '{"output_tokens":1%s}'])
def test_a_count_that_no_float_holds_is_a_damaged_line(own: str) -> None:
    tick = '{"type":"Ticked","t_s":1,"span_s":1,"stages":{},"client":{},"held":0,"own":%s}'
    with pytest.raises(ValueError, match="own"):
        decode_line((tick % (own % ("9" * 400))).encode())


def test_a_moving_load_whose_first_step_comes_late_begins_with_it() -> None:
    assert [load_at(((5.0, 2.0), (9.0, 3.0)), at_s) for at_s in (0.0, 7.0, 9.0)] == [2.0, 2.0, 3.0]


def test_a_full_disk() -> None:
    journal = Journal(Path("/dev/full"))
    with pytest.raises(ResultError, match=r"/dev/full: the journal cannot be written: No space left on device"):
        journal.write(lines()[0])
    journal.close()


def test_a_disk_with_room_for_half_a_line_gets_none_and_later_the_whole(tmp_path: Path) -> None:
    """A limit on the size of files behaves as a disk does that fills up: it takes what fits, and then nothing."""
    path = tmp_path / "j"
    lines = [Happened(1.0, "note", "short"), Happened(2.0, "note", "long" * 20), Happened(3.0, "note", "")]
    journal = Journal(path)
    journal.write(lines[0])
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, most))
    try:
        with pytest.raises(ResultError, match="the journal cannot be written: No space left on device"):
            journal.write(lines[1])
        assert list(read_journal(path)) == lines[:1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    journal.write(lines[2])
    journal.close()
    assert list(read_journal(path)) == lines


def test_a_journal_is_held_while_its_writer_lives(tmp_path: Path) -> None:
    path = tmp_path / "j"
    assert not journal_is_held(path)
    journal = Journal(path)
    assert journal_is_held(path)
    journal.close()
    assert not journal_is_held(path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="the journal cannot be written"):
        Journal(tmp_path / "nowhere" / "j")
