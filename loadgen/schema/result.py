"""The JSON document of a run, schema `vramp.result/1`.

Numbers are numbers or null, never text or NaN; units are in the names. `result.schema.json` next to this file is
generated from these structs (`python -m loadgen.schema.result`), and a test keeps both in step.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from loadgen.format import setting, target
from loadgen.schema.bounds import Columns
from loadgen.schema.comparison import BaselineView, Precision, ReferenceResult
from loadgen.schema.deltas import Summary
from loadgen.schema.engine import EngineStage, OthersTraffic, TruthCheck
from loadgen.schema.finding import Finding, Verdict
from loadgen.schema.hardware_result import ComputeResult, EnergyResult, GpuSeries, GpuStage
from loadgen.schema.output import Answers, CanaryResult, CanaryStage
from loadgen.schema.samples import GpuStatic
from loadgen.schema.shared import (
    DataFile,
    Diagnosis,
    HostFacts,
    LoadKind,
    Placement,
    RunState,
    SearchResult,
    SloVerdict,
)
from loadgen.schema.start import Provenance, ServerResult

SCHEMA: Literal["vramp.result/1"] = "vramp.result/1"
RESULT = "result.json"  # in the folder of a run
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
SCHEMA_PATH = Path(__file__).with_name("result.schema.json")


class RunEvent(msgspec.Struct, frozen=True):
    """Something that happened, on the run's time axis."""

    t_s: float
    kind: str  # `load` (the operator or the plan changed it), `pause`, `resume`, `server`, `error`, `note`, `clock`
    text: str


class Hits(msgspec.Struct, frozen=True):
    """Shares of prompt tokens that hit the prefix cache, or would; None is unknown."""

    measured: float | None  # of completed requests, by the server's usage (vLLM: --enable-prompt-tokens-details)
    engine: float | None  # by the engine's counters: also of warm-up, of priming and of others' requests
    infinite: float | None  # in a cache without limit; computed from what the sessions sent
    pool: float | None  # in one of the size of the engine's KV cache
    pool_tokens: int | None  # that size, of all servers


class CurvePoint(msgspec.Struct, frozen=True):
    """What was measured while so many streams were held, or at one step of a moving load."""

    isl: int
    osl: int
    load: float  # the concurrency, or in open loop the requests a second
    direction: Literal["", "up", "down"]  # of a moving load; empty for a constant one
    held: float  # mean open streams
    measured_s: float
    output_tokens_per_s: float | None
    output_tokens_per_s_per_user: float | None
    ttft_ms: Summary
    itl_ms: Summary
    hits: Hits | None = None


class Tier(msgspec.Struct, frozen=True):
    """One of several levels of service."""

    title: str
    latency_ms: dict[str, float]
    failed: float = 0.0


class TierCheck(msgspec.Struct, frozen=True):
    """Whether a load met a tier."""

    tier: str
    load: float
    met: bool  # by the figures as they are; for a step of a moving load by ITL in place of TPOT, at their means
    verdict: SloVerdict  # with 95 % confidence; unresolved for a step of a moving load


class TierResult(msgspec.Struct, frozen=True):
    """The highest load that meets a tier, of those that were measured."""

    tier: str
    by: LoadKind
    found: float | None  # the highest that met it, below the lowest that did not
    low: float | None
    high: float | None
    """The highest load that met it and the lowest that missed it, each with 95 % confidence; None: there is none."""
    missed: float | None  # the lowest load that did not meet it, by the figures as they are
    met_above: float | None = None  # the highest load above that one that met it all the same

    @property
    def sure(self) -> bool:
        """Whether what was found holds with 95 % confidence."""
        if self.found is None or self.missed is None:
            return (self.found, self.missed) == (self.low, self.high)
        return self.low is not None and self.high is not None

    @property
    def measured(self) -> str:
        """By the figures as they are: `24 (16 to 32)`, unsure `24, not 32`; `below 8`, `64 or more`."""
        found, missed = setting(self.found), setting(self.missed)
        words = f"{found} ({setting(self.low)} to {setting(self.high)})" if self.sure else f"{found}, not {missed}"
        if self.missed is None:
            words = f"{found} or more"
        elif self.found is None:
            words = f"below {missed}"
        return words if self.met_above is None else f"{words}, but {setting(self.met_above)} met it"

    @property
    def words(self) -> str:
        return self.measured if self.sure else f"unknown; measured {self.measured}"


