"""The engine's own figures from /metrics, now and over a stage; others' share of them; agreement with the client."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.format import number
from loadgen.schema.bounds import Whole

EngineKind = Literal["vllm", "sglang", "tgi"]
COUNT_AT_END: tuple[EngineKind, ...] = ("sglang", "tgi")
"""Those that count tokens only when a request ends."""


class EngineLatencyMs(msgspec.Struct, frozen=True):
    """One latency as counted by the engine in buckets, so that percentiles are known only as intervals."""

    count: Whole
    mean: float
    within: dict[str, tuple[float, float | None]] = {}
    """`p50`, `p90`, `p99`: the bounds of each; the upper one is None beyond the last bucket."""


class SpecDecode(msgspec.Struct, frozen=True, omit_defaults=True):
    """Speculative decoding over a span of time; None if the engine does not count it."""

    drafts: Whole | None = None
    drafted_tokens: Whole | None = None
    accepted_tokens: Whole | None = None
    acceptance: float | None = None  # 0 to 1, accepted of drafted tokens
    mean_accepted_length: float | None = None  # tokens per step: accepted ones and the model's own
    acceptance_by_position: tuple[float, ...] = ()  # 0 to 1, of the drafts, by position in the draft


class EngineSpan(msgspec.Struct, frozen=True):
    """The figures of the engine's own /metrics over a span of time."""

    kind: EngineKind | None = None  # None where it is not known, or where several servers differ
    unavailable: dict[str, str] = {}  # why a figure is missing, by its name in `server/engines/names.py`
    between_s: tuple[float, float] | None = None
    """Between which moments of the run it was read, the readings themselves included; None before the second one."""
    latency_ms: dict[str, EngineLatencyMs] = {}
    """By name: ttft, itl, tpot, e2e, queue, prefill, decode; all but the first two are of ended requests."""
    prefix_hit_rate: float | None = None  # 0 to 1, of the prompt tokens that were looked up; None while there are none
    external_prefix_hit_rate: float | None = None  # 0 to 1, of the tokens looked up in a KV cache outside the engine
    prompt_tokens_by_source: dict[str, Whole] = {}  # local_compute, local_cache_hit, external_kv_transfer
    finished: dict[str, Whole] = {}  # requests by how they ended: stop, length, abort, error
    errors: dict[str, Whole] = {}  # answers by status: 4xx, 503
    spec: SpecDecode | None = None  # None also where nothing was drafted
    tflops_per_gpu: float | None = None
    """TFLOP/s per GPU by the engine's own estimate, the mean of its engines; None if it has none."""
    hbm_bytes_per_s: float | None = None  # of each GPU, read and written, by the engine's estimate
    kv_offload_bytes: dict[str, Whole] = {}  # `load` and `store`: moved from and to where the KV cache is offloaded


class EngineView(EngineSpan, frozen=True, omit_defaults=True):
    """The engine's /metrics: gauges now, and counts and rates over the last `WINDOW_S` seconds."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0 to 1, of the fullest engine
    preemptions: float | None = None  # since the server started
    waiting_by_reason: dict[str, float] = {}
    """Waiting requests: `capacity`, no room; `deferred`, held back for another reason, such as a KV transfer."""
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    requests_per_s: float | None = None  # ended requests
    engines: dict[str, EngineView] = {}
    """Each engine of a data-parallel server, where there are several; without its latencies."""
    since_start: dict[str, EngineLatencyMs] = {}  # latencies since the server started
    reading_s: float = 0.0  # how long the last reading took: its gauges are of any moment of it
    span_s: float | None = None  # what its rates are over: from the middle of the first reading to that of the last


class EngineStage(EngineSpan, frozen=True):
    """The engine's own figures for a stage: differences between readings at its end and its beginning.

    They include warm-up and other clients' requests.
    """

    ttft_mean_ms: float | None = None
    ttft_count: Whole | None = None
    itl_mean_ms: float | None = None
    tpot_mean_ms: float | None = None
    e2e_mean_ms: float | None = None
    queue_mean_ms: float | None = None
    prefill_mean_ms: float | None = None
    decode_mean_ms: float | None = None
    prompt_tokens: Whole | None = None
    generation_tokens: Whole | None = None
    requests: Whole | None = None  # ended requests
    preemptions: Whole | None = None
    admission_rejections: Whole | None = None  # requests turned away because a queue was full
    engines: dict[str, EngineStage] = {}  # each engine of a data-parallel server, where there are several
    idle_around: bool | None = None
    """Whether nothing ran or waited at the readings before and after; None if the engine does not say."""
    doubts: dict[str, str] = {}
    """Why figures are None because the engine's values are implausible, by name; `all` for every figure."""
    restarts: Whole = 0
    """How often the counters started from zero; work between the last reading and a restart is missing."""

    @property
    def requests_per_s(self) -> float | None:
        return self._per_s(self.requests)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        return self._per_s(self.prompt_tokens)

    @property
    def generation_tokens_per_s(self) -> float | None:
        return self._per_s(self.generation_tokens)

    def _per_s(self, count: int | None) -> float | None:
        if count is None or self.between_s is None:
            return None
        began_s, ended_s = self.between_s
        return count / (ended_s - began_s) if ended_s > began_s else None


