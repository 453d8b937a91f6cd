"""The parts of a profile, frozen and validated: each names its keys, their defaults and what they mean."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loadgen.profile.lengths import LengthsText
from loadgen.profile.plan import PlanSettings
from loadgen.profile.slo import Slo, slo_problem
from loadgen.profile.values import (
    BaseUrl,
    Concurrencies,
    Concurrency,
    Rate,
    Rates,
    Scalar,
    Seconds,
    Tokens,
    Warmup,
)
from loadgen.profile.workload import ArrivalText, Prefix, RatePoints, Turns
from loadgen.searches import SEARCHES
from loadgen.vendors import Platform, TelemetryMode

_FIGURE = re.compile(
    r"(ttft|tpot|itl|e2e)_(mean|p[0-9]{1,3})_ms|normalized_mean_ms"
    r"|requests_per_(s|min)|(input|output|total)_tokens_per_s|duration_s|completed|(input|output)_tokens"
)


_OWN_FIELDS = frozenset(
    {"model", "prompt", "messages", "input", "stream", "stream_options", "store", "temperature", "ignore_eos"}
    | {"max_tokens", "max_completion_tokens", "max_output_tokens"}
)
"""Fields of a request that vramp writes itself."""
_MANY_ANSWERS = frozenset({"n", "best_of", "use_beam_search", "background"})
"""Fields that make an answer something else than one stream."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Docker(_Part):
    """The container in which engine `docker` runs the server; each key is a flag of `docker run`."""

    image: str
    serve: list[str] = ["vllm", "serve"]
    """What the image executes before the model; empty where its entry point is the server."""
    executable: str = "docker"
    """A name on PATH or a path; podman takes the same flags."""
    devices: list[str] = []
    """`["/dev/kfd", "/dev/dri"]` give an AMD GPU to the container."""
    gpus: str | None = None
    """`"all"` gives it NVIDIA's."""
    groups: list[str] = []
    ipc: str | None = None
    network: str = "host"
    """Any other network publishes the port on the host's loopback."""
    mounts: list[str] = []
    """`host:container[:ro]`; `~` is expanded."""
    shm_size: str | None = None
    capabilities: list[str] = []
    security_options: list[str] = []


