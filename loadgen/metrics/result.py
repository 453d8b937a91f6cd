"""The JSON document of a run, schema `vramp.result/1`.

Numbers are numbers or null, never a text and never NaN; units are in the names. `result.schema.json` beside this file
is generated from these structs (`python -m loadgen.metrics.result`), and a test keeps the two the same.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadgen.metrics.canary import Answers, CanaryResult, CanaryStage
from loadgen.metrics.comparison import BaselineView, Precision, ReferenceResult
from loadgen.metrics.deltas import Summary
from loadgen.metrics.engine import EngineStage, OthersTraffic, TruthCheck
from loadgen.metrics.finding import Finding
from loadgen.metrics.hardware_result import Columns, ComputeResult, EnergyResult, GpuSeries, GpuStage
from loadgen.metrics.journal import DataFile, Diagnosis, RunState, SearchResult
from loadgen.metrics.samples import GpuStatic

SCHEMA: Literal["vramp.result/1"] = "vramp.result/1"
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
SCHEMA_PATH = Path(__file__).with_name("result.schema.json")


class RunEvent(msgspec.Struct, frozen=True):
    """Something that happened, on the run's time axis."""

    t_s: float
    kind: str  # `load` (the operator or the plan changed it), `pause`, `resume`, `server`, `error`, `note`, `clock`
    text: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line on the health of a GPU or the limit of a stage, with the numbers behind it."""

    id: str  # stable, for scripts: `throttled`, `pcie-below-maximum`, `kv-limited`
    subject: str  # `gpu 5`, `stage 3`
    text: str
    bad: bool = True  # it needs the operator; else it only explains


class CurvePoint(msgspec.Struct, frozen=True):
    """What was measured while so many streams were held, or at one step of a load that moves."""

    isl: int
    osl: int
    load: float  # the concurrency, or of an open loop the requests a second
    direction: Literal["", "up", "down"]  # where the load moved; empty where it stood
    held: float  # streams that were really open, on average
    measured_s: float
    output_tokens_per_s: float | None
    output_tokens_per_s_per_user: float | None
    ttft_ms: Summary
    itl_ms: Summary


class Limits(msgspec.Struct, frozen=True):
    """What a profile asks of each stage."""

    latency_ms: dict[str, float] = {}
    failed: float = 0.0  # the share of the scheduled requests that may fail or stay unsent
    goodput: float = 0.95  # the share of streams that must meet the limits that are set for each stream


class ClientResult(msgspec.Struct, frozen=True):
    """How the load was made, and whether its numbers may be trusted."""

    timestamps: Literal["kernel", "user"] | None  # none when nothing was read
    workers: int
    cpu_s: float  # all workers
    read_lag_ms: Summary
    """Now minus the kernel's stamp at the moment of one read in eight: the client's own delay; under TLS its loop's."""
    send_lag_ms: Summary
    """Sent minus intended; of requests that `max_concurrency` held back, minus the time when a slot was free."""
    coalesced_reads: float | None  # the share of reads that carried more than one output event
    unstamped_reads: int
    connects: int
    limited: bool
    why: str | None
    realtime: float | None = None
    """The share of the stages' time in which workers ran before all other processes; None in results of before."""


class Target(msgspec.Struct, frozen=True):
    """What a stage asked for."""

    concurrency: int | None
    rate: _NotNegative | None
    arrival: str | None


class Requests(msgspec.Struct, frozen=True):
    """What became of the requests of a stage.

    `scheduled = sent + unsent` and `sent = completed + failed + cancelled + unfinished + carried_over`. What results of
    before do not say is null.
    """

    sent: int
    completed: int
    failed: int
    unfinished: int
    warmup: int
    retried: int
    clock_steps: int
    errors: dict[str, int]  # by kind: those of `failed` and of `carried_failed`
    messages: dict[str, list[str]]  # the first messages of each kind of error
    cancelled: int = 0  # streams on which the client hung up as the profile wants it: neither completed nor failed
    models: dict[str, int] = {}  # requests sent, by their model; empty where there is only one
    scheduled: int | None = None
    unsent: int | None = None  # arrivals that were due and had not been sent when the stage ended
    unsent_longest_wait_s: float | None = None
    carried_over: int | None = None  # streams that were open when the stage ended
    carried_in: int | None = None  # streams of earlier stages that were open when it began
    carried_failed: int | None = None  # of those, the ones that failed in this stage
    lost: int | None = None  # of the unfinished, those whose worker died or fell silent: the client's failure


