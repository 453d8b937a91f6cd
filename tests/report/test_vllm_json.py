"""What vLLM's benchmark writes, read as those who consume it do."""

import json
import math
from typing import Any

import msgspec
import pytest

from loadgen.metrics.histogram import Histogram
from loadgen.report.vllm_json import vllm_documents, vllm_file_names
from loadgen.schema.result import Goodput, Result, StageResult, Target
from tests.report.test_text import result, stage

replace = msgspec.structs.replace
KEYS = """
    date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration
    completed failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput
    total_token_throughput latencies queue_times max_output_tokens_per_s max_concurrent_requests rtfx
""".split()
"""The keys of `vllm bench serve --save-result` 0.32 without --save-detailed, in its order, before the latencies."""


def consumed(document: dict[str, Any], tensor_parallel: int = 1) -> dict[str, Any]:
    """As InferenceX turns such a file into a row: every value that it converts, converted."""
    row = {
        "conc": int(document["max_concurrency"]),
        "model": document["model_id"],
        "tput_per_gpu": float(document["total_token_throughput"]) / tensor_parallel,
        "output_tput_per_gpu": float(document["output_throughput"]) / tensor_parallel,
    }
    for key, value in document.items():
        if key.endswith("ms"):
            row[key.replace("_ms", "")] = float(value) / 1000.0
        if "tpot" in key:
            row[key.replace("_ms", "").replace("tpot", "intvty")] = 1000.0 / float(value)
    return row


def finite(document: dict[str, Any]) -> bool:
    json.dumps(document, allow_nan=False)
    return all(math.isfinite(value) for value in consumed(document).values() if isinstance(value, float))


def run_of(*stages: StageResult) -> Result:
    return replace(result(*stages), started_at="2026-01-01T00:00:00.000Z")


def with_hdr(**fields: object) -> StageResult:
    """A stage whose latencies have histograms, as those of a run have."""
    histogram = Histogram()
    histogram.record_ns([10_000_000, 20_000_000, 30_000_000])
    latency = dict.fromkeys(stage(80).latency_ms, histogram.summary(with_hdr=True))
    return replace(stage(80), latency_ms=latency, **fields)


def test_the_keys_and_units_of_vllm(measured: Result) -> None:
    first, second = vllm_documents(measured)
    assert list(first)[: len(KEYS)] == KEYS
    stage_of = measured.stages[0]
    assert first["p99_ttft_ms"] == stage_of.latency_ms["ttft"].p99
    assert first["median_e2el_ms"] == stage_of.latency_ms["e2e"].p50
    assert first["p99.9_itl_ms"] == stage_of.latency_ms["itl"].p999
    assert (first["request_rate"], first["burstiness"], first["max_concurrency"]) == ("inf", 1.0, 2)
    assert (second["max_concurrency"], second["completed"]) == (4, 40)
    assert first["max_output_tokens_per_s"] > 0
    assert set(first) - set(KEYS) >= {"benchmark_start_time_unix", "benchmark_end_time_unix", "vramp"}


def test_consumers_can_convert_what_they_convert(measured: Result, hostile: Result) -> None:
    for document in [*vllm_documents(measured), *vllm_documents(hostile)]:
        assert finite(document)
    row = consumed(vllm_documents(measured)[0])
    tpot_ms = measured.stages[0].latency_ms["tpot"].mean
    assert tpot_ms is not None and row["mean_intvty"] == pytest.approx(1000 / tpot_ms)


@pytest.mark.parametrize("failing", [stage(0, reset=3), stage(1)], ids=["nothing completed", "a single value"])
def test_what_was_not_measured_has_no_key(failing: StageResult) -> None:
    single = Histogram()
    single.record_ns([5_000_000])
    latency = single.summary() if failing.requests.completed else Histogram().summary()
    failing = replace(failing, latency_ms=dict.fromkeys(failing.latency_ms, latency))
    (document,) = vllm_documents(run_of(failing))
    assert finite(document)
    assert "std_tpot_ms" not in document
    assert ("mean_tpot_ms" in document) == (failing.requests.completed > 0)
    assert document["failed"] == failing.requests.failed


def test_latencies_are_those_of_the_histogram_in_seconds() -> None:
    (document,) = vllm_documents(run_of(with_hdr()))
    assert document["latencies"] == pytest.approx([0.010, 0.020, 0.030], rel=1e-3)


def test_an_open_loop() -> None:
    target = Target(concurrency=None, rate=2.5, arrival="gamma:0.5")
    goodput = Goodput({"ttft": 1.0}, 1, 2, 0.5, 1.25, 0.9, False)
    (document,) = vllm_documents(run_of(with_hdr(target=target, goodput=goodput)))
    assert (document["request_rate"], document["burstiness"], document["max_concurrency"]) == (2.5, 0.5, None)
    assert document["request_goodput"] == 1.25
    constant = with_hdr(target=Target(concurrency=None, rate=2.5, arrival="constant"))
    assert vllm_documents(run_of(constant))[0]["burstiness"] is None


def test_files_are_named_as_vllm_names_them(measured: Result, hostile: Result) -> None:
    first, second = vllm_file_names(vllm_documents(measured))
    assert first.startswith("openai-infqps-concurrency2-") and first.endswith(".json")
    assert "-concurrency4-" in second
    same = with_hdr()
    names = vllm_file_names(vllm_documents(run_of(same, same, same)))
    assert len(set(names)) == 3
    assert not any("/" in name or ".." in name for name in vllm_file_names(vllm_documents(hostile)))
