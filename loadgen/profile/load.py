"""The tables of a profile that say what is sent and when: `[load]`, `[[stages]]`, `[plan]` and what belongs to them.

Each field has its description next to it; `docs/profile.md` is made from these (`python -m loadgen.profile.reference`).
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from loadgen.profile.values import (
    MAX_CONCURRENCY,
    AddressText,
    ArrivalText,
    Concurrencies,
    Concurrency,
    CpusText,
    Fraction,
    HeaderName,
    HeaderText,
    Held,
    Ladder,
    LengthsText,
    Moment,
    ProfileTable,
    Rate,
    RatePoints,
    Rates,
    Requests,
    Seconds,
    Tokens,
    Warmup,
)
from loadgen.searches import PLAN_KEYS, SEARCHES, SearchName

# Fields of a request that vramp writes itself, and those that make an answer something else than one stream.
_OWN_FIELDS = """
    model prompt messages input stream stream_options store temperature ignore_eos
    max_tokens max_completion_tokens max_output_tokens
""".split()
_MANY_ANSWERS = ("n", "best_of", "use_beam_search", "background")


class Prefix(ProfileTable):
    """Prompts that share a beginning, to load the prefix cache."""

    share: float = Field(gt=0, lt=1)
    """The share of each prompt's tokens, at its start, that is a common prefix."""
    count: int = Field(default=1, ge=1, le=1_000_000)
    """How many distinct prefixes there are; the seed picks one for each prompt."""


class Turns(ProfileTable):
    """Closed loop in conversations: each turn repeats what was said before."""

    count: int = Field(ge=2, le=1000)
    """Requests in a conversation."""
    think: Seconds | None = None
    """The time from an answer to the next question; default: none."""


class Trace(ProfileTable):
    """How much of a trace is sent, and how fast. Rows are always sent in their order, at any speed."""

    start: Moment = 0.0
    """Where in the trace to begin, counted from its first row."""
    end: Seconds | None = None
    """Where to stop, counted from its first row; nothing after it is read."""
    speed: float = Field(default=1.0, ge=0.001, le=1_000_000)
    """2 replays an hour of the trace in half an hour, 0.5 in two."""
    block_size: int = Field(default=512, ge=1, le=1_000_000)
    """Tokens per block that `hash_ids` names: 512 in Mooncake's traces."""
    max_length: Tokens | None = None
    """Rows with more tokens than this, prompt and answer together, are left out and counted."""

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end: {self.end:g} s is not after start, {self.start:g} s")
        return self


class SessionSettings(ProfileTable):
    """Sessions of agents in place of single prompts; `concurrency` is then the number of live sessions.

    A session keeps its place through its pauses until its last request is answered; then the next one begins. Requests
    in flight may be more or fewer; `load.max_concurrency` limits them. [Sessions](sessions.md) explains it.
    """

    data: str
    """A file, or a folder of files, of recorded sessions: AgentX's format (weka), Mooncake's rows with `session_id`, or
    OpenTelemetry's GenAI spans. Or `sample`, 100 generated sessions that are the same everywhere, or `generated`,
    drawn from the seed."""
    scale: float = Field(default=1.0, ge=0.001, le=100)
    """Multiplies all lengths of generated sessions: 0.1 for a model with a short context."""
    block_size: int = Field(default=512, ge=1, le=1_000_000)
    """Tokens per block that `hash_ids` names in Mooncake's rows; the other formats say it or have none."""
    max_gap: Seconds | None = None
    """Longer pauses between an answer and the next request are cut to this. Default: as recorded."""
    max_context: Tokens | None = None
    """A session ends before its first request with more tokens than this, prompt and answer together."""
    start: Literal["inside", "beginning"] = "inside"
    """Where the first sessions begin. `inside`: at a point drawn from their time, once the contexts of that point are
    in the cache, which takes a request for one token and is not measured. Later ones always begin with their first
    request."""
    start_between: tuple[Fraction, Fraction] = (0.0, 1.0)
    """`[0.25, 0.75]`: the shares of a session's time between which `inside` draws the point."""
    history: Literal["recorded", "server"] = "recorded"
    """What later requests repeat as answers: synthetic text of the recorded length, or what the server answered
    (endpoint `chat` or `responses`), which is another load."""
    salt: Literal["play", "session"] = "play"
    """What has prompts of its own: every play of a session, or every session, so that it finds in the cache what is
    left of its last play."""
    common_prefix: int = Field(default=0, ge=0, le=10_000_000)
    """Tokens with which the prompts of all sessions begin, such as those of the system prompt and the tools."""

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        first, last = self.start_between
        if first > last:
            raise ValueError(f"start_between: {first:g} is above {last:g}")
        return self


