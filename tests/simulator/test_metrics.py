from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.simulator.metrics import PrometheusHistogram
from tests.simulator.conftest import MODEL, Running, simulator

LABELS = {"engine": "0", "model_name": MODEL}
NAMES = {
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    *("engine_sleep_state", "cache_config_info", "prompt_tokens", "generation_tokens", "num_preemptions"),
    *("prefix_cache_queries", "prefix_cache_hits", "request_success", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_inference_time_seconds", "iteration_tokens_total", "prompt_tokens_by_source"),
    *("estimated_flops_per_gpu", "external_prefix_cache_queries", "external_prefix_cache_hits"),
}
PLAIN = {"process_start_time_seconds", "http_requests"}  # of the process and its web server


def read(server: Running) -> dict[str, dict[tuple[str, str], float]]:
    """Samples by name, then by the label that is not on every one of them."""
    text = server.client.get("/metrics").text
    found: dict[str, dict[tuple[str, str], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name not in PLAIN else ():
            own = {key: value for key, value in sample.labels.items() if LABELS.get(key) != value}
            assert sample.labels.keys() >= LABELS.keys()
            key = next(iter(own.items()), ("", ""))
            found.setdefault(sample.name.removeprefix("vllm:"), {})[key] = sample.value
    return found


def test_parses_and_has_vllms_names(server: Running) -> None:
    text = server.client.get("/metrics").text
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families - PLAIN == {f"vllm:{name}" for name in NAMES}


def test_answers_are_counted_by_the_class_of_their_status(server: Running) -> None:
    def answers() -> Counter[str]:
        return Counter(parse_engine_metrics(server.client.get("/metrics").text).errors)

    before = answers()
    server.stream(2)
    assert server.client.post("/v1/completions", json={"model": "no such model", "prompt": "a"}).status_code == 404
    assert server.client.get("/v1/no/such/path").status_code == 404
    assert answers() - before == {"2xx": 1, "4xx": 1}


def test_a_request_moves_the_numbers(server: Running) -> None:
    before = read(server)
    server.stream(9)
    server.stream(9)
    after = read(server)

    def moved(name: str, label: tuple[str, str] = ("", "")) -> float:
        return after[name][label] - before[name][label]

    assert moved("prompt_tokens_total") == 40
    assert moved("generation_tokens_total") == 18
    assert moved("request_success_total", ("finished_reason", "length")) == 2
    assert moved("prefix_cache_queries_total") == 40
    assert moved("prefix_cache_hits_total") >= 16
    cached = moved("prompt_tokens_by_source_total", ("source", "local_cache_hit"))
    assert cached == moved("prefix_cache_hits_total")
    assert moved("prompt_tokens_by_source_total", ("source", "local_compute")) == 40 - cached
    assert moved("time_to_first_token_seconds_count") == 2
    assert moved("inter_token_latency_seconds_count") == 16
    assert moved("e2e_request_latency_seconds_bucket", ("le", "+Inf")) == 2
    assert moved("iteration_tokens_total_count") == 18
    assert after["num_requests_running"]["", ""] == 0


def test_operations_of_the_computed_tokens(server: Running) -> None:
    assert read(server)["estimated_flops_per_gpu_total"]["", ""] == 0
    with simulator("--enable-mfu-metrics", "--gflop-per-token", "10", "--no-enable-prefix-caching") as counting:
        counting.stream(9)
        # The ninth token is given out and never computed.
        assert read(counting)["estimated_flops_per_gpu_total"]["", ""] == (20 + 8) * 10e9


def test_a_value_on_a_bound_is_inside_it() -> None:
    histogram = PrometheusHistogram((1, 2))
    histogram.add(1, 3)
    histogram.add(5)
    assert histogram.lines("h", 'a="b"') == [
        'h_bucket{a="b",le="1.0"} 3.0',
        'h_bucket{a="b",le="2.0"} 3.0',
        'h_bucket{a="b",le="+Inf"} 4.0',
        'h_count{a="b"} 4.0',
        'h_sum{a="b"} 8.0',
    ]