class Limits(msgspec.Struct, frozen=True):
    """A profile's limits on each stage."""

    latency_ms: dict[str, float] = {}
    failed: float = 0.0  # the share of the scheduled requests that may fail or stay unsent
    goodput: float = 0.95  # the share of streams that must meet the per-stream limits
    tiers: tuple[Tier, ...] = ()


class ClientResult(msgspec.Struct, frozen=True):
    """How the load was generated, and whether the client's figures can be trusted."""

    timestamps: Literal["kernel", "user"] | None  # None if nothing was read
    workers: int
    cpu_s: float  # all workers
    read_lag_ms: Summary
    """Delay from the kernel's stamp to the read, of one read in eight: the client's own delay; under TLS its loop's."""
    send_lag_ms: Summary
    """Sent minus intended; for requests that `max_concurrency` held back, minus the time when a slot was free."""
    coalesced_reads: float | None  # the share of reads that carried more than one output event
    unstamped_reads: int
    connects: int
    limited: bool
    why: str | None
    realtime: float | None = None
    """The share of the stages' time in which workers had realtime priority."""
    placement: Placement | None = None  # the workers' CPUs; None without workers


class Target(msgspec.Struct, frozen=True):
    """The load that a stage asked for."""

    concurrency: int | None
    rate: _NotNegative | None
    arrival: str | None
    moves: tuple[float, float] | None = None  # first and last load of a moving one; null for a constant load

    @property
    def load(self) -> float:
        """Streams of a closed loop, requests per second of an open one."""
        return float((self.rate if self.concurrency is None else self.concurrency) or 0.0)

    @property
    def words(self) -> str:
        """The load as a short name: `64`, `2.50/s`."""
        return setting(self.concurrency) if self.rate is None else f"{setting(self.rate)}/s"


class Requests(msgspec.Struct, frozen=True):
    """Outcomes of a stage's requests.

    `scheduled = sent + unsent` and `sent = completed + failed + cancelled + unfinished + carried_over + open`.
    """

    sent: int
    completed: int
    failed: int
    unfinished: int
    warmup: int
    retried: int
    clock_steps: int
    errors: dict[str, int]  # by kind, over `failed` and `carried_failed`
    messages: dict[str, list[str]]  # the first messages of each kind of error
    cancelled: int = 0  # the client hung up as the profile asks: neither completed nor failed
    models: dict[str, int] = {}  # requests sent by model; empty if there is only one
    finish_reasons: dict[str, int] = {}  # of completed requests; `none` if the server gave none
    scheduled: int | None = None
    unsent: int | None = None  # arrivals that were due but not sent when the stage ended
    unsent_longest_wait_s: float | None = None
    carried_over: int | None = None  # streams that were open when the stage ended
    carried_in: int | None = None  # streams of earlier stages that were open when it began
    carried_failed: int | None = None  # those of them that failed in this stage
    reasoned: int | None = None  # streams whose output began with reasoning; the rest may reason unnoticed
    unanswered: int | None = None  # completed ones of these that ended before an answer
    lost: int | None = None  # unfinished streams whose worker died or fell silent: the client's failure
    open: int | None = None  # on their way: in `sent`, and in none of its parts yet; null for a host's or server's part

    @property
    def failed_in_all(self) -> int:
        """Requests that failed in this stage, whichever stage had sent them."""
        return self.failed + (self.carried_failed or 0)


