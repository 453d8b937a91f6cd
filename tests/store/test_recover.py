"""A result from the journal of a run that was killed: all that the journal holds, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.errors import ResultError
from loadgen.metrics.histogram import Histogram
from loadgen.schema.deltas import ClientDelta, LoadBin, StageDelta
from loadgen.schema.journal import (
    Happened,
    HostsJoined,
    HostTick,
    Line,
    RunFinished,
    ServerChanged,
    ServerInstance,
    StageEnded,
    StageStarted,
    Ticked,
)
from loadgen.schema.result import Result
from loadgen.store.journal import Journal
from loadgen.store.recover import recover
from loadgen.store.runs import read_result, was_killed
from tests.journal import STARTED
from tests.record.test_record_hosts import FACTS
from tests.result_schema import require_schema
from tests.store.test_histogram_log import read as read_histograms


def stage(index: int) -> list[Line]:
    """Four ticks of a stage, each of which completes one stream and leaves two on their way."""
    start_s = 10.0 * index
    ttft = Histogram()
    ttft.record_ns([20_000_000])
    delta = StageDelta(sent=1, completed=1, latency={"ttft": ttft.encode()})
    ticks = [
        Ticked(
            t_s=start_s + 0.25 * n,
            span_s=0.25,
            stages={index: delta},
            client=ClientDelta(),
            held=2,
            open_sent={index: 2},
            open_stages={index: 2},
        )
        for n in range(1, 5)
    ]
    return [StageStarted(t_s=start_s, index=index, concurrency=3, rate=None, isl=16, osl=16, duration_s=20.0), *ticks]


def journal(folder: Path, *lines: Line) -> Path:
    kept = Journal(folder / "journal.jsonl")
    for line in lines:
        kept.write(line)
    kept.close()
    return folder / "journal.jsonl"


def recovered(folder: Path, *, force: bool = False) -> Result:
    path = recover(folder, force=force)
    require_schema(path.read_bytes())
    return read_result(path)


def test_what_was_on_its_way_is_unfinished_and_the_run_failed(tmp_path: Path) -> None:
    journal(tmp_path, STARTED, *stage(0))
    result = recovered(tmp_path)
    assert result.state == "failed"
    assert result.reason == "the run was killed after 1.0 s; this is what its journal holds"
    assert result.finished_at == "2023-11-14T22:13:21.000Z"
    requests = result.stages[0].requests
    assert (requests.sent, requests.completed, requests.unfinished) == (4, 4, 2)
    assert sum(interval.get_total_count() for interval in read_histograms(tmp_path / "histograms.hlog")) == 4
    assert not was_killed(tmp_path)


def test_a_ramp_that_several_workers_shared_has_their_streams(tmp_path: Path) -> None:
    started = StageStarted(t_s=0.0, index=0, concurrency=8, rate=None, isl=16, osl=16, steps=((0.0, 8.0), (9.0, 9.0)))
    part = StageDelta(sent=8, bins={0: LoadBin(span_ns=4 * 10**9, held_area_ns=8 * 10**9, output_tokens=40)})
    tick = Ticked(t_s=1.0, span_s=1.0, stages={0: part}, client=ClientDelta(), held=8, open_sent={0: 8}, workers=4)
    journal(tmp_path, STARTED, started, msgspec.structs.replace(tick, sharing=4))
    result = recovered(tmp_path)
    assert result.client.workers == 4
    assert [(point.held, point.measured_s) for point in result.curve] == [(8.0, 1.0)]


def test_what_was_on_its_way_is_unfinished_on_each_server_and_host_too(tmp_path: Path) -> None:
    urls, names = ("http://127.0.0.1:1", "http://127.0.0.1:2"), ("a", "b")
    servers = tuple(ServerInstance(url=url) for url in urls)
    first, second = StageDelta(sent=5, completed=3, failed=1), StageDelta(sent=4, completed=2)
    tick = Ticked(
        t_s=1.0,
        span_s=1.0,
        stages={0: StageDelta(sent=9, completed=5, failed=1)},
        client=ClientDelta(),
        held=3,
        open_sent={0: 3},
        instances=({0: first}, {0: second}),
        hosts=tuple(HostTick(stages={0: part}, workers=2, rtt_ns=10**6) for part in (first, second)),
    )
    journal(
        tmp_path,
        STARTED,
        ServerChanged(t_s=0.0, state="ready", engine="vllm", url=urls[0], instances=servers),
        HostsJoined(0.0, tuple(FACTS[name] for name in names)),
        StageStarted(t_s=0.0, index=0, concurrency=3, rate=None, isl=16, osl=16),
        tick,
    )
    (stage,) = recovered(tmp_path).stages
    assert stage.requests.unfinished == 3
    assert [part.requests.unfinished for part in stage.instances] == [1, 2]
    assert [(part.requests.unfinished, part.workers, part.rtt_ms) for part in stage.hosts] == [(1, 2, 1.0), (2, 2, 1.0)]


def test_a_torn_last_line_is_not_there(tmp_path: Path) -> None:
    path = journal(tmp_path, STARTED, *stage(0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert recovered(tmp_path).stages[0].requests.completed == 3


def test_garbage_costs_its_lines_only_and_is_reported(tmp_path: Path) -> None:
    path = journal(tmp_path, STARTED, *stage(0), StageEnded(5.0, 0, "done"), *stage(1), StageEnded(15.0, 1, "done"))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"\0" * 200 + b"\n"
    lines[7] = lines[7][:30] + b"\n"  # the one that begins the second stage
    path.write_bytes(b"".join(lines))
    result = recovered(tmp_path)
    assert [(each.index, each.requests.completed) for each in result.stages] == [(0, 3)]
    assert "without 2 damaged lines" in result.reason
    assert [event.text.partition(": not")[0] for event in result.events] == [
        f"left out: {path}:3",
        f"left out: {path}:8",
    ]


def test_a_run_that_ended_but_could_not_write_its_result_ends_as_it_did(tmp_path: Path) -> None:
    journal(tmp_path, STARTED, *stage(0), RunFinished(3.0, 1.7e9 + 3, "complete", "the plan is done"))
    result = recovered(tmp_path)
    assert (result.state, result.reason) == ("complete", "the plan is done")
    assert result.stages[0].requests.unfinished == 0


@pytest.mark.parametrize("content", [b"", b'{"type":"Happ', b"garbage\n"])
def test_a_journal_without_a_run_changes_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises(ResultError, match=r"journal\.jsonl: holds no run"):
        recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl"]


def test_numbers_that_nobody_can_have_measured_cost_their_line_only(tmp_path: Path) -> None:
    path = journal(tmp_path, STARTED, *stage(0))
    path.write_text(path.read_text().replace('"count":1', '"count":3', 1))
    result = recovered(tmp_path)
    assert result.stages[0].requests.completed == 3
    assert "counts do not add up" in result.events[-1].text


@pytest.mark.parametrize("profile", [{"slo": 5}, {"slo": {"bo.gus": 1}}, {"plan": []}, {"reference": {"x": 1}}])
def test_a_profile_of_another_kind_is_reported(profile: dict[str, Any], tmp_path: Path) -> None:
    journal(tmp_path, msgspec.structs.replace(STARTED, profile=profile))
    with pytest.raises(ResultError, match="r: this version of vramp cannot read the profile of this run: "):
        recover(tmp_path)


def test_an_impossible_start_time_is_a_damaged_line(tmp_path: Path) -> None:
    journal(tmp_path, msgspec.structs.replace(STARTED, unix_s=1e18))
    with pytest.raises(ResultError, match="the first line is damaged"):
        recover(tmp_path)


def test_a_whole_result_is_kept_unless_forced(tmp_path: Path) -> None:
    journal(tmp_path, STARTED, *stage(0))
    recover(tmp_path)
    with pytest.raises(ResultError, match=r"is the result of the whole run; --force"):
        recover(tmp_path)
    assert recovered(tmp_path, force=True).stages[0].requests.completed == 4


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    running = Journal(tmp_path / "journal.jsonl")
    running.write(STARTED)
    with pytest.raises(ResultError, match="this run is still running"):
        recover(tmp_path, force=True)
    running.close()


def test_much_damage_is_reported_in_short(tmp_path: Path) -> None:
    path = journal(tmp_path, STARTED, Happened(1.0, "note", "one"))
    path.write_bytes(path.read_bytes() + b"x\n" * 100)
    result = recovered(tmp_path)
    assert len(result.events) == 22
    assert result.events[-1].text == "left out: 80 more damaged lines"
