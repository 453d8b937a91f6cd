"""Traces through a whole run: at their times, with the blocks that they share, and with what was left out reported."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import WorkerError
from tests.engines import Simulator, attach
from tests.run.driving import once, outcome
from tests.sharing import SharingTrace

MOONCAKE = "".join(
    json.dumps({"timestamp": 40 * number, "input_length": 600, "output_length": 3, "hash_ids": [number % 2, number]})
    + "\n"
    for number in range(4)
)
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,600,3
2023-11-16 18:15:46.7205900,600,3
2023-11-16 18:15:46.7605900,0,3
2023-11-16 18:15:46.7605900,600,3
2023-11-16 18:15:46.8005900,600,3
"""
BURST = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.00,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,600,3,603,Conversation log
19440110.04,,2,ChatGPT,600,3,603,API log
19440110.08,,2,ChatGPT,600,3,603,API log
19440110.09,,2,ChatGPT,600,0,600,API log
19440110.12,,2,ChatGPT,600,3,603,API log
"""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    (records,) = folder.glob("**/records.jsonl")
    return sorted((json.loads(line) for line in records.read_text().splitlines()), key=lambda row: int(row["request"]))


@pytest.mark.parametrize(
    ("text", "endpoint", "kind", "remark"),
    [
        (MOONCAKE, "completions", "Mooncake", "at most 43% of its prompt tokens can come from the prefix cache"),
        (MOONCAKE, "chat", "Mooncake", "at most 43% of its prompt tokens can come from the prefix cache"),
        (AZURE, "completions", "Azure", "left out: 1 row without prompt tokens"),
        (BURST, "chat", "BurstGPT", "left out: 1 row without answer tokens (requests that failed)"),
    ],
)
async def test_a_published_trace_is_replayed_at_its_own_times(
    engine: Simulator, tmp_path: Path, text: str, endpoint: str, kind: str, remark: str
) -> None:
    trace = tmp_path / "trace"
    trace.write_text(text)
    load = {"data": str(trace), "arrival": "replay", "requests": None, "endpoint": endpoint, "trace": {"speed": 2}}
    result, error = await outcome(attach(engine, load=load), records="jsonl")
    assert (error, result.stages[0].requests.completed) == (None, 4)
    assert [event.text for event in result.events if event.kind == "note"] == [
        f"{trace}: {kind} trace of 4 requests in 0 s; at 2 times its speed; {remark}"
    ]
    assert result.data is not None
    assert (result.data.records, result.data.left_out) == (4, remark.count("left out"))
    assert remark in result.data.words
    streams = rows_of(tmp_path)
    assert [(row["input_tokens"], row["output_tokens"]) for row in streams] == [(600, 3)] * 4
    gaps_s = [after["intended_unix_s"] - before["intended_unix_s"] for before, after in pairwise(streams)]
    # Unix times are made from monotonic ones by an offset that moves while the clock is disciplined.
    assert gaps_s == pytest.approx([0.02] * 3, abs=1e-3)


async def test_the_engine_finds_in_its_cache_what_the_trace_says_is_shared(engine: Simulator, tmp_path: Path) -> None:
    """One after the other, so that each finds what all before it left."""
    made, trace = SharingTrace(40), tmp_path / "trace.jsonl"
    trace.write_text(made.text)
    load = {"data": str(trace), "concurrency": 1, "requests": 40, "isl": "data", "osl": "data", "seed": 7}
    parts = attach(engine, load=load, stages=[{"label": "cold"}, {"label": "cold too"}])
    result, error = await outcome(parts)
    assert error is None
    rates = [stage.engine.prefix_hit_rate for stage in result.stages if stage.engine is not None]
    assert rates == pytest.approx([made.hit_rate(16)] * 2)
    assert not [verdict for stage in result.stages for verdict in stage.verdicts if verdict.id == "prefix-cache"]


async def test_rows_that_the_model_cannot_take_are_left_out_on_request(engine: Simulator, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(AZURE + "2023-11-16 18:15:46.8105900,30000,3\n")
    load = {"data": str(trace), "arrival": "replay", "requests": None}
    _, error = await outcome(attach(engine, load=load))
    assert "up to 30003 tokens" in str(error)
    assert "leave longer rows out with load.trace.max_length = 8192" in str(error)
    result, error = await outcome(attach(engine, load=load | {"trace": {"max_length": 8192}}))
    assert (error, result.stages[0].requests.completed) == (None, 4)
    assert result.stages[0].label.startswith("replay ")
    assert "1 row longer than load.trace.max_length" in next(
        event.text for event in result.events if event.kind == "note"
    )


async def test_a_file_that_is_changed_under_a_run_ends_it_with_the_reason(engine: Simulator, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(MOONCAKE)

    def cut(*_: object) -> None:
        trace.write_text(MOONCAKE[:50])

    load = {"data": str(trace), "requests": 100_000}
    _, error = await outcome(attach(engine, load=load), once(lambda snapshot: snapshot.load.held > 0, cut))
    assert isinstance(error, WorkerError)
    assert f"{trace}: was changed while it was in use" in str(error)