class OpenLoop(msgspec.Struct, frozen=True):
    """Open requests of an open loop while arrivals were due; the time after the last arrival is in none of it."""

    due_s: float  # how long arrivals were due
    open_halfway: float  # mean of the open requests in the fifth of that time around its middle
    open_at_end: float  # mean in its last fifth
    behind: bool | None  # whether more queued up than chance explains; null if its requests last too long to tell

    def words(self, rate: float) -> str:
        """How many requests a second were answered meanwhile, of how many."""
        answered = rate - (self.open_at_end - self.open_halfway) / (0.4 * self.due_s)
        return (
            f"{answered:.1f} of {rate:g} requests/s were answered while they arrived: "
            f"{self.open_halfway:.0f} were open halfway, {self.open_at_end:.0f} at the end"
        )


class Bursts(msgspec.Struct, frozen=True):
    """Reads in the measured window that returned several output events of a stream at once."""

    share: float  # of the output events that came in bursts
    first_share: float  # of the first tokens that came in bursts
    events_at_once: float  # in a burst, mean
    gap_ms: float  # mean time since the stream's previous output, or since it was sent
    overdue: float
    """Share of the streams' time, or of their TTFT, in which output was overdue if events were evenly spaced before."""
    client_busy: float | None  # share of the time in which vramp's workers were busy or waited for a core
    held_back: bool | None
    """Whether something before the client held the output back (`stream-buffered`); null where it is not known."""


class Concurrency(msgspec.Struct, frozen=True):
    """Streams that were open during the window."""

    mean: float | None
    peak: int  # the sum of the workers' peaks: exact in closed loop, an upper bound in open loop


class Tokens(msgspec.Struct, frozen=True):
    """Tokens that arrived in the measured window, those of a prompt with its first token.

    For a stage bounded by requests: the tokens of its completed streams.
    """

    input: int | None  # null if the server reports no prompt tokens
    output: int
    source: Literal["usage", "events"]
    input_per_request: float | None = None  # mean over `input_requests`, which need not be those of `input`
    output_per_request: float | None = None  # mean over completed streams
    input_requests: int | None = None  # completed streams whose prompt tokens are known
    hidden: int = 0  # tokens of completed streams that the server generated, but did not stream


class Throughput(msgspec.Struct, frozen=True):
    """What arrived in the measured window, divided by its length."""

    requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    output_tokens_per_s_per_user: float | None  # divided by the mean concurrency
    output_tokens_per_s_per_gpu: float | None = None
    """Divided by the sockets that the server was given; None if they are unknown."""
    total_tokens_per_s_per_gpu: float | None = None
    output_tokens_per_s_p25: float | None = None
    """The speed of single streams after their first token, which a quarter of them does not reach: 1/P75 of TPOT."""
    cached_input_tokens_per_s: float | None = None  # by the share that the server's usage gives; None if it does not
    cached_input_tokens_per_s_per_gpu: float | None = None
    uncached_input_tokens_per_s_per_gpu: float | None = None


class SessionsResult(msgspec.Struct, frozen=True):
    """The sessions of a stage; a session belongs to no stage, and may begin in one and end in another."""

    live: float | None  # mean
    context_tokens: float | None  # mean of the tokens in the contexts of all live sessions
    begun: int
    begun_inside: int  # of these, at a point within the recording
    finished: int
    cut: int  # stopped because fewer were wanted
    over_context: int  # ended before a request longer than the context
    failed: int  # ended by a request that failed
    lost: int  # with their worker
    primed: int  # requests for one token that bring the context of a session begun inside; in no other figure
    gaps_cut: int  # pauses that were cut short
    skipped_s: float  # by how much in all
    e2e_interactivity: float | None
    """Tokens per second that all but a tenth of the requests reach, from their sending: 1/P90 of E2E per token."""


