"""The short document of a run, schema `vramp.summary/1`: what was run, on what, and the figures of each stage.

It is a fold of the result, without series and histograms, so that ten stages take 20 KB at most. Numbers are numbers or
null, rounded to five significant digits; units are in the names. `summary.schema.json` next to this file is made
from these structs (`python -m loadgen.schema.summary`), and a test keeps both in step. Keys are only ever added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from loadgen.schema.finding import Verdict
from loadgen.schema.result import json_schema
from loadgen.schema.shared import RunState, SloVerdict
from loadgen.schema.start import ServerStart

SUMMARY_SCHEMA: Literal["vramp.summary/1"] = "vramp.summary/1"
SUMMARY_SCHEMA_PATH = Path(__file__).with_name("summary.schema.json")


class GpuGroup(msgspec.Struct, frozen=True):
    """GPUs of the box that are alike in all of this."""

    name: str
    count: int
    hbm_gib: float | None
    power_cap_w: float | None  # by default
    compute_partition: str | None
    memory_partition: str | None
    firmware: dict[str, str]  # versions by component; empty if the driver reports none


class SummarySystem(msgspec.Struct, frozen=True):
    """The machine and the software that served; null is unknown."""

    host: str | None
    cpu: str | None
    kernel: str | None
    gpus: tuple[GpuGroup, ...]
    drivers: dict[str, str]  # versions of drivers and of ROCm or CUDA, by vendor and name: `amd.driver`
    engine: str | None  # `vllm`, `docker`, `attach`, `simulator`, `none`
    vllm_version: str | None
    max_model_len: int | None
    servers: int  # how many shared the load; 0 without a server
    server_command: str | None  # secrets are masked


class SummaryProvenance(msgspec.Struct, frozen=True):
    """What exactly ran; null is unknown, with its reason in `missing`."""

    image: str | None  # as the profile names it; null without a container
    image_digest: str | None  # `sha256:...`, by which a registry has it
    weights_revision: str | None  # the commit of the weights on the hub
    recipe: str | None  # the file or URL that the profile was imported from
    recipe_commit: str | None
    data: str | None  # the file of prompts or the trace; null for synthetic prompts
    data_sha256: str | None
    missing: dict[str, str] = {}


class SummaryWorkload(msgspec.Struct, frozen=True):
    """What was sent in every stage; loads and lengths are in the stages."""

    endpoint: str | None  # `completions`, `chat`
    prompts: str  # `synthetic`, or the file in words
    seed: int | None
    settings: dict[str, Any] = {}  # the other keys of the profile's `load` that are not the defaults


class SummaryClient(msgspec.Struct, frozen=True):
    """How the load was generated, and whether the client was the limit."""

    timestamps: Literal["kernel", "user"] | None
    workers: int
    hosts: int  # machines that sent the load; 0 if it was this one, or another tool's
    read_lag_p99_ms: float | None
    limited: bool
    why: str | None


class SummaryRequests(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Outcomes of a stage's requests; what is left out is 0."""

    scheduled: int | None
    sent: int
    completed: int
    failed: int
    cancelled: int = 0
    unfinished: int = 0
    unsent: int = 0
    carried_over: int = 0
    errors: dict[str, int] = {}  # by kind


class SummaryThroughput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What arrived in the measured window, divided by its length."""

    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    output_tokens_per_s_per_user: float | None
    output_tokens_per_s_per_gpu: float | None = None  # left out where the server's GPUs are unknown


class SummaryLatency(msgspec.Struct, frozen=True, omit_defaults=True):
    """One latency of a stage, in milliseconds."""

    count: int
    mean: float | None
    p50: float | None
    p99: float | None
    lower_bounds: tuple[str, ...] = ()  # statistics that are lower bounds, as streams still waited


class SummaryLimit(msgspec.Struct, frozen=True):
    """One limit of the profile on a stage."""

    limit: float  # milliseconds; of `goodput` and `failed` a share
    measured: float | None
    verdict: SloVerdict | None  # with 95 % confidence


class SummaryHardware(msgspec.Struct, frozen=True, omit_defaults=True):
    """The server's GPUs over the measured window, as means over GPUs; of all GPUs where the server's are unknown.

    What is left out is unknown.
    """

    gpus: int  # measured ones
    activity_percent: float | None = None
    hbm_used_gib: float | None = None  # the most that was in use
    power_w: float | None = None  # of one GPU
    hottest_c: float | None = None  # the highest of all hotspots
    mfu_percent: float | None = None  # by the engine's own estimate, as the next
    hbm_bandwidth_percent: float | None = None
    joules_per_output_token: float | None = None  # of all the server's GPUs
    usd_per_million_output_tokens: float | None = None
    host_cpu_percent: float | None = None


class SummaryEngine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The engine's own figures of a stage, including other clients' requests; what is left out is unknown.

    The first three are only of stages without load, in which they are all that there is.
    """

    requests: int | None = None  # ended ones
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    ttft_mean_ms: float | None = None
    queue_mean_ms: float | None = None
    preemptions: int | None = None
    prefix_hit_rate: float | None = None  # 0 to 1, of the prompt tokens that were looked up
    spec_acceptance: float | None = None  # 0 to 1, of drafted tokens


