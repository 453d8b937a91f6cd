"""Traces through a whole run: at their times, with the blocks that they share, and with what was left out told."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.engines import Simulator, attach
from tests.run.driving import outcome

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
    ("text", "told"),
    [
        (
            MOONCAKE,
            "Mooncake trace of 4 requests in 0 s; at most 43% of its prompt tokens can come from the prefix cache",
        ),
        (AZURE, "Azure trace of 4 requests in 0 s; left out: 1 row without prompt tokens"),
        (BURST, "BurstGPT trace of 4 requests in 0 s; left out: 1 row without answer tokens (requests that failed)"),
    ],
)
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
async def test_a_published_trace_is_replayed_at_its_own_times(
    engine: Simulator, tmp_path: Path, text: str, told: str, endpoint: str
) -> None:
    trace = tmp_path / "trace"
    trace.write_text(text)
    load = {"data": str(trace), "arrival": "replay", "requests": None, "endpoint": endpoint, "trace": {"speed": 2}}
    result, error = await outcome(attach(engine, load=load), records="jsonl")
    assert (error, result.stages[0].requests.completed) == (None, 4)
    assert [event.text for event in result.events if event.kind == "note"] == [
        f"{trace}: {told}".replace(" in 0 s", " in 0 s; at 2 times its speed")
    ]
    streams = rows_of(tmp_path)
    assert [(row["input_tokens"], row["output_tokens"]) for row in streams] == [(600, 3)] * 4
    gaps_s = [after["intended_unix_s"] - before["intended_unix_s"] for before, after in pairwise(streams)]
    assert gaps_s == pytest.approx([0.02] * 3, abs=1e-5)
