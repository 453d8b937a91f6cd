"""A long journal: in parts on disk, the older ones thinned, and read back as one at any moment of that."""

import gzip
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from loadgen.errors import ResultError
from loadgen.metrics.histogram import Histogram
from loadgen.run.replay import Replay
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import Happened, Line, StageStarted, Ticked, time_of
from loadgen.store.journal import Journal, OldParts, journal_is_held, part_of, read_journal
from loadgen.store.recover import recover
from loadgen.store.runs import read_result
from tests.journal import STARTED
from tests.record.test_thinning import result

PART_BYTES = 20_000
_TTFT = Histogram()
_TTFT.record_ns([10_000_000, 20_000_000])
_DELTA = StageDelta(sent=2, completed=2, latency={"ttft": _TTFT.encode()}, window_start_ns=1, window_end_ns=10**9)


def lines() -> Iterator[Line]:
    """A minute and a half."""
    yield STARTED
    yield StageStarted(t_s=0.0, index=0, concurrency=2, rate=None, isl=8, osl=8, duration_s=None)
    for n in range(1, 361):
        engine = EngineView(running=float(n // 4))
        yield Ticked(
            t_s=n / 4, span_s=0.25, stages={0: _DELTA}, client=ClientDelta(reads=1), held=2, workers=1, engine=engine
        )
        if n % 40 == 0:
            yield Happened(t_s=n / 4, kind="note", text=f"remark {n}")


def write(folder: Path, *, thin: bool = True, last: int | None = None) -> Path:
    """As a run writes them, up to a line."""
    path = folder / "journal.jsonl"
    journal, old = Journal(path, part_bytes=PART_BYTES), OldParts(path)
    for number, line in enumerate(lines()):
        if last is not None and number > last:
            break
        journal.write(line)
        if thin and isinstance(line, Ticked):
            old.work(journal.parts)
    journal.close()
    old.close()
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_older_parts_are_thinned_and_read_as_one_journal(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert names(tmp_path) == [*(f"journal-000{number}.jsonl.gz" for number in range(1, 6)), "journal.jsonl"]
    assert result(list(read_journal(path))) == result(list(lines()))
    reported = [line for line in read_journal(path) if isinstance(line, Ticked)]
    assert [tick.engine for tick in reported] == [line.engine for line in lines() if isinstance(line, Ticked)]
    assert max(part.stat().st_size for part in tmp_path.glob("*.gz")) < PART_BYTES / 4


def test_without_thinning_the_journal_reads_back_unchanged(tmp_path: Path) -> None:
    assert list(read_journal(write(tmp_path, thin=False))) == list(lines())
    assert len(names(tmp_path)) == 6


@pytest.mark.parametrize("last", range(50, 370, 7))
def test_killed_at_any_moment_nothing_is_lost(tmp_path: Path, last: int) -> None:
    reported = [time_of(line) for line in read_journal(write(tmp_path, last=last))]
    assert reported == [time_of(line) for line in list(lines())[: last + 1]]


def test_a_part_that_was_thinned_but_not_yet_deleted_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path, thin=False)
    with gzip.open(tmp_path / "journal-0003.jsonl.gz", "wb") as packed:
        packed.write(part_of(path, 3).read_bytes())
    assert list(read_journal(path)) == list(lines())


def test_a_part_that_unpacks_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    whole = [time_of(line) for line in read_journal(path)]
    packed = tmp_path / "journal-0002.jsonl.gz"
    again = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)[-1]
    packed.write_bytes(packed.read_bytes() + gzip.compress(again * 100_000))
    monkeypatch.setattr("loadgen.store.journal._MAX_UNPACKED_BYTES", 2 * PART_BYTES)
    skipped: list[str] = []
    cut = [time_of(line) for line in read_journal(path, skipped=skipped)]
    assert len(whole) < len(cut) < len(whole) + 2 * PART_BYTES / len(again)
    assert ["the rest is left out" in problem for problem in skipped] == [True]


def test_it_is_held_throughout(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, part_bytes=PART_BYTES)
    for line in lines():
        journal.write(line)
        assert journal_is_held(path)
    journal.close()
    assert not journal_is_held(path)
    assert not journal_is_held(part_of(path, 1))


def test_a_missing_and_a_damaged_part_are_said(tmp_path: Path) -> None:
    path = write(tmp_path)
    packed = tmp_path / "journal-0002.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-40])
    (tmp_path / "journal-0003.jsonl.gz").unlink()
    with pytest.raises(ResultError, match=r"journal-0002.jsonl: the journal cannot be read"):
        list(read_journal(path))
    skipped: list[str] = []
    reported = [time_of(line) for line in read_journal(path, skipped=skipped)]
    assert reported == sorted(reported)
    assert [problem.partition(":")[0].rpartition("/")[2] for problem in skipped] == [
        "journal-0002.jsonl",
        "journal-0003.jsonl",
    ]
    assert "No such file" in skipped[1]


@pytest.mark.parametrize("damage", [lambda text: b"", lambda text: bytes(len(text)), lambda text: b"x" + text])
def test_older_parts_are_found(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path)
    newest = len(path.read_bytes().splitlines()) - 1
    path.write_bytes(damage(path.read_bytes()))
    reported = [time_of(line) for line in read_journal(path, skipped=[])]
    everything = [time_of(line) for line in lines()]
    assert reported in (everything, everything[:-newest])
    assert read_result(recover(tmp_path)).stages[0].requests.sent >= 2 * (360 - newest)


def test_a_killed_run_is_recovered_from_all_its_parts(tmp_path: Path) -> None:
    write(tmp_path)
    stage = read_result(recover(tmp_path)).stages[0]
    assert stage.latency_ms["ttft"].count == 720
    assert stage.requests.sent == stage.requests.completed == 720


async def test_it_is_replayed_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    replay = Replay(write(tmp_path), speed=100.0)
    shown = [snapshot async for snapshot in replay.snapshots()]
    assert shown[-1].replay is not None
    assert shown[-1].replay.position_s == shown[-1].replay.length_s == 90.0
    assert len({each.text for each in shown[-1].events if each.kind == "note"}) == 9
    times = [point.t_s for snapshot in shown for point in snapshot.past]
    assert all(before < after for before, after in pairwise(times))


def test_a_folder_that_is_gone_is_said_when_a_part_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    journal = Journal(folder / "journal.jsonl", part_bytes=200)
    tick = Ticked(t_s=1.0, span_s=0.25, stages={}, client=ClientDelta(), held=2)
    journal.write(Happened(0.5, "note", "x" * 200))
    journal.path.unlink()
    folder.rmdir()
    with pytest.raises(ResultError, match="a new part of the journal cannot be written: No such file"):
        journal.write(tick)
    journal.close()


def test_an_end_right_after_a_part_began(tmp_path: Path) -> None:
    """A journal that holds nothing but what came before it still has a length, and is no empty run."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, part_bytes=100)
    tick = Ticked(t_s=7.0, span_s=0.25, stages={}, client=ClientDelta(), held=2)
    for line in (STARTED, tick):
        journal.write(line)
    journal.close()
    assert [type(line) for line in read_journal(path)] == [type(STARTED), Ticked]
    assert read_result(recover(tmp_path)).state == "failed"
