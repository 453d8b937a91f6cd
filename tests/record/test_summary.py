"""The summary of results: what it says of stages without load, moving loads, GPUs, limits; what it leaves out."""

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from loadgen.record.summary import summary_json, summary_of
from loadgen.schema.finding import Verdict
from loadgen.schema.result import FailureCheck, Goodput, SloCheck, Target
from loadgen.schema.samples import GpuStatic
from loadgen.schema.shared import DataFile
from loadgen.schema.start import Provenance, ServerResult, ServerStart
from loadgen.schema.summary import RunSummary, SummarySessions
from tests.report.test_served import monitor, watched
from tests.report.test_text import result, stage, stage_of_sessions


def gpu(index: int, **firmware: str) -> GpuStatic:
    return GpuStatic(index=index, vendor="amd", name="MI300X", hbm_total_bytes=192 << 30, firmware=firmware)


def test_monitor_has_the_engines_figures_and_no_judgement() -> None:
    found = summary_of(monitor(watched()))
    (only,) = found.stages
    assert (found.kind, only.concurrency, only.latency_ms) == ("monitor", 0, {})
    assert only.engine is not None
    assert (only.engine.requests, only.engine.generation_tokens_per_s, only.engine.spec_acceptance) == (120, 250.0, 0.5)
    assert found.quote is None


def test_moving_load_has_no_latencies() -> None:
    moving = replace(stage(80), target=Target(8, None, None, moves=(1.0, 64.0)))
    found = summary_of(result(moving, replace(stage(80), index=1)))
    assert [one.moves for one in found.stages] == [(1.0, 64.0), None]
    assert found.stages[0].latency_ms == {}
    assert "ttft" in found.stages[1].latency_ms


def test_gpus_are_grouped_by_what_they_share() -> None:
    gpus = [gpu(0, MEC="1"), gpu(1, MEC="1"), gpu(2, MEC="2")]
    verdicts = [Verdict("throttled", f"gpu {index}", "THROTTLED thermal 18%") for index in (0, 1, 2)]
    found = summary_of(replace(result(stage(80)), gpus=gpus, verdicts=verdicts))
    assert [(one.count, one.hbm_gib, one.firmware) for one in found.system.gpus] == [
        (2, 192.0, {"MEC": "1"}),
        (1, 192.0, {"MEC": "2"}),
    ]
    assert [(one.subject, one.text) for one in found.verdicts] == [("gpu 0-2", "THROTTLED thermal 18%")]


def test_provenance_and_start_are_in_it() -> None:
    start = ServerStart(kv_cache_tokens=1_234_567, unix_s=1.7e9, total_s=41.234567)
    data = DataFile("trace.jsonl", "ab" * 32, 10, "jsonl", 5, 0, is_sample=False)
    found = summary_of(
        replace(
            result(stage(80)),
            provenance=Provenance("org/vllm:v1", "sha256:abc", None, {"weights_revision": "a folder"}),
            server=ServerResult(start),
            data=data,
            profile={"name": "p", "recipe": {"source": "https://x/y", "commit": "0123abc"}, "load": {"seed": 7}},
        )
    )
    assert found.provenance.image_digest == "sha256:abc"
    assert found.provenance.missing == {"weights_revision": "a folder"}
    assert (found.provenance.recipe, found.provenance.recipe_commit) == ("https://x/y", "0123abc")
    assert found.provenance.data_sha256 == data.sha256
    assert found.start == ServerStart(kv_cache_tokens=1_234_567, total_s=41.235)  # rounded; an absolute time is not
    assert found.workload.seed == 7


def test_limits_are_those_of_the_stage() -> None:
    limited = replace(
        stage(80),
        slo={"ttft_p99": SloCheck(25.0, 30.0, met=False, verdict="missed")},
        goodput=Goodput({"tpot": 50.0}, 60, 80, 0.75, 1.0, 0.95, met=False, verdict="unresolved"),
        failures=FailureCheck(2, 0, 82, 0.0, met=False, verdict="missed"),
    )
    (only,) = summary_of(result(limited)).stages
    assert only.met_limits is False
    measured = {name: (limit.limit, limit.measured) for name, limit in only.limits.items()}
    assert measured == {"ttft_p99": (25.0, 30.0), "goodput": (0.95, 0.75), "failed": (0.0, 0.02439)}


def test_texts_are_short_and_of_one_line() -> None:
    long = "the server died: " + "x" * 1000
    settings: dict[str, Any] = {"extra_body": {"y": "z" * 1000}, "ignore_eos": True}
    found = summary_of(
        replace(
            result(replace(stage(80), verdicts=[Verdict("kv-limited", "stage 1", long)])),
            reason=f"{long}\nmore",
            profile={"load": settings},
        )
    )
    assert max(map(len, (found.reason, found.stages[0].verdicts["kv-limited"]))) <= 160
    assert found.workload.settings == {"extra_body": "see the result", "ignore_eos": True}
    document = summary_json(found)
    assert msgspec.json.decode(document, type=RunSummary) == found
    assert len(document.splitlines()) == len(json.loads(document)) + len(found.stages) + 1


def test_a_load_of_sessions_has_their_figures() -> None:
    played, streams = summary_of(result(stage_of_sessions(), replace(stage(8), index=1))).stages
    assert played.sessions == SummarySessions(0.0, 0, 0.0, 0.95, 0.9, 0.8)
    assert streams.sessions is None