class Server(_Part):
    """Where the server is, or how to start it."""

    engine: Literal["vllm", "docker", "simulator", "attach"]
    """`attach` is only spoken to; the others are started and stopped by vramp."""
    platform: Platform | None = None
    """What the flags were chosen for; None takes what the box has."""
    model: str | None = None
    """A path or hub name for `vllm` and `docker`; the served name for `attach` and `simulator` (default: the first)."""
    served_model_name: str | None = None
    url: BaseUrl | None = None
    """`attach` only: `http[s]://host[:port][/prefix]`, with or without `/v1`."""
    urls: list[BaseUrl] = []
    """`attach` only, in place of `url`: several servers of one kind; the streams are spread over them in turn."""
    command: str = "vllm"
    """`vllm` only: the executable, a name on PATH or a path, or the folder of its Python environment."""
    docker: Docker | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    instances: int = Field(default=1, ge=1, le=64)
    """Servers of this kind, each on its own devices and port; the streams are spread over them."""
    args: dict[str, Scalar | list[Any] | dict[str, Any]] = {}
    """Flags of the server: `max-model-len = 8192`; true is `--flag`, false `--no-flag`, a table is JSON."""
    env: dict[str, str] = {}
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; the key itself never stands in a profile."""
    startup_timeout_s: Seconds = 1800.0
    stop_timeout_s: Seconds = 20.0
    on_exit: Literal["stop", "leave"] = "stop"
    """`leave` lets the server run on when vramp ends in order; `vramp stop` ends it later."""

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> Self:
        if self.engine == "attach":
            if self.url is None and not self.urls:
                raise ValueError('engine "attach" needs url = "http://host:port"')
            for url in self.attached:
                parts = urlsplit(url)
                if parts.scheme not in ("http", "https") or not parts.hostname:
                    raise ValueError(f"url must look like http://host:port, not {url!r}")
        elif self.url is not None or self.urls:
            raise ValueError(f'url is for engine "attach"; engine "{self.engine}" takes host and port')
        if self.engine in ("vllm", "docker") and self.model is None:
            raise ValueError(f'engine "{self.engine}" needs model = "path or name"')
        return self

    @property
    def attached(self) -> list[str]:
        """The base URLs of the servers that are only spoken to."""
        return self.urls if self.url is None else [self.url]

    @property
    def servers(self) -> int:
        return len(self.urls) or self.instances

    @model_validator(mode="after")
    def _urls_are_servers_of_their_own(self) -> Self:
        if self.url is not None and self.urls:
            raise ValueError("url names one server and urls several: give one of the two")
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError("urls names a server twice; each of them takes its share of the load once")
        if any("@" in urlsplit(url).netloc for url in self.urls):
            raise ValueError("urls holds a password; put the key into an environment variable, see api_key_env")
        return self

    @model_validator(mode="after")
    def _engine_has_nothing_of_another(self) -> Self:
        if (self.engine == "docker") != (self.docker is not None):
            wanted = "needs" if self.engine == "docker" else "has no use for"
            raise ValueError(f'engine "{self.engine}" {wanted} a table [server.docker] with the image')
        if self.engine == "attach" and self.instances > 1:
            raise ValueError('instances are servers that vramp starts; engine "attach" starts none')
        return self


class Cancel(_Part):
    """Clients that hang up."""

    share: float = Field(gt=0, le=1)
    """Of the streams, drawn from the seed."""
    after: Seconds
    """From the request on; a stream that is complete by then is complete."""


class Load(_Part):
    """The load of every stage that does not say otherwise."""

    endpoint: Literal["completions", "chat", "responses"] = "completions"
    isl: LengthsText = 256
    """Tokens of a prompt, or a distribution of them: see `loadgen.profile.lengths`."""
    osl: LengthsText = 128
    shapes: list[tuple[Tokens, Tokens]] = []
    """`[[1024, 8192], ...]`: ISL and OSL in pairs, each with every concurrency or rate, in place of `isl` and `osl`."""
    concurrency: Concurrencies = [8]
    rate: Rates = []
    """Requests a second, open loop; when set, `concurrency` is not used."""
    rate_points: RatePoints = []
    """`[[0, 1], ["60s", 10]]`: one open-loop stage whose rate goes in straight lines through (time, rate)."""
    arrival: ArrivalText = "poisson"
    """`poisson`, `constant`, `gamma:B`; `replay` takes the times of `data`, a trace."""
    max_concurrency: Concurrency | None = None
    """Open loop: no more streams than this at once; arrivals beyond it wait, and are sent late."""
    data: str | None = None
    """A file of prompts in place of made-up ones, or `sample`: see `loadgen.workload.records`."""
    data_format: Literal["sharegpt", "jsonl", "text", "trace"] | None = None
    """None looks at the file."""
    prefix: Prefix | None = None
    """`{ share = 0.5, count = 10 }`: prompts that begin alike."""
    turns: Turns | None = None
    """`{ count = 4, think = "2s" }`: closed loop in conversations."""
    passes: int = Field(default=1, ge=1, le=10)
    """More than 1 repeats each stage with the same prompts: a fresh prefix cache against a warm one."""
    requests: int | None = Field(default=None, ge=1)
    duration: Seconds | None = None
    """One of `requests` and `duration` bounds a stage; `requests` wins, neither means 10 requests a stream."""
    warmup: Warmup = 0
    """Requests (`16`) or time (`"5s"`) at the start of a stage that its statistics leave out."""
    first_wave: Literal["apart", "counted"] | None = None
    """Whether the requests that fill a closed loop all at once, into an idle engine, count like others, as in `vllm
    bench`; None is `counted` for a profile with a `[reference]`, so that it measures what was published, else `apart`.
    """
    models: dict[str, float] = {}
    """`{ "base" = 1, "adapter" = 3 }`: served models by weight; each request draws its own from the seed."""
    extra_body: dict[str, Any] = {}
    """Fields that go into every request as they are: `{ top_k = 20 }`."""
    cancel: Cancel | None = None
    """`{ share = 0.2, after = "500ms" }`: streams on which the client hangs up."""
    temperature: float = Field(default=0.0, ge=0)
    ignore_eos: bool = True
    timeout_s: Seconds = 600.0
    stall_timeout_s: Seconds = 300.0
    """A stream without an event for this long has failed; it must exceed the longest TTFT that is to be measured."""
    connect_timeout_s: Seconds = 10.0
    workers: int | None = Field(default=None, ge=1, le=64)
    realtime: bool = False
    """Workers run before all other processes, the engine's too, where they may (root, CAP_SYS_NICE) and while all of
    them take less than a quarter of the cores: for machines whose cores are full, at a price for the engine."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """None draws one, so that two runs do not share prompts; the result records it."""

    @model_validator(mode="after")
    def _models_have_weights(self) -> Self:
        for name, weight in self.models.items():
            if not name or not (0 < weight < math.inf):
                raise ValueError(
                    f"models: {name!r} = {weight:g}: expected the name of a served model and a weight above 0"
                )
        return self

    @model_validator(mode="after")
    def _extra_fields_are_extra(self) -> Self:
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


class StageSettings(_Part):
    """One `[[stages]]` entry: what differs from `[load]`."""

    label: str | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    rate_points: RatePoints = []
    arrival: ArrivalText | None = None
    isl: LengthsText | None = None
    osl: LengthsText | None = None
    requests: int | None = Field(default=None, ge=1)
    duration: Seconds | None = None
    warmup: Warmup | None = None

    @model_validator(mode="after")
    def _one_kind_of_load(self) -> Self:
        if self.concurrency is not None and self.rate is not None:
            raise ValueError("a stage has concurrency (closed loop) or rate (open loop), not both")
        return self


class ReferencePoint(_Part):
    """Published figures, and the load under which they were measured; what is None holds for every stage."""

    of: str = ""
    """Which hardware or column of the publication, where it has several."""
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    isl: Tokens | None = None
    osl: Tokens | None = None
    figures: dict[str, float]
    """By metric, statistic and unit: `ttft_p99_ms`, `output_tokens_per_s`, `requests_per_min`, `duration_s`."""

    @model_validator(mode="after")
    def _figures_are_metrics(self) -> Self:
        for name in self.figures:
            if _FIGURE.fullmatch(name) is None:
                raise ValueError(f"{name}: not a figure that vramp measures, such as ttft_p99_ms or requests_per_min")
        return self


class Reference(_Part):
    """What a publication measured with this recipe."""

    source: str
    notes: list[str] = []
    """What it says without giving the figures: ratios, and the conditions of its runs."""
    points: list[ReferencePoint] = []


class Profile(_Part):
    """One TOML file, validated."""

    name: str = Field(default="unnamed", pattern=r"^[A-Za-z0-9._+-]+$")
    description: str = ""
    server: Server
    telemetry: TelemetryMode = "auto"
    """What measures the GPUs; `sim` invents some for the simulator's load."""
    load: Load = Load()
    stages: list[StageSettings] = []
    plan: PlanSettings = PlanSettings()
    slo: Slo = Slo()
    """`ttft_p99 = "2s"` over a stage, `ttft = "2s"` for each of its streams, `failed = "1%"` of its requests."""
    reference: Reference | None = None

    @property
    def first_wave(self) -> Literal["apart", "counted"]:
        """What becomes of the streams that fill a closed loop all at once."""
        return self.load.first_wave or ("apart" if self.reference is None else "counted")

    @model_validator(mode="after")
    def _slo_names_are_metrics(self) -> Self:
        for name in self.slo.limits_ms:
            problem = slo_problem(name)
            if problem is not None:
                raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _plan_fits(self) -> Self:
        plan = self.plan
        if plan.search is not None and SEARCHES[plan.search].needs_limits and not self.slo.asks:
            raise ValueError(
                f'plan.search = "{plan.search}" has no limit to search for: give one, such as slo.ttft_p99 = "2s"'
            )
        named = next(iter(plan.kinds), None)
        if named is not None and self.stages:
            raise ValueError(f"plan.{named} and [[stages]] are two plans: give one of them")
        if named is not None and named != "ladder" and self.load.shapes:
            raise ValueError(f"plan.{named} goes by one shape: give load.isl and load.osl in place of load.shapes")
        return self