class Concurrency(msgspec.Struct, frozen=True):
    """Streams that were really open during the window."""

    mean: float | None
    peak: int  # the peaks of all workers added: exact in closed loop, an upper bound in open loop


class Tokens(msgspec.Struct, frozen=True):
    """Tokens that arrived in the measured window, those of a prompt with its first token.

    Of a stage that requests bound: the tokens of its completed streams.
    """

    input: int
    output: int
    source: Literal["usage", "events"]
    input_per_request: float | None = None
    """Those of the completed streams; null where the server does not say, and in results of before."""
    output_per_request: float | None = None


class Throughput(msgspec.Struct, frozen=True):
    """What arrived in the measured window, divided by its length."""

    requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    output_tokens_per_s_per_user: float | None  # divided by the mean concurrency
    output_tokens_per_s_per_gpu: float | None = None
    """Divided by the sockets that the server was given; None where they are not known."""
    total_tokens_per_s_per_gpu: float | None = None


class CostResult(msgspec.Struct, frozen=True):
    """What tokens cost at the price of an hour of each of the server's GPUs; no other price is in it."""

    gpu_hour_usd: float
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None  # prompts and answers alike
    why: str = ""  # why the two are not known although tokens came


SloVerdict = Literal["met", "missed", "unresolved"]


class SloCheck(msgspec.Struct, frozen=True):
    """One limit on a stage and how it was met."""

    limit_ms: float
    measured_ms: float | None
    """None where nothing was measured, or where failures and unsent arrivals are what the percentile falls on."""
    met: bool  # by the figures as they are
    verdict: SloVerdict | None = None  # with 95 % confidence; None in results of before, and so are the others
    missed: int | None = None
    """The streams that missed the limit: beyond it, failed, or never sent."""
    population: int | None = None  # those streams; without those that were still open at the end and within the limit
    needs: int | None = None  # while unresolved: so many more streams at least


class InstanceResult(msgspec.Struct, frozen=True):
    """One server's part in a stage that several shared; all parts add up to the stage."""

    url: str
    requests: Requests
    throughput: Throughput
    """Over the window of the whole stage, so that the parts add up; but for `output_tokens_per_s_per_user`."""
    latency_ms: dict[str, Summary]  # `ttft` and `tpot`
    engine: EngineStage | None
    answers: Answers | None = None


class Goodput(msgspec.Struct, frozen=True):
    """The streams that met every limit that is set for a stream."""

    limits_ms: dict[str, float]
    good: int
    determined: int  # streams that completed, failed, were never sent, or were beyond a limit when the stage ended
    share: float | None
    requests_per_s: float | None  # those of the requests a second that completed in the window
    wanted: float  # the share that the profile asks for
    met: bool
    verdict: SloVerdict | None = None  # with 95 % confidence; None in results of before
    needs: int | None = None  # while unresolved: so many more streams at least


class FailureCheck(msgspec.Struct, frozen=True):
    """How many requests failed or stayed unsent, beside the share that `slo.failed` allows."""

    count: int
    unsent: int  # of them
    scheduled: int
    allowed: float
    met: bool
    verdict: SloVerdict


class FirstWave(msgspec.Struct, frozen=True):
    """The streams that filled a closed loop, all at once."""

    streams: int
    counted: bool  # they are in the statistics of the stage, as in `vllm bench`; else only here
    ttft_ms: Summary | None  # none where they are counted