class CostResult(msgspec.Struct, frozen=True):
    """The cost of tokens at the price of an hour of each of the server's GPUs; no other cost is included."""

    gpu_hour_usd: float
    usd_per_million_output_tokens: float | None
    usd_per_million_total_tokens: float | None  # prompts and answers
    why: str = ""  # why both are unknown although tokens arrived


class SloCheck(msgspec.Struct, frozen=True):
    """One limit on a stage, and whether it was met."""

    limit_ms: float
    measured_ms: float | None
    """None if nothing was measured, or if the percentile falls on failures and unsent arrivals."""
    met: bool  # by the figures as they are
    verdict: SloVerdict | None = None  # with 95 % confidence
    missed: int | None = None
    """The streams that missed the limit: beyond it, failed, or never sent."""
    population: int | None = None  # all streams judged: without those still open at the end and within the limit
    needs: int | None = None  # while unresolved: at least so many more requests

    @property
    def is_empty(self) -> bool:
        """Whether there was no stream to judge."""
        return self.population == 0


class InstanceResult(msgspec.Struct, frozen=True):
    """One server's part in a shared stage; all parts add up to the stage."""

    url: str
    requests: Requests
    throughput: Throughput
    """Over the window of the whole stage, so that parts add up, except `output_tokens_per_s_per_user`."""
    latency_ms: dict[str, Summary]  # `ttft` and `tpot`
    engine: EngineStage | None
    answers: Answers | None = None


class HostResult(msgspec.Struct, frozen=True):
    """One host's part in a stage of a cluster; all parts add up to the stage."""

    name: str
    workers: int  # alive at the end
    share: float | None  # of the requests sent
    held: float | None  # mean number of open streams
    requests: Requests
    throughput: Throughput
    """Over the window of the whole stage, so that parts add up, except `output_tokens_per_s_per_user`."""
    latency_ms: dict[str, Summary]  # `ttft` and `tpot`
    cpu_share: float | None  # of one core for each worker
    read_lag_p99_ms: float | None
    send_lag_p99_ms: float | None
    rss_mib: float
    offset_ms: float
    """Its CLOCK_MONOTONIC less the operator's, at the end of the stage."""
    uncertainty_ms: float  # half the width of the interval that surely holds the offset
    rtt_ms: float  # of the last message there and back
    lost: bool = False  # it was lost in this stage
    why: str | None = None  # why it was the limit; None if it was not


class Goodput(msgspec.Struct, frozen=True):
    """The streams that met every per-stream limit."""

    limits_ms: dict[str, float]
    good: int
    determined: int  # streams that completed, failed, were never sent, or exceeded a limit by the end of the stage
    share: float | None
    requests_per_s: float | None  # good ones among the requests that completed in the window
    wanted: float  # the share that the profile asks for
    met: bool
    verdict: SloVerdict | None = None  # with 95 % confidence
    needs: int | None = None  # while unresolved: at least so many more requests


class FailureCheck(msgspec.Struct, frozen=True):
    """How many requests failed or stayed unsent, against the share that `slo.failed` allows."""

    count: int
    unsent: int  # how many of them were unsent
    scheduled: int
    allowed: float
    met: bool
    verdict: SloVerdict


class Judgement(msgspec.Struct, frozen=True):
    """The judgement on all limits of a stage."""

    slo: dict[str, SloCheck]
    goodput: Goodput | None
    failures: FailureCheck

    @property
    def verdict(self) -> SloVerdict:
        """With confidence; `unresolved` if there are no limits."""
        verdicts = [check.verdict for check in self.slo.values()]
        verdicts += [self.goodput.verdict] if self.goodput is not None else []
        if verdicts or self.failures.allowed:
            verdicts.append(self.failures.verdict)
        if "missed" in verdicts:
            return "missed"
        return "met" if verdicts and all(verdict == "met" for verdict in verdicts) else "unresolved"


class FirstWave(msgspec.Struct, frozen=True):
    """The streams that filled a closed loop at once."""

    streams: int
    counted: bool  # whether they are in the statistics of the stage, as in `vllm bench`; otherwise only here
    ttft_ms: Summary | None  # None if they are counted


