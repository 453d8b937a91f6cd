"""The engine's /metrics, in Prometheus' text format under vLLM's names.

Recording is cheap because nearly all streams of a step were also in the previous one: they share one inter-token
latency, so a step is one observation with a count.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

from loadgen.simulator.engine import Emission, Engine, Sequence

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_HISTOGRAMS: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": _TTFT,
    "inter_token_latency_seconds": _ITL,
    "request_time_per_output_token_seconds": _ITL,
    "e2e_request_latency_seconds": _REQUEST,
    "request_queue_time_seconds": _REQUEST,
    "request_prefill_time_seconds": _REQUEST,
    "request_decode_time_seconds": _REQUEST,
    "request_inference_time_seconds": _REQUEST,
    "iteration_tokens_total": _TOKENS,
}


class PrometheusHistogram:
    """Cumulative buckets, in seconds or tokens."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._buckets, value)] += count
        self._sum += value * count

    def lines(self, name: str, labels: str) -> list[str]:
        cumulative = list(accumulate(self._counts))
        bounds = [*(str(float(bucket)) for bucket in self._buckets), "+Inf"]
        lines = [f'{name}_bucket{{{labels},le="{le}"}} {n}.0' for le, n in zip(bounds, cumulative, strict=True)]
        return [*lines, f"{name}_count{{{labels}}} {cumulative[-1]}.0", f"{name}_sum{{{labels}}} {self._sum!r}"]


class Metrics:
    """What vLLM's frontend records; the rest is read from the engine when the page is requested."""

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'engine="0",model_name="{escaped}"'
        self.finished = dict.fromkeys(("stop", "length", "error"), 0)
        self._histograms = {name: PrometheusHistogram(buckets) for name, buckets in _HISTOGRAMS.items()}
        self._last_ns = 0
        self._started_s = time.time()

    def step(self, emission: Emission, now_ns: int) -> None:
        ttft, itl = (self._histograms[name] for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"))
        self._histograms["iteration_tokens_total"].add(emission.computed)
        # A sequence that did not join now got its latest token in the previous step.
        steady = len(emission.going) + len(emission.ending) - len(emission.joined)
        if steady:
            itl.add((now_ns - self._last_ns) / 1e9, steady)
        for sequence in emission.joined:
            if sequence.generated == 1:
                ttft.add((now_ns - sequence.arrived_ns) / 1e9)
            else:
                itl.add((now_ns - sequence.last_ns) / 1e9)
        self._last_ns = now_ns

    def finish(self, sequence: Sequence) -> None:
        self.finished[sequence.reason] += 1
        arrived, scheduled = sequence.arrived_ns, sequence.scheduled_ns
        first, last = sequence.first_ns, sequence.last_ns
        spans_ns: dict[str, float] = {
            "e2e_request_latency_seconds": last - arrived,
            "request_queue_time_seconds": scheduled - arrived,
            "request_prefill_time_seconds": first - scheduled,
            "request_decode_time_seconds": last - first,
            "request_inference_time_seconds": last - scheduled,
        }
        if sequence.generated > 1:
            spans_ns["request_time_per_output_token_seconds"] = (last - first) / (sequence.generated - 1)
        for name, span_ns in spans_ns.items():
            self._histograms[name].add(span_ns / 1e9)

    def text(self, engine: Engine, answered: Mapping[tuple[str, str, int], int]) -> str:
        """The page; `answered` are the server's answers by path, method and status."""
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self._started_s!r}"]
        # The HTTP answers as counted by the library that vLLM uses: with statuses by class.
        by_class = Counter[str]()
        for (path, method, status), count in answered.items():
            by_class[f'handler="{path}",method="{method}",status="{status // 100}xx"'] += count
        lines += ["# TYPE http_requests_total counter"] if by_class else []
        lines += [f"http_requests_total{{{labels}}} {float(count)!r}" for labels, count in by_class.items()]
        for name, kind, samples in self._numbers(engine):
            lines += [f"# HELP vllm:{name} Simulated.", f"# TYPE vllm:{name} {kind}"]
            lines += [f"vllm:{name}{{{self._labels}{extra}}} {float(value)!r}" for extra, value in samples.items()]
        for name, histogram in self._histograms.items():
            lines += [f"# HELP vllm:{name} Simulated.", f"# TYPE vllm:{name} histogram"]
            lines += histogram.lines(f"vllm:{name}", self._labels)
        return "\n".join(lines) + "\n"

    def _numbers(self, engine: Engine) -> list[tuple[str, str, dict[str, float]]]:
        physics = engine.physics
        config = (
            f',block_size="{physics.block_size}",cache_dtype="auto",'
            f'enable_prefix_caching="{physics.prefix_caching}",num_gpu_blocks="{physics.kv_blocks}"'
        )
        reasons = {',reason="capacity"': float(len(engine.waiting)), ',reason="deferred"': 0.0}
        sleeping = {',sleep_state="awake"': 1.0, ',sleep_state="weights_offloaded"': 0.0}
        ends = self.finished | {"abort": engine.aborted}
        finished = {f',finished_reason="{reason}"': float(n) for reason, n in ends.items()}
        by_source: dict[str, float] = {
            ',source="local_compute"': engine.prompt_tokens - engine.cached_tokens,
            ',source="local_cache_hit"': engine.cached_tokens,
            ',source="external_kv_transfer"': 0,
        }
        counted_tokens = engine.computed_tokens if physics.mfu_metrics else 0
        flops = counted_tokens * physics.gflop_per_token * 1e9 / physics.tensor_parallel_size
        idle = [("simulated_gpus_idle", "gauge", {"": 1.0})] if engine.hang == "lost_wakeup" else []
        return [
            *idle,
            ("num_requests_running", "gauge", {"": len(engine.running)}),
            ("num_requests_waiting", "gauge", {"": len(engine.waiting)}),
            ("num_requests_waiting_by_reason", "gauge", reasons),
            ("kv_cache_usage_perc", "gauge", {"": engine.pool.usage}),
            ("engine_sleep_state", "gauge", sleeping | {',sleep_state="discard_all"': 0.0}),
            ("cache_config_info", "gauge", {config: 1}),
            ("prompt_tokens_total", "counter", {"": engine.prompt_tokens}),
            ("prompt_tokens_by_source_total", "counter", by_source),
            ("generation_tokens_total", "counter", {"": engine.generation_tokens}),
            ("num_preemptions_total", "counter", {"": engine.preemptions}),
            ("prefix_cache_queries_total", "counter", {"": engine.prefix_queries}),
            ("prefix_cache_hits_total", "counter", {"": engine.prefix_hits}),
            ("external_prefix_cache_queries_total", "counter", {"": 0}),
            ("external_prefix_cache_hits_total", "counter", {"": 0}),
            ("request_success_total", "counter", finished),
            ("estimated_flops_per_gpu_total", "counter", {"": flops}),
        ]
