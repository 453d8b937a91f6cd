"""A stage that several servers shared: each part is folded by itself, and over the window of the whole."""

import json
from pathlib import Path
from typing import Any

from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.engine import EngineStage
from loadgen.schema.journal import (
    EngineMeasured,
    Line,
    ServerChanged,
    ServerInstance,
    StageStarted,
    Ticked,
    encode_line,
)
from loadgen.schema.result import StageResult
from loadgen.store.journal import read_journal
from loadgen.store.runs import read_result, write_result
from tests.journal import STARTED, record_of

URLS = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
SECOND_NS = 1_000_000_000


def delta(completed: int, *, until_s: int) -> StageDelta:
    return StageDelta(
        sent=completed,
        completed=completed,
        window_requests=completed,
        window_start_ns=SECOND_NS,
        window_end_ns=(1 + until_s) * SECOND_NS,
    )


def lines(ticks: list[Ticked], *measured: EngineMeasured) -> list[Line]:
    started: dict[str, Any] = {"concurrency": 2, "rate": None, "arrival": "poisson", "isl": 1, "osl": 1}
    bounds: dict[str, Any] = {"requests": None, "duration_s": 4.0, "warmup_requests": 0, "warmup_s": 0.0}
    return [
        STARTED,
        ServerChanged(
            t_s=0.5,
            state="ready",
            engine="vllm",
            url=URLS[0],
            instances=tuple(ServerInstance(url=url, env={"CUDA_VISIBLE_DEVICES": url[-1]}) for url in URLS),
        ),
        StageStarted(t_s=1.0, index=0, label="conc 2", **started, **bounds),
        *ticks,
        *measured,
    ]


def tick(*parts: dict[int, StageDelta], whole: StageDelta) -> Ticked:
    return Ticked(t_s=1.5, span_s=0.25, stages={0: whole}, client=ClientDelta(), held=2, instances=parts)


def stage_of(folded: list[Line]) -> StageResult:
    return record_of(folded).result().stages[0]


def test_parts_are_rates_over_the_window_of_the_whole() -> None:
    """The first was done after two of the four seconds: over its own window, the parts would exceed the whole."""
    first, second, whole = delta(8, until_s=2), delta(4, until_s=4), delta(12, until_s=4)
    stage = stage_of(lines([tick({0: first}, {0: second}, whole=whole)]))
    assert [part.url for part in stage.instances] == list(URLS)
    assert [part.requests.completed for part in stage.instances] == [8, 4]
    assert [part.throughput.requests_per_s for part in stage.instances] == [2.0, 1.0]
    assert stage.throughput.requests_per_s == 3.0


def test_a_server_without_a_part_has_one_of_zeros() -> None:
    only = delta(8, until_s=2)
    stage = stage_of(lines([tick({0: only}, {}, whole=only)]))
    assert [part.requests.completed for part in stage.instances] == [8, 0]
    assert stage_of(lines([])).instances[1].throughput.requests_per_s is None


def test_engines_are_kept_apart_and_together() -> None:
    one = EngineStage(generation_tokens=5)
    measured = EngineMeasured(t_s=6.0, index=0, engine=EngineStage(generation_tokens=9), instances=(one, None))
    stage = stage_of(lines([], measured))
    assert stage.engine == EngineStage(generation_tokens=9)
    assert [part.engine for part in stage.instances] == [one, None]


def test_on_disk_they_are_the_same(tmp_path: Path) -> None:
    part = delta(1, until_s=1)
    folded = lines([tick({0: part}, {0: part}, whole=delta(2, until_s=1))])
    (tmp_path / "j").write_bytes(b"".join(encode_line(line) + b"\n" for line in folded))
    assert list(read_journal(tmp_path / "j")) == folded
    record = record_of(folded)
    write_result(record.result(), tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == record.result()
    urls = [each["url"] for each in record.result().environment["server_instances"]]
    assert urls == list(URLS)


def test_results_from_before_there_were_instances_are_read(tmp_path: Path) -> None:
    write_result(record_of(lines([])).result(), tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    del document["stages"][0]["instances"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert read_result(tmp_path / "old.json").stages[0].instances == []