class StageHardware(msgspec.Struct, frozen=True):
    """The hardware figures of a stage."""

    gpu: list[GpuStage] = []
    energy: EnergyResult | None = None
    compute: ComputeResult | None = None
    host: dict[str, float | None] = {}
    verdicts: list[Verdict] = []
    full_host_share: float | None = None  # of the time in which the host had no core to spare; None if unknown
    sockets: int = 0  # on which the server computed; 0 if unknown


class StageResult(msgspec.Struct, frozen=True):
    """The figures of one stage."""

    index: int
    label: str
    target: Target
    isl: int
    osl: int
    started_at: str
    duration_s: float
    measured_s: _NotNegative
    stop_reason: str  # empty while it runs, in a snapshot
    requests: Requests
    concurrency: Concurrency
    tokens: Tokens
    throughput: Throughput
    latency_ms: dict[str, Summary]
    slo: dict[str, SloCheck]
    engine: EngineStage | None
    limited: bool  # the client was the limit
    why: str | None
    instances: list[InstanceResult] = []  # each server's part, if there are several
    hosts: list[HostResult] = []  # each host's part, if the load came from a cluster
    gpu: list[GpuStage] = []  # each GPU over the measured window
    energy: EnergyResult | None = None
    host: dict[str, float | None] = {}  # means over the measured window
    verdicts: list[Verdict] = []
    truth: TruthCheck | None = None  # client against engine; None if the engine's figures are unknown
    others: OthersTraffic | None = None  # others' traffic on the engine; None if unknown
    goodput: Goodput | None = None  # None without per-stream limits
    failures: FailureCheck | None = None  # None in another tool's
    settled_s: float | None = None  # duration of its transient; None if it was measured from a fixed moment
    inconclusive: str | None = None  # why its figures are inconclusive
    variant: str | None = None  # the profile's variant that the server ran; None without variants
    precision: Precision | None = None  # of its figures, for comparisons; None if it was too short to tell
    baseline: BaselineView | None = None  # compared with an earlier run, if one was named
    first_wave: FirstWave | None = None  # None if the load did not begin at once
    tail_share: float | None = None
    """The share of the window in which fewer streams were open than asked for, because requests had run out."""
    open_loop: OpenLoop | None = None  # null for a closed loop, a load that moves, a trace
    tpot_parts: int = 0  # how many values of `tpot` are of parts of streams
    carried_share: float | None = None
    """Streams carried over, as a share of those sent: the ones long enough to outlive the stage."""
    e2e_inconclusive: str | None = None  # why E2E is unknown, and what it would take
    e2e_needs_s: float | None = None
    """How much longer it must be measured to know E2E; 0 if E2E is known, null if that cannot be said."""
    curve: tuple[CurvePoint, ...] = ()  # by step, for a moving load
    pass_number: int | None = None  # from 1, for a stage that is repeated with the same prompts
    compute: ComputeResult | None = None  # None if the engine does not report its operations
    cost: CostResult | None = None  # None without a price
    answers: Answers | None = None  # None if none was sampled
    tiers: tuple[TierCheck, ...] = ()  # by tier, then by step of a moving load
    sessions: SessionsResult | None = None  # None where the load is not sessions
    hits: Hits | None = None  # None if nothing is known of them
    bursts: Bursts | None = None  # None if every read returned one output event at most

    @property
    def number(self) -> int:
        """Its number on the screen, from 1."""
        return self.index + 1

    @property
    def running(self) -> bool:
        return not self.stop_reason

    @property
    def load_words(self) -> str:
        return target(self.target.concurrency, self.target.rate, in_sessions=self.sessions is not None)

    @property
    def doubt(self) -> str | None:
        """Why its figures are not the engine's under its load; None if nothing speaks against them."""
        if self.limited:
            return f"client-limited: {self.why}"
        if self.bursts is not None and self.bursts.held_back:
            return "stream-buffered: something between the engine and vramp gathered the streams"
        return None if self.inconclusive is None else f"inconclusive: {self.inconclusive}"

    canary: CanaryStage | None = None  # None if none was sent in this stage


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
    """Columns over one time axis, `t_s`. Older rows of a long run are merged: then `t_s` is the first moment of each, a
    column `x` has the highest values and `x_min` the lowest (without `x_min` they are equal everywhere)."""
    events: list[RunEvent]
    telemetry_meta: dict[str, Any] | None = None
    """What measured the GPUs, by vendor, and what was tried before and why it failed."""
    gpus: list[GpuStatic] = []
    gpu_series: list[GpuSeries] = []  # each on the run's time axis, about once a second
    host_series: Columns = {}
    hosts: list[HostFacts] = []  # from which the load came; empty if it came from this machine
    verdicts: list[Verdict] = []  # on the health of the GPUs over the run
    findings: list[Finding] = []  # of the preflight, most severe first
    server: ServerResult | None = None  # None without a server, and if nothing is known of its start
    provenance: Provenance | None = None  # null without a server, and in another tool's
    diagnosis: Diagnosis | None = None  # why the server died, if it did
    reference: ReferenceResult | None = None
    data: DataFile | None = None  # where the prompts came from; None for synthetic ones
    search: SearchResult | None = None
    tiers: tuple[TierResult, ...] = ()  # for each tier of the profile; empty without any
    curve: tuple[CurvePoint, ...] = ()
    """By streams held: all stages with one load combined, whatever led to it."""
    measured_by: str | None = None  # the other tool and version that made this result; None for vramp
    definitions: dict[str, str] = {}  # that tool's definitions, by latency, and `throughput`
    canary: CanaryResult | None = None  # None if none was sent

    @property
    def is_live(self) -> bool:
        """Whether its run still runs; the result that a killed run leaves has no end either, but has failed."""
        return self.state == "stopped" and self.finished_at is None