class Cancel(ProfileTable):
    """Clients that hang up before their answer is complete."""

    share: float = Field(gt=0, le=1)
    """The share of streams on which the client hangs up, drawn from the seed."""
    after: Seconds
    """When it hangs up, counted from the request; a stream that has finished by then counts as complete."""


class Headers(ProfileTable):
    """HTTP headers of every request, and those that tell a router which requests belong together.

    A session is a conversation of `turns`, one agent of `sessions`, or a single request.
    """

    static: dict[HeaderName, HeaderText] = {}
    """`{ X-Tenant = "bench" }`: sent as they are. Values under a name like `X-Api-Key` are masked."""
    session: HeaderName | None = None
    """The name of the header that holds the session's id: `X-Session-ID`."""
    parent: HeaderName | None = None
    """The name of the header for the session that started this one, if one did: a sub-agent's parent."""
    root: HeaderName | None = None
    """The name of the header for the id that an agent and all its sub-agents have in common."""
    echo: HeaderName | None = None
    """A header of the server's answers, such as `x-session-token`, which the session's next requests repeat."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = (*self.static, self.session, self.parent, self.root, self.echo)
        lowered = [name.lower() for name in names if name is not None]
        twice = next((name for name in lowered if lowered.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"headers: {twice} is given twice")
        if "authorization" in (name.lower() for name in (self.session, self.parent, self.root, self.echo) if name):
            raise ValueError("headers: Authorization is for a key, in headers.static or server.api_key_env")
        return self


class Load(ProfileTable):
    """The load of every stage, unless the stage says otherwise."""

    endpoint: Literal["completions", "chat", "responses"] = "completions"
    """The API under `/v1` to measure."""
    isl: LengthsText = 256
    """Input sequence length: tokens per prompt, or a distribution of them (see Lengths)."""
    osl: LengthsText = 128
    """Output sequence length: tokens per answer, or a distribution of them."""
    shapes: list[tuple[Tokens, Tokens]] = []
    """`[[1024, 8192], ...]`: pairs of ISL and OSL, each with every concurrency or rate, in place of `isl` and `osl`."""
    concurrency: Concurrencies = [8]
    """Closed loop: how many streams to hold open; a list makes a stage of each. 0 is no load: nothing is sent, and the
    stage lasts for its `duration`, or until you end it."""
    rate: Rates = []
    """Open loop: requests per second; a list makes a stage of each. If set, `concurrency` is not used."""
    rate_points: RatePoints = []
    """`[[0, 1], ["60s", 10]]`: one open-loop stage whose rate moves in straight lines through (time, rate) points."""
    arrival: ArrivalText = "poisson"
    """Open loop: how the gaps between requests are distributed. With `gamma:B`, arrivals are burstier than Poisson for
    `B` below 1 and smoother above. `replay` takes the times of `data`, a trace."""
    max_concurrency: Concurrency | None = None
    """Open loop, and sessions: at most so many streams at once; what is due then waits and is sent late."""
    data: str | None = None
    """A file of prompts in place of generated ones, or `sample` for the conversations that ship with vramp. A trace has
    lengths and times: Mooncake's JSON lines, or the CSV of Azure or BurstGPT."""
    data_format: Literal["sharegpt", "jsonl", "text", "trace"] | None = None
    """How to read `data`; default: detected from the file."""
    trace: Trace | None = None
    """`{ start = "1h", end = "2h", speed = 2 }`: how much of a trace in `data` is sent, and how fast."""
    prefix: Prefix | None = None
    """`{ share = 0.5, count = 10 }`: prompts that share a beginning."""
    turns: Turns | None = None
    """`{ count = 4, think = "2s" }`: conversations, in closed loop."""
    sessions: SessionSettings | None = None
    """`{ data = "sample" }`: sessions of agents, recorded or generated; `concurrency` is the number of live ones."""
    passes: int = Field(default=1, ge=1, le=10)
    """More than 1 repeats each stage with the same prompts: a cold prefix cache against a warm one."""
    requests: Requests | None = None
    """Measured requests after which a stage ends, if it has not ended by `duration`. With neither, 10 requests per
    stream; 120 s for sessions, 30 s in open loop."""
    duration: Seconds | None = None
    """Measured time after which a stage ends."""
    warmup: Warmup = 0
    """Requests (`16`) or time (`"5s"`) at the start of a stage that its statistics leave out."""
    first_wave: Literal["apart", "counted"] | None = None
    """Whether the requests that fill a closed loop all at once, into an idle engine, count like all others, as in `vllm
    bench`. Default: `counted` for a profile with a `[reference]`, so that it measures what was published, otherwise
    `apart`."""
    models: dict[str, float] = {}
    """`{ "base" = 1, "adapter" = 3 }`: served models and their weights; the seed picks one for each request."""
    extra_body: dict[str, Any] = {}
    """Fields to add to the body of every request: `{ top_k = 20 }`."""
    headers: Headers = Headers()
    """`{ session = "X-Session-ID" }`: headers of the requests, and which of them name the session."""
    cancel: Cancel | None = None
    """`{ share = 0.2, after = "500ms" }`: streams on which the client hangs up."""
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The sampling temperature of every request."""
    ignore_eos: bool = True
    """Generate answers to their full length, even if the model would stop earlier."""
    timeout_s: Seconds = 600.0
    """A request that takes longer has failed."""
    stall_timeout_s: Seconds = 300.0
    """A stream without an event for this long has failed; must exceed the longest TTFT to be measured."""
    connect_timeout_s: Seconds = 10.0
    """A connection that takes longer to open has failed."""
    source_addresses: list[AddressText] = []
    """`["10.0.0.5", "10.0.0.6"]`: IP addresses of this machine from which connections are opened in turn. Each has
    local ports for about 28,000 connections to one server; a server on loopback may be reached from any of 127.0.0.1,
    127.0.0.2 and so on. Default: the system's choice."""
    workers: int | None = Field(default=None, ge=1, le=64)
    """Processes that drive the streams; default: chosen from the load and the number of cores."""
    cpus: CpusText | None = None
    """CPUs on which the workers run, numbered as in `taskset -c`; `all`: wherever vramp itself may. Default: off the
    CPUs that a server on this machine was given and off their SMT siblings; for a server on another machine, on the
    NUMA node of the network interface."""
    realtime: bool = False
    """Gives workers priority over all other processes, including the engine, where permitted (root, CAP_SYS_NICE) and
    while together they use less than a quarter of the cores. For machines with full cores, at some cost to the
    engine."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """What prompts, lengths and arrivals are drawn from. Default: a new one each time, so that two runs do not share
    prompts. The result records it."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for name, weight in self.models.items():
            if not name or not (0 < weight < math.inf):
                raise ValueError(f"models: {name!r} = {weight:g}: expected a served model's name and a weight above 0")
        for name in self.extra_body:
            if name in _OWN_FIELDS:
                raise ValueError(f"extra_body.{name}: is set by vramp, from the other keys of load")
            if name in _MANY_ANSWERS:
                raise ValueError(f"extra_body.{name}: vramp measures one streamed answer to a request")
        try:
            json.dumps(self.extra_body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra_body: cannot be written as JSON: {error}") from None
        return self


class StageSettings(ProfileTable):
    """One stage, given as differences from `[load]`. If there are any `[[stages]]`, only these run, in their order.

    A key without its own description means the same as in `[load]`.
    """

    label: str | None = None
    """The name of the stage; default: its load in words."""
    concurrency: Held | None = None
    """Closed loop: how many streams to hold open; 0 is no load."""
    rate: Rate | None = None
    """Open loop: requests per second."""
    rate_points: RatePoints = []
    arrival: ArrivalText | None = None
    isl: LengthsText | None = None
    osl: LengthsText | None = None
    requests: Requests | None = None
    duration: Seconds | None = None
    warmup: Warmup | None = None

    @model_validator(mode="after")
    def _one_kind_of_load(self) -> Self:
        if self.concurrency is not None and (self.rate is not None or self.rate_points):
            raise ValueError("a stage has concurrency (closed loop), or rate or rate_points (open loop), not both")
        return self


class Ramp(ProfileTable):
    """A load that rises or falls in steps: one stage, whose figures are reported per step."""

    start: Rate
    """The load of the first step."""
    end: Rate
    """The load of the last step."""
    over: Seconds
    """Time from the start of the first step to the end of the last."""
    steps: int = Field(default=10, ge=2, le=1000)
    """Number of steps, including the first and the last."""

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.start == self.end:
            raise ValueError(f"start and end are both {self.start:g}: a ramp goes from one load to another")
        return self


class PlanSettings(ProfileTable):
    """How the load changes: at most one of `ladder`, `ramp`, `soak` and `search`; otherwise the loads of `[load]`."""

    by: Literal["concurrency", "rate"] = "concurrency"
    """What the plan changes: the streams of a closed loop, or the requests per second of an open one."""
    ladder: Ladder | None = None
    """One stage after the other: `64` means 1, 2, 4, ... 64; a list is used as it is."""
    ramp: Ramp | None = None
    """`{ start = 1, end = 64, over = "2m", steps = 10 }`: a load that moves."""
    soak: Seconds | None = None
    """One stage of this length at the first load of `[load]`."""
    every: Seconds | None = None
    """Without load: a stage ends after this time and the next begins, for `load.duration` in all, or until you stop
    it."""
    search: SearchName | None = None
    """`slo`: the highest load that meets the limits; `knee`: the load beyond which throughput is not worth its
    latency."""
    least: Rate = 1.0
    """The lowest load of a search."""
    most: Rate = 1024.0
    """The highest load of a search."""
    precision: float = Field(default=0.05, ge=0.001, le=0.5)
    """How precise the answer of a search is, as a share of it; never finer than one stream."""
    goodput: float = Field(default=0.95, gt=0, lt=1)
    """The share of streams that must meet the limits set for each stream."""
    settle: Seconds | None = None
    """Measure a stage only once its transient is over, or after this time at the latest; a search uses 30 s by
    default."""
    completed: Requests | None = None
    """How many streams must be complete before a settled stage may end. A search requires 50 by default, and at the
    loads that bound its answer as many as its limits need."""
    saturation: Literal["end", "note"] = "end"
    """A timed open-loop stage whose queue grows without bound: `end` ends it, `note` only records the fact."""
    longest: Seconds = 120.0
    """The longest measured time of a stage that waits for `completed`; after that it is inconclusive."""

    @property
    def kinds(self) -> list[str]:
        """The keys that are plans of their own, of which there is at most one."""
        return [name for name in PLAN_KEYS if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _one_kind_within_bounds(self) -> Self:
        if len(self.kinds) > 1:
            raise ValueError(f"{' and '.join(self.kinds)} are plans of their own: give one of them")
        if self.completed is not None and self.settle is None and self.search is None:
            raise ValueError('completed is for settled stages: give settle too, such as settle = "30s"')
        if self.least > self.most:
            raise ValueError(f"least ({self.least:g}) is above most ({self.most:g})")
        return self

    @model_validator(mode="after")
    def _loads_are_of_their_kind(self) -> Self:
        if self.by == "rate":
            if self.search is not None and SEARCHES[self.search].refuses_rate:
                raise ValueError(f'search = "{self.search}" {SEARCHES[self.search].refuses_rate}')
            return self
        loads = [("least", self.least), ("most", self.most)]
        if isinstance(self.ladder, list):
            loads += [("ladder", value) for value in self.ladder]
        if self.ramp is not None:
            loads += [("ramp.start", self.ramp.start), ("ramp.end", self.ramp.end)]
        for name, value in loads:
            if value != round(value) or value > MAX_CONCURRENCY:
                kind = f"a concurrency, a whole number up to {MAX_CONCURRENCY}"
                raise ValueError(f'{name}: {value:g} is not {kind}; a rate needs by = "rate"')
        return self
