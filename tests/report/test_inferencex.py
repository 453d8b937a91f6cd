"""Stages as rows of InferenceX: the arithmetic of its script, and what a run does not know."""

import json

import msgspec
import pytest

from loadgen.report.inferencex import inferencex_rows
from loadgen.report.vllm_json import vllm_documents
from loadgen.schema.result import Result, Target
from loadgen.schema.samples import GpuStatic
from loadgen.store.foreign.read import read_foreign
from tests.report.test_text import result, stage
from tests.report.test_vllm_json import consumed

replace = msgspec.structs.replace
COMMAND = ["vllm", "serve", "m", "--tensor-parallel-size=4", "--pipeline-parallel-size", "2"]


def on_a_box(found: Result) -> Result:
    gpus = [GpuStatic(index, "amd", "AMD Instinct MI300X") for index in range(8)]
    environment = found.environment | {"engine": "vllm", "server_command": COMMAND}
    return replace(found, gpus=gpus, environment=environment)


def test_a_row_is_what_their_script_makes_of_vllms_file(measured: Result) -> None:
    measured = on_a_box(measured)
    for row, document in zip(inferencex_rows(measured), vllm_documents(measured), strict=True):
        theirs = consumed(document, tensor_parallel=8)
        assert {key: row[key] for key in theirs} == pytest.approx(theirs)
        assert row["hw"] == "mi300x" and (row["tp"], row["pp"], row["ep"]) == (4, 2, 1)
        assert row["spec_decoding"] == "none" and row["precision"] is None


def test_the_rows_are_read_back(measured: Result) -> None:
    rows = inferencex_rows(on_a_box(measured))
    found = read_foreign(json.dumps([row | {"precision": "fp8"} for row in rows]).encode(), "r.json")
    assert found is not None
    for ours, theirs in zip(measured.stages, found.stages, strict=True):
        assert theirs.throughput.output_tokens_per_s == pytest.approx(ours.throughput.output_tokens_per_s)
        assert theirs.latency_ms["tpot"].p99 == pytest.approx(ours.latency_ms["tpot"].p99)


def test_without_command_and_gpus_nothing_is_made_up() -> None:
    (row,) = inferencex_rows(replace(result(stage(80)), gpus=[], environment={"engine": "attach"}))
    unknown = ("hw", "framework", "spec_decoding", "tp", "ep", "dp_attention", "tput_per_gpu", "output_tput_per_gpu")
    assert {key: row[key] for key in unknown} == dict.fromkeys(unknown)


def test_only_closed_loops_have_rows() -> None:
    assert inferencex_rows(result(replace(stage(80), target=Target(None, 2.5, "poisson")))) == []
