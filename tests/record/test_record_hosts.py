"""A stage that several hosts drove: their parts add up to it exactly, and what is wrong names the host."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.format import fixed
from loadgen.metrics.histogram import Histogram
from loadgen.metrics.stage import merge_stages
from loadgen.report.columns import host_columns
from loadgen.report.tabular import text_lines
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.journal import ClockMoved, HostsJoined, HostTick, Line, StageStarted, Ticked, encode_line
from loadgen.schema.result import StageResult, json_schema
from loadgen.schema.shared import HostFacts
from loadgen.store.journal import read_journal
from tests.journal import STARTED, record_of
from tests.result_schema import require_schema

SECOND_NS = 1_000_000_000
MS = 1_000
FACTS = {
    name: HostFacts(name, f"10.0.0.{number}", name, name, "6.1", 8.0, 1_048_576, 28_232, "1", "3.11", "2026.8", "d")
    for number, name in enumerate("abc")
}


def delta(ttfts_us: Sequence[int], *, lost: int = 0) -> StageDelta:
    """Streams with these TTFTs, all measured and completed within one second."""
    known = Histogram()
    if ttfts_us:
        known.record_us(np.array(ttfts_us, dtype=np.int64))
    return StageDelta(
        sent=len(ttfts_us) + lost,
        completed=len(ttfts_us),
        unfinished=lost,
        lost=lost,
        window_requests=len(ttfts_us),
        window_start_ns=SECOND_NS,
        window_end_ns=2 * SECOND_NS,
        latency={"ttft": known.encode()} if ttfts_us else {},
    )


def lines(ticks: Sequence[Sequence[HostTick]], names: str, rate: float | None = None) -> list[Line]:
    began = StageStarted(
        t_s=1.0, index=0, concurrency=None if rate else 4, rate=rate, isl=1, osl=1, duration_s=1.0, label="load"
    )
    reported: list[Line] = [STARTED, HostsJoined(0.5, tuple(FACTS[name] for name in names)), began]
    for number, hosts in enumerate(ticks):
        stages = merge_stages([host.stages for host in hosts], peak=sum)
        client = ClientDelta(workers_lost=sum(host.client.workers_lost for host in hosts))
        reported.append(
            Ticked(t_s=1.25 + number / 4, span_s=0.25, stages=stages, client=client, held=0, hosts=tuple(hosts))
        )
    return reported


def stage_of(folded: Sequence[Line]) -> StageResult:
    return record_of(folded).result().stages[0]


samples = st.lists(
    st.tuples(st.integers(1, 60_000 * MS), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=200
)


@given(samples)
def test_any_split_over_hosts_and_ticks_gives_what_one_machine_gives(split: list[tuple[int, int, int]]) -> None:
    ticks = [
        [
            HostTick(stages={0: delta([us for us, host, tick in split if (host, tick) == (one, moment)])})
            for one in range(3)
        ]
        for moment in range(4)
    ]
    whole = stage_of(lines(ticks, "abc"))
    alone = stage_of(lines([[HostTick(stages={0: delta([us for us, _, _ in split])})]], "a"))
    assert whole.latency_ms["ttft"] == alone.latency_ms["ttft"]
    assert sum(part.requests.sent for part in whole.hosts) == whole.requests.sent == len(split)
    assert sum(part.latency_ms["ttft"].count for part in whole.hosts) == len(split)
    assert abs(sum(part.share or 0.0 for part in whole.hosts) - 1.0) < 1e-9
    rates = [part.throughput.requests_per_s or 0.0 for part in whole.hosts]
    assert sum(rates) == whole.throughput.requests_per_s == len(split)


def test_a_slow_way_to_the_server_shows_in_its_own_row_only() -> None:
    near, far = delta([10 * MS] * 50), delta([30 * MS] * 50)
    stage = stage_of(
        lines([[HostTick(stages={0: near}), HostTick(stages={0: far}), HostTick(stages={0: near})]], "abc")
    )
    assert [round(part.latency_ms["ttft"].p50 or 0.0) for part in stage.hosts] == [10, 30, 10]


def test_a_lost_host_is_named_with_its_streams() -> None:
    ticks = [
        [HostTick(stages={0: delta([MS])}, workers=1), HostTick(stages={0: delta([MS])}, workers=1)],
        [
            HostTick(stages={0: delta([MS])}, workers=1),
            HostTick(stages={0: delta([], lost=4)}, client=ClientDelta(workers_lost=1), lost=True),
        ],
    ]
    stage = stage_of(lines(ticks, "ab"))
    assert (stage.limited, stage.why) == (True, "b: it was lost, and 4 streams with it")
    assert [(part.lost, part.requests.lost) for part in stage.hosts] == [(False, 0), (True, 4)]
    text = "\n".join(text_lines(host_columns(), stage.hosts, fixed, short=False))
    assert "LOST" in text


def test_the_host_that_did_not_keep_up_is_named() -> None:
    late = Histogram()
    late.record_us(np.full(200, 80 * MS, dtype=np.int64))
    ticks = [
        [
            HostTick(stages={0: delta([MS])}, workers=1),
            HostTick(stages={0: delta([MS])}, client=ClientDelta(reads=1600, read_lag=late.encode()), workers=1),
        ]
    ]
    stage = stage_of(lines(ticks, "ab"))
    assert stage.why is not None and stage.why.startswith("b: read lag p99 80")
    assert [part.why is None for part in stage.hosts] == [True, False]


def test_idle_workers_do_not_hide_busy_ones() -> None:
    busy = ClientDelta(cpu_ns=int(0.25 * 0.99 * SECOND_NS))
    part = HostTick(stages={0: delta([MS])}, client=busy, workers=5, sharing=1)
    (host,) = stage_of(lines([[part]] * 12, "a")).hosts
    assert host.why is not None and host.why.startswith("workers used 99% of their cores")


def test_a_host_keeps_the_schedule_of_its_own_share() -> None:
    """Three hosts at 300/s send one every 10 ms each: a mean lag of 3 ms is less than half of that, not of 3.3 ms."""
    lag = Histogram()
    lag.record_us(np.full(40, 3 * MS, dtype=np.int64))
    part = HostTick(stages={0: delta([MS])}, client=ClientDelta(send_lag=lag.encode()), workers=1)
    assert stage_of(lines([[part] * 3], "abc", rate=300.0)).hosts[0].why is None
    assert stage_of(lines([[part]], "a", rate=300.0)).hosts[0].why is not None


def test_moved_clock_is_a_verdict_on_its_stage() -> None:
    reported = lines([[HostTick(stages={0: delta([MS])}, offset_ns=5_000, uncertainty_ns=900)] * 2], "ab")
    moved = record_of([*reported, ClockMoved(t_s=1.6, host="b", by_ns=-2_500_000)]).result().stages[0]
    assert [(one.id, one.subject) for one in moved.verdicts if one.bad] == [("clock-moved", "stage 1")]
    assert "the clock of b was moved by -2.5 ms" in moved.verdicts[0].text
    before = record_of([reported[0], ClockMoved(t_s=0.7, host="b", by_ns=1), *reported[1:]]).result().stages[0]
    assert not [one for one in before.verdicts if one.id == "clock-moved"]


def test_a_journal_with_hosts_gives_the_same_result_from_disk(tmp_path: Path) -> None:
    reported = lines([[HostTick(stages={0: delta([MS, 2 * MS])}, workers=2, rtt_ns=1_000_000)] * 3], "abc")
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\n".join(map(encode_line, reported)) + b'\n{"type":"Ticked","t_s":1.5,"hosts":[{"stag')
    result = record_of(list(read_journal(path))).result()
    assert result == record_of(reported).result()
    assert [host.name for host in result.hosts] == ["a", "b", "c"]
    assert [part.rtt_ms for part in result.stages[0].hosts] == [1.0] * 3
    require_schema(msgspec.json.encode(result))


def test_one_machine_has_no_hosts() -> None:
    began = StageStarted(t_s=1.0, index=0, concurrency=4, rate=None, isl=1, osl=1)
    tick = Ticked(t_s=1.5, span_s=0.25, stages={0: delta([MS])}, client=ClientDelta(), held=0)
    result = record_of([STARTED, began, tick]).result()
    assert (result.hosts, result.stages[0].hosts) == ([], [])
    assert b"hosts" not in encode_line(tick)
    assert "HostResult" in json.loads(json_schema())["$defs"]
