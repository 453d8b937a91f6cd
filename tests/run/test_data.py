"""Runs with a file of prompts: the result says which, and figures published with another one are reported as such."""

import hashlib
import json
from pathlib import Path

import pytest

from loadgen.report.text import markdown_report, text_report
from tests.engines import Simulator, attach
from tests.run.driving import outcome

HITS = [{"pass_number": 1, "figures": {"prefix_hit_percent": 0.9}}]
HITS += [{"pass_number": 2, "figures": {"prefix_hit_percent": 50}}]


async def test_the_sample_in_two_passes_next_to_what_was_published(engine: Simulator) -> None:
    published = {"source": "a publication", "points": HITS, "data": "x.json of a hub", "data_sha256": "ab" * 32}
    load = {"data": "sample", "osl": 8, "passes": 2, "requests": 32, "concurrency": 32}
    result, _ = await outcome(attach(engine, load=load, reference=published))
    assert result.data is not None and result.data.is_sample
    assert [stage.pass_number for stage in result.stages] == [1, 2]
    assert result.reference is not None
    fresh, warm = [one.measured for one in result.reference.comparisons]
    # The second pass finds all but the last block of each prompt, and the first none: together about half.
    assert fresh == 0
    assert warm == pytest.approx(48, abs=2)
    assert [verdict.id for stage in result.stages for verdict in stage.verdicts if verdict.id == "prefix-cache"] == []
    sample = "vramp's own sample of 64 synthetic conversations"
    for report in (text_report(result), markdown_report(result)):
        assert f"not as published: data: {sample}, published: x.json of a hub" in report
        assert f"sent {sample}" in report


async def test_the_published_file_is_known_by_its_checksum(engine: Simulator, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "How do you do, engine?"}, {"from": "gpt", "value": "Quite well, thank you."}]
    file = tmp_path / "x.json"
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    published = {"source": "a publication", "data": "x.json of a hub", "data_sha256": sha256}
    load = {"data": str(file), "osl": "data", "requests": 4}
    result, _ = await outcome(attach(engine, load=load, reference=published))
    assert result.data is not None and result.reference is not None
    assert (result.data.sha256, result.data.bytes, result.data.left_out) == (sha256, file.stat().st_size, 1)
    text = text_report(result)
    assert "as published: data" in text.splitlines()
    assert f"sent {file}: 1 record; left out: 1 record " in text
    assert f", sha256 {sha256[:12]}" in text