class SummarySessions(msgspec.Struct, frozen=True):
    """The sessions of a stage whose load they are, and the shares of prompt tokens from the cache; null is unknown."""

    live: float | None  # mean
    finished: int
    e2e_interactivity: float | None  # tokens per second: 1/P90 of E2E per token
    hits_measured: float | None  # 0 to 1, by the server's usage
    hits_infinite: float | None  # in a cache without limit
    hits_pool: float | None  # in one of the size of the engine's KV cache


class StageSummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The figures of one stage, by the definitions of the result."""

    label: str
    concurrency: int | None = None  # of a closed loop, or how many sessions should live; 0 is no load
    rate: float | None = None  # of an open loop, in requests a second
    isl: int
    osl: int
    measured_s: float
    requests: SummaryRequests
    concurrency_mean: float | None
    isl_mean: float | None  # of the completed requests, as is `osl_mean`
    osl_mean: float | None
    throughput: SummaryThroughput
    latency_ms: dict[str, SummaryLatency]  # ttft, tpot, itl, e2e; in open loop ttft_from_intended; what was measured
    hardware: SummaryHardware | None  # null if no GPU was measured
    engine: SummaryEngine | None  # null if the engine's figures are unknown
    sessions: SummarySessions | None = None  # null where the load is not sessions
    verdicts: dict[str, str] = {}  # what was the limit, and why: text by id
    met_limits: bool | None = None  # null without limits
    limits: dict[str, SummaryLimit] = {}  # by latency and statistic; `goodput`, `failed`
    published_difference_percent: dict[str, float | None] = {}
    """By published figure, with the publication's column if it has several: how much the measured one is above it."""
    arrival: str | None = None  # of an open loop
    moves: tuple[float, float] | None = None  # first and last load of a moving one, which has no latencies here
    inconclusive: str | None = None  # why the figures are inconclusive
    variant: str | None = None
    pass_number: int | None = None


class SummarySearch(msgspec.Struct, frozen=True):
    """What a search found."""

    kind: str
    by: str
    found: float | None
    low: float | None
    high: float | None
    resolved: bool
    why: str


class QuoteProblem(msgspec.Struct, frozen=True):
    """A rule that the figures break."""

    rule: str  # stable, for scripts: `few-requests`
    evidence: str
    remedy: str


class Quote(msgspec.Struct, frozen=True):
    """Every rule is in one of the three: broken, not checked for lack of evidence, or kept."""

    fit: bool  # no rule is broken
    problems: tuple[QuoteProblem, ...]
    not_checked: dict[str, str]  # why, by rule
    kept: tuple[str, ...]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    schema: Literal["vramp.summary/1"] = SUMMARY_SCHEMA
    vramp_version: str
    measured_by: str | None  # the other tool that made the result; null for vramp
    run_id: str
    kind: Literal["load", "monitor"]
    started_at: str | None  # null if another tool's file has no date
    finished_at: str | None
    state: RunState
    reason: str
    profile: str  # its name
    model: str
    hardware: str  # in words
    system: SummarySystem
    provenance: SummaryProvenance
    start: ServerStart | None  # what the server said of its start; null if nothing is known
    workload: SummaryWorkload
    client: SummaryClient
    stages: tuple[StageSummary, ...]
    search: SummarySearch | None
    verdicts: tuple[Verdict, ...]  # on the run and its GPUs; of GPUs with the same verdict, one line
    reference: str | None  # the publication that `published` is of
    conditions: dict[str, bool | None]  # whether each of the publication's conditions is the same; null is unknown
    diagnosis: str | None  # why the server died, if it did
    quote: Quote | None  # whether the figures can be quoted; null if nothing was measured under a constant load


if __name__ == "__main__":
    SUMMARY_SCHEMA_PATH.write_text(json_schema(RunSummary, SUMMARY_SCHEMA), encoding="utf-8")