def json_schema(document: type[msgspec.Struct] = Result, title: str = SCHEMA) -> str:
    """The JSON Schema of a document, a line for each property of a definition, so that a change is a short diff."""
    schema = msgspec.json.schema(document)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = title
    for part in schema["$defs"].values():
        # Before Python 3.13, docstrings keep their source indentation.
        part["description"] = inspect.cleandoc(part.get("description", ""))
    text = json.dumps(_in_one_order(schema), indent=1, sort_keys=True)
    deeper = re.compile(r"\n {5,}|\n {4}(?=[}\]])")
    return deeper.sub("", text) + "\n"


def _in_one_order(node: object) -> object:
    """The schema with every `anyOf` sorted, because msgspec's order depends on its version."""
    if isinstance(node, list):
        return [_in_one_order(part) for part in node]
    if not isinstance(node, dict):
        return node
    parts = {key: _in_one_order(part) for key, part in node.items()}
    choices = parts.get("anyOf")
    if isinstance(choices, list):
        parts["anyOf"] = sorted(choices, key=lambda part: json.dumps(part, sort_keys=True))
    return parts


def met_limits(stage: Judgement | StageResult) -> bool | None:
    """Whether a stage met every limit, by the figures as they are; None without limits."""
    checks = [*(check.met for check in stage.slo.values()), *([stage.goodput.met] if stage.goodput is not None else [])]
    failures = stage.failures
    if failures is not None and (checks or failures.allowed):
        checks.append(failures.met)
    return all(checks) if checks else None


def is_known(stage: Judgement | StageResult) -> bool:
    """Whether anything has been measured that a limit applies to."""
    known = [not check.is_empty for check in stage.slo.values()]
    known += [stage.goodput.determined > 0] if stage.goodput is not None else []
    return any(known) if known else stage.failures is not None and stage.failures.scheduled > 0


if __name__ == "__main__":
    SCHEMA_PATH.write_text(json_schema(), encoding="utf-8")
