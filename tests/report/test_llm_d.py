"""Stages as benchmark reports of llm-d: valid by its schema, and read back with the same figures."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from loadgen.report.llm_d import llm_d_reports
from loadgen.schema.deltas import Summary
from loadgen.schema.result import Result, Target
from loadgen.schema.samples import GpuStatic
from loadgen.store.foreign.read import read_foreign
from tests.report.test_text import result, stage

replace = msgspec.structs.replace
SCHEMA = Path(__file__).with_name("schemas") / "llm_d_br_v0_2_json_schema.json"
COMMAND = ["vllm", "serve", "m", "--tensor-parallel-size", "4", "--enable-expert-parallel", "--async-scheduling"]


@pytest.fixture(scope="session")
def schema() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()))


def valid(found: Result, schema: jsonschema_rs.Validator) -> list[dict[str, Any]]:
    reports = llm_d_reports(found)
    for report in reports:
        json.dumps(report, allow_nan=False)
        schema.validate(report)
    return reports


def test_every_run_is_valid_by_their_schema(measured: Result, hostile: Result, schema: jsonschema_rs.Validator) -> None:
    assert len(valid(measured, schema)) == 2
    valid(hostile, schema)
    rate = replace(stage(5), target=Target(None, 2.5, "poisson"))
    nothing = replace(stage(0, reset=3), latency_ms={})
    valid(result(rate, nothing), schema)


def test_the_figures_are_read_back(measured: Result) -> None:
    text = "\n".join(json.dumps(report) for report in llm_d_reports(measured))
    found = read_foreign(text.encode(), "r.jsonl")
    assert found is not None and found.measured_by == f"llm-d benchmark, vramp {measured.vramp_version}"
    for ours, theirs in zip(measured.stages, found.stages, strict=True):
        assert (theirs.target.concurrency, theirs.isl, theirs.osl) == (ours.target.concurrency, ours.isl, ours.osl)
        assert theirs.requests.completed == ours.requests.completed
        assert theirs.throughput.output_tokens_per_s == ours.throughput.output_tokens_per_s
        for name in ("ttft", "tpot", "itl", "e2e"):
            for statistic in ("mean", "p50", "p99", "p999", "max"):
                known, read = (getattr(one.latency_ms[name], statistic) for one in (ours, theirs))
                assert read == pytest.approx(known), (name, statistic)


def test_the_engine_is_described_as_far_as_it_is_known(schema: jsonschema_rs.Validator) -> None:
    gpus = [GpuStatic(index, "amd", "MI300X") for index in range(8)]
    environment = {"engine": "vllm", "vllm_version": "0.32.0", "model": "m", "server_command": COMMAND}
    (report,) = valid(replace(result(stage(80)), gpus=gpus, environment=environment), schema)
    (engine,) = report["scenario"]["stack"]
    accelerator = engine["standardized"]["accelerator"]
    assert accelerator["count"] == 4 and accelerator["parallelism"]["ep"] == 4
    (report,) = valid(replace(result(stage(80)), gpus=[], environment={"engine": "attach"}), schema)
    assert report["scenario"]["stack"][0]["standardized"]["kind"] == "generic"


def test_a_lower_bound_is_no_value(schema: jsonschema_rs.Validator) -> None:
    summary = Summary(count=9, mean=5.0, p50=4.0, p99=9.0, lower_bounds=("p99", "max"), max=9.5)
    (report,) = valid(result(replace(stage(80), latency_ms={"ttft": summary})), schema)
    ttft = report["results"]["request_performance"]["aggregate"]["latency"]["time_to_first_token"]
    assert ttft == {"units": "ms", "mean": 5.0, "p50": 4.0}