class OwnRequests(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests of vramp's own that are not load: a server's first ones, and canaries."""

    open: Whole = 0  # now
    requests: Whole = 0  # ended since the last look, like the following counts
    input_tokens: Whole = 0
    output_tokens: Whole = 0
    ttft_ms: float = 0.0  # of canaries, summed, as measured by this process

    def __add__(self, other: OwnRequests) -> OwnRequests:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return OwnRequests(*(one + two for one, two in pairs))


class OthersTraffic(msgspec.Struct, frozen=True, omit_defaults=True):
    """Requests of others on the same engine; 0 if there is no evidence of any, None if unknown."""

    running: float | None = None  # in the engine, running or waiting; for a stage their mean
    requests_per_s: float | None = None  # ended requests
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None

    @property
    def seen(self) -> bool:
        return any((self.running, self.requests_per_s, self.prompt_tokens_per_s, self.generation_tokens_per_s))

    @property
    def words(self) -> str:
        """The known figures: 3.1 running, 2.4 req/s, 820 tok/s in, 310 tok/s out."""
        reported = {
            "running": self.running,
            "req/s": self.requests_per_s,
            "tok/s in": self.prompt_tokens_per_s,
            "tok/s out": self.generation_tokens_per_s,
        }
        return ", ".join(f"{number(value)} {unit}" for unit, value in reported.items() if value)


class TruthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Client against engine over a stage; None if one of them does not know."""

    ttft_client_ms: float | None
    """Mean over all streams that `over` names, including warm-up and first wave; None, like all times, if the server's
    are of other streams."""
    ttft_server_ms: float | None
    ttft_outside_ms: float | None  # the client's minus the server's: HTTP, network and client
    queue_ms: float | None
    """Mean wait before the engine began a request; this and `prefill_ms` are parts of the server's TTFT."""
    prefill_ms: float | None
    frontend_ms: float | None  # the rest of the server's TTFT: tokenizing, and the way to and from the engine
    requests_client: Whole
    requests_server: Whole | None
    """Requests that the server gave a first token; None, like its tokens, if they may be others."""
    input_tokens_client: Whole | None  # None if the server does not report them for each stream
    input_tokens_server: Whole | None
    output_tokens_client: Whole
    output_tokens_server: Whole | None
    agrees: bool | None  # over all that could be compared; None if nothing could
    why: str  # what disagrees, then what could not be compared and why; empty if everything agrees
    over: str = ""  # "stages 1 to 3 together, including 5 canaries"; empty for the streams of this stage alone

    @property
    def words(self) -> str:
        """Where TTFT was spent, then what disagrees or could not be compared."""
        outside, ttft = self.ttft_outside_ms, None
        if outside is not None and self.ttft_server_ms is not None:
            ttft = f"mean TTFT {self.ttft_server_ms:.1f} ms at the server, {outside:+.1f} ms at the client"
            ttft += f" ({self.over})" if self.over else ""
        return "; ".join(filter(None, (ttft, self.why))) or "the same requests and tokens"