class StageResult(msgspec.Struct, frozen=True):
    """The numbers of one stage."""

    index: int
    label: str
    target: Target
    isl: int
    osl: int
    started_at: str
    duration_s: float
    measured_s: _NotNegative
    stop_reason: str
    requests: Requests
    concurrency: Concurrency
    tokens: Tokens
    throughput: Throughput
    latency_ms: dict[str, Summary]
    slo: dict[str, SloCheck]
    engine: EngineStage | None
    limited: bool  # the client could not do what was asked of it in this stage
    why: str | None
    instances: list[InstanceResult] = []  # each server's part, where there are several
    gpu: list[GpuStage] = []  # each GPU over the measured window
    energy: EnergyResult | None = None
    host: dict[str, float | None] = {}  # means over the measured window
    verdicts: list[Verdict] = []
    truth: TruthCheck | None = None  # client against engine; None where the engine's numbers are not known
    others: OthersTraffic | None = None  # beside ours on the engine; None where nobody can tell
    goodput: Goodput | None = None  # none without limits for each stream
    failures: FailureCheck | None = None  # none in results of before
    settled_s: float | None = None  # how long its transient took; None for a stage that is measured from a fixed moment
    inconclusive: str | None = None  # why its numbers say too little
    variant: str | None = None  # of the profile, on whose server it ran; None for a profile without any
    precision: Precision | None = None  # what its numbers are worth beside others; None where it was too short to tell
    baseline: BaselineView | None = None  # beside an earlier run, where one was named
    first_wave: FirstWave | None = None  # none where the load did not begin all at once, and in results of before
    tail_share: float | None = None
    """The share of the window in which fewer streams were open than asked, because no requests were left to send."""
    tpot_parts: int = 0  # how many values of `tpot` are of parts of streams
    carried_share: float | None = None
    """The streams carried over, of all that were sent: those that were long enough to outlive the stage."""
    e2e_inconclusive: str | None = None  # why E2E is not known, and what it would take
    curve: tuple[CurvePoint, ...] = ()  # by step, of a stage whose load moves
    pass_number: int | None = None  # from 1, of a stage that is repeated with the same prompts
    compute: ComputeResult | None = None  # None where the engine does not tell its operations
    cost: CostResult | None = None  # None without a price
    answers: Answers | None = None  # none where none was looked at, and in results of before
    canary: CanaryStage | None = None  # None where none was sent in this stage


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    schema: Literal["vramp.result/1"] = SCHEMA
    vramp_version: str
    run_id: str
    kind: Literal["load", "monitor"] = "load"  # `monitor`: nothing was sent in any stage
    started_at: str
    finished_at: str | None
    state: RunState
    reason: str
    profile: dict[str, Any]
    environment: dict[str, Any]
    client: ClientResult
    stages: list[StageResult]
    series: Columns
    """Columns over one time axis, `t_s`. Older rows of a long run are merged: then `t_s` is the first moment of each,
    a column `x` has the highest values and `x_min` the lowest (without `x_min` the two are equal everywhere)."""
    events: list[RunEvent]
    telemetry_meta: dict[str, Any] | None = None
    """What measured the GPUs, by vendor, what was tried before and why it failed."""
    gpus: list[GpuStatic] = []
    gpu_series: list[GpuSeries] = []  # each on the run's time axis, about once a second
    host_series: Columns = {}
    verdicts: list[Verdict] = []  # on the health of the GPUs over the run
    findings: list[Finding] = []  # of the preflight, the worst first
    diagnosis: Diagnosis | None = None  # why the server died, if it did
    reference: ReferenceResult | None = None
    data: DataFile | None = None  # where the prompts came from; None for synthetic ones, and in older results
    search: SearchResult | None = None
    curve: tuple[CurvePoint, ...] = ()
    """Against the streams held: all stages of one load together, however the load came there."""
    measured_by: str | None = None  # another tool, with its version, whose result this was read from
    definitions: dict[str, str] = {}  # how that tool measures, by latency, and `throughput`
    canary: CanaryResult | None = None  # None where none was sent


def json_schema() -> str:
    """The JSON Schema of a result."""
    schema = msgspec.json.schema(Result)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = SCHEMA
    for part in schema["$defs"].values():
        # Until Python 3.13 the indentation of the source is part of a docstring.
        part["description"] = inspect.cleandoc(part.get("description", ""))
    return json.dumps(_in_one_order(schema), indent=1, sort_keys=True) + "\n"


def _in_one_order(node: object) -> object:
    """With every `anyOf` sorted: in which order msgspec writes them depends on its version."""
    if isinstance(node, list):
        return [_in_one_order(part) for part in node]
    if not isinstance(node, dict):
        return node
    parts = {key: _in_one_order(part) for key, part in node.items()}
    choices = parts.get("anyOf")
    if isinstance(choices, list):
        parts["anyOf"] = sorted(choices, key=lambda part: json.dumps(part, sort_keys=True))
    return parts


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json_schema(), encoding="utf-8")
