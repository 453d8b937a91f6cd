"""The whole of a profile and its other tables: `[server]`, `[slo]`, `[cluster]`, `[reference]` ...; each key described.

What is sent and when is in `loadgen.profile.load`.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_serializer, model_validator
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from loadgen.profile import BASE
from loadgen.profile.accept import Accept
from loadgen.profile.load import Load, PlanSettings, StageSettings
from loadgen.profile.values import (
    BaseUrl,
    Concurrency,
    Flags,
    Milliseconds,
    PageUrl,
    ProfileTable,
    Rate,
    Seconds,
    Share,
    Tokens,
    is_http_url,
    per_stream_limits_ms,
    slo_problem,
)
from loadgen.searches import SEARCHES
from loadgen.vendors import Platform, TelemetryMode

_USER_IN_URL = re.compile(r"([a-zA-Z][\w+.-]*:)?/*[^/?#]*@")
_FIGURE = re.compile(
    r"(ttft|tpot|itl|e2e)_(mean|p[0-9]{1,3})_ms|normalized_mean_ms"
    r"|requests_per_(s|min)|(input|output|total)_tokens_per_s|duration_s|completed|(input|output)_tokens|mfu_percent"
    r"|prefix_hit_percent"
)
_RATIO_OF = r"^((ttft|tpot|itl|e2e)_(mean|p50|p90|p95|p99|p999)_ms|(requests|(input|output|total)_tokens)_per_s)$"


OWN_HOSTS_KEYS = ("python", "listen", "port")
"""Keys for the hosts that vramp reaches by SSH; an existing scheduler has its own."""

_HOST = re.compile(
    r"(?:[^\s@:\[\]-][^\s@:\[\]]*@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
)
_SCHEDULER = re.compile(r"(?:tcp|tls)://(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


class Docker(ProfileTable):
    """The container in which engine `docker` runs the server; most keys are flags of `docker run`."""

    image: str
    """The image with its tag or digest."""
    serve: list[str] = ["vllm", "serve"]
    """What to execute in the image, before the model; empty if the entry point is already the server."""
    executable: str = "docker"
    """A name on PATH or a path; podman takes the same flags."""
    devices: list[str] = []
    """`["/dev/kfd", "/dev/dri"]` gives the container the AMD GPUs (`--device`)."""
    gpus: str | None = None
    """`"all"` gives the container the NVIDIA GPUs (`--gpus`)."""
    groups: list[str] = []
    """Groups that the container's user joins, such as `video` and `render` (`--group-add`)."""
    ipc: str | None = None
    """`"host"` shares the host's shared memory, which tensor parallelism needs (`--ipc`)."""
    network: str = "host"
    """With any other network, the port is published on the host's loopback."""
    mounts: list[str] = []
    """`host:container[:ro]`; `~` is expanded."""
    shm_size: str | None = None
    """The container's own shared memory, such as `"16g"` (`--shm-size`)."""
    ulimits: list[str] = []
    """`["memlock=-1"]` lets it lock the memory that InfiniBand and RoCE register (`--ulimit`)."""
    capabilities: list[str] = []
    """Kernel capabilities to add (`--cap-add`)."""
    security_options: list[str] = []
    """`["seccomp=unconfined"]`, for example, which AMD's images ask for (`--security-opt`)."""


class Server(ProfileTable):
    """Where the server is, or how to start it."""

    engine: Literal["vllm", "docker", "simulator", "attach", "none"]
    """`vllm`, `docker` and `simulator` are started and stopped by vramp. `attach` is a server that already runs; vramp
    only sends it requests. `none` is no server: only GPUs and host are watched."""
    platform: Platform | None = None
    """The platform that the flags were chosen for; default: the platform of this box."""
    model: str | None = None
    """A path or hub name for `vllm` and `docker`; the served name for `attach` and `simulator` (default: the first
    model served)."""
    served_model_name: str | None = None
    """The name under which the server offers the model; default: `model`."""
    url: BaseUrl | None = None
    """`attach` only: `http[s]://host[:port][/prefix]`, with or without `/v1`."""
    urls: list[BaseUrl] = []
    """`attach` only, in place of `url`: several servers of the same kind; streams are spread over them in turn."""
    command: str = "vllm"
    """`vllm` only: the executable, as a name on PATH or a path, or the folder of its Python environment."""
    docker: Docker | None = None
    """`docker` only: the container."""
    host: str = "127.0.0.1"
    """The address on which a server that vramp starts listens."""
    port: int = Field(default=0, ge=0, le=65535)
    """The port on which it listens; 0 takes a free one."""
    instances: int = Field(default=1, ge=1, le=64)
    """How many such servers to start, each on its own devices and port; streams are spread over them."""
    args: Flags = {}
    """Flags of the server: `max-model-len = 8192`; true becomes `--flag`, false `--no-flag`, a table JSON."""
    env: dict[str, str] = {}
    """Environment variables of the server."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; the key itself never appears in a profile."""
    startup_timeout_s: Seconds = 1800.0
    """If the server is not ready by then, the start has failed."""
    stop_timeout_s: Seconds = 20.0
    """If the server has not stopped by then, it is killed."""
    on_stall: Literal["nothing", "restart"] = "nothing"
    """`restart`: when a server that vramp started stalls, take the evidence and start it again."""
    on_exit: Literal["stop", "leave"] = "stop"
    """`leave` keeps the server running when vramp exits normally; `vramp stop` ends it later."""

    @property
    def attached(self) -> list[str]:
        """The base URLs of the servers that are only spoken to."""
        return self.urls if self.url is None else [self.url]

    @property
    def servers(self) -> int:
        return 0 if self.engine == "none" else len(self.urls) or self.instances

    @model_validator(mode="before")
    @classmethod
    def _urls_hold_no_password(cls, document: Any) -> Any:  # noqa: ANN401 - not checked yet
        """Refuse them here, because a refusal of the key itself would show its value."""
        if isinstance(document, dict):
            urls = document.get("urls")
            for url in [document.get("url"), *(urls if isinstance(urls, list) else [])]:
                if isinstance(url, str) and _USER_IN_URL.match(url):
                    raise ValueError(
                        "a user or password in url or urls, which vramp does not send: remove it; a server that wants "
                        "a key takes it from --api-key-env (server.api_key_env)"
                    )
        return document

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> Self:
        if self.engine == "attach":
            if self.url is None and not self.urls:
                raise ValueError('engine "attach" needs url = "http://host:port"')
            for url in self.attached:
                if not is_http_url(url):
                    raise ValueError(f"url must look like http://host:port, not {url!r}")
        elif self.url is not None or self.urls:
            raise ValueError(f'url is for engine "attach"; engine "{self.engine}" takes host and port')
        if self.engine in ("vllm", "docker") and self.model is None:
            raise ValueError(f'engine "{self.engine}" needs model = "path or name"')
        return self

    @model_validator(mode="after")
    def _urls_are_servers_of_their_own(self) -> Self:
        if self.url is not None and self.urls:
            raise ValueError("url names one server and urls several: give one of the two")
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError("urls names a server twice; each of them takes its share of the load once")
        return self

    @model_validator(mode="after")
    def _engine_has_nothing_of_another(self) -> Self:
        if (self.engine == "docker") != (self.docker is not None):
            wanted = "needs" if self.engine == "docker" else "has no use for"
            raise ValueError(f'engine "{self.engine}" {wanted} a table [server.docker] with the image')
        if self.engine == "attach" and self.instances > 1:
            raise ValueError('instances are servers that vramp starts; engine "attach" starts none')
        return self


class Slo(ProfileTable):
    """Limits that a run must meet. Every key except `failed` is a latency limit, a time with its unit.

    `ttft_p99 = "2s"` limits a statistic of each stage: `ttft`, `ttft_from_intended`, `tpot`, `itl` or `e2e`, with
    `_mean` or a percentile (`_p50`, `_p99`, `_p999`). `ttft = "2s"`, without a statistic, is a limit that each stream
    must meet (`ttft`, `tpot`, `itl`, `e2e`); `plan.goodput` sets the share of streams that must meet it.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Milliseconds] = Field(init=False)
    failed: Share = 0.0
    """The share of scheduled requests that may fail or stay unsent."""

    @property
    def limits_ms(self) -> dict[str, float]:
        return dict(self.__pydantic_extra__)

    @property
    def has_limits(self) -> bool:
        return bool(self.limits_ms or self.failed)

    @model_serializer(mode="wrap")
    def _as_it_is_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name != "failed" or value}


_TIER_NEEDS = 'a tier needs a limit, such as tokens_per_s = 30 or ttft_p95 = "10s"'


class TierLimits(Slo):
    """One of several levels of service; a run reports the highest load that meets each, by the stages that it has.

    `ttft_p95 = "10s"` limits a statistic of each stage, as in `[slo]`.
    """

    tokens_per_s: float | None = Field(default=None, gt=0, le=1_000_000, allow_inf_nan=False)
    """The speed that three of four streams must reach after their first token: `tpot_p75` is at most its inverse."""
    failed: Share = 0.0
    """The share of scheduled requests that may fail or stay unsent."""

    @property
    def limits_ms(self) -> dict[str, float]:
        speed = {} if self.tokens_per_s is None else {"tpot_p75": 1000 / self.tokens_per_s}
        return {**super().limits_ms, **speed}

    @model_validator(mode="before")
    @classmethod
    def _names_limits(cls, given: Any) -> Any:  # noqa: ANN401 - whatever the document has
        """Checked before the values are read, because what is no limit need not be a time."""
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields and slo_problem(name):
                raise ValueError(f"{name} is no limit; {_TIER_NEEDS}")
        return given

    @model_validator(mode="after")
    def _limits_stages(self) -> Self:
        alone = next(iter(per_stream_limits_ms(self.limits_ms)), None)
        if alone is not None:
            raise ValueError(f"tiers: {alone} limits each stream; give a statistic, such as {alone}_p95")
        if not self.limits_ms:
            raise ValueError(_TIER_NEEDS)
        return self


class Cost(ProfileTable):
    """What the GPUs cost; with it, a run reports the cost of a million tokens."""

    gpu_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Dollars per hour for one GPU; every GPU assigned to the server is paid for, busy or not."""
    gpus: int | None = Field(default=None, ge=1, le=1_000_000)
    """How many GPUs to count, if vramp cannot see them (a server on another machine) or if others are paid for, too."""


class Canary(ProfileTable):
    """Checks that the output is right, with short texts to score and prompts to answer, sent along with the load."""

    enabled: bool | None = None
    """Canaries appear in no figure of the load, but the engine does the work for them. Default: sent, but not by `vramp
    bench`, nor with a profile that has a `[reference]`, so that it measures what was published."""
    interval_s: Seconds = 2.0
    """The shortest time from one canary of a server to the next; longer with few streams: see [Output](output.md)."""


class Cluster(ProfileTable):
    """The machines that send the load, in place of this one: see [Several machines](cluster.md)."""

    hosts: list[str] = []
    """`["a", "user@b:2222"]`: reached by SSH with your keys and `~/.ssh/config`; vramp must be installed there."""
    scheduler: str | None = None
    """`"tcp://10.0.0.1:8786"`, in place of `hosts`: the scheduler of a Dask cluster that runs already."""
    python: str | None = None
    """The Python on the hosts that has vramp; default: the path of this one, or that of the host's `vramp`, or
    `python3`."""
    on_loss: Literal["go-on", "rebalance", "end"] = "go-on"
    """What happens when a host is lost: the others go on with their own shares, take over its share, or the run
    ends."""
    listen: str | None = None
    """The address of this machine at which the hosts connect back; default: the one from which SSH reached them."""
    port: int = Field(default=0, ge=0, le=65535)
    """The port at which they connect back; 0 takes a free one."""

    @property
    def remote(self) -> bool:
        return bool(self.hosts) or self.scheduler is not None

    @property
    def exposed(self) -> str | None:
        """Why others on the network can read and change what goes to the hosts; None if they cannot."""
        scheduler = self.scheduler or ""
        host = scheduler.removeprefix("tcp://").rpartition(":")[0].strip("[]")
        if not scheduler.startswith("tcp://") or host in ("localhost", "::1") or host.startswith("127."):
            return None
        return (
            f"{scheduler} is not encrypted: anybody on that network can read the API key and give orders to the hosts"
        )

    @model_validator(mode="after")
    def _hosts_or_a_scheduler(self) -> Self:
        if self.hosts and self.scheduler is not None:
            raise ValueError("hosts are reached by SSH, and scheduler is a cluster that runs already: give one of them")
        named = [key for key in OWN_HOSTS_KEYS if key in self.model_fields_set]
        if named and self.scheduler is not None:
            raise ValueError(f"{named[0]} is for hosts that vramp reaches by SSH; the scheduler has its own workers")
        if self.scheduler is not None and not _has_form(_SCHEDULER, self.scheduler):
            raise ValueError(f"scheduler must look like tcp://host:port or tls://host:port, not {self.scheduler!r}")
        for host in self.hosts:
            if not _has_form(_HOST, host):
                raise ValueError(f"a host must look like name, user@name or user@name:port, not {host!r}")
        twice = next((host for host in self.hosts if self.hosts.count(host) > 1), None)
        if twice is not None:
            raise ValueError(f"hosts names {twice} twice; each of them takes its share of the load once")
        return self


def _has_form(form: re.Pattern[str], text: str) -> bool:
    match = form.fullmatch(text)
    return match is not None and 1 <= int(match["port"] or 1) <= 65535


class ReferencePoint(ProfileTable):
    """Published figures, and the load at which they were measured; a key that is left out matches any stage."""

    of: str = ""
    """The hardware or column of the publication, if it has several."""
    concurrency: Concurrency | None = None
    """The concurrency at which the figures were measured."""
    rate: Rate | None = None
    """The requests per second at which they were measured."""
    isl: Tokens | None = None
    """Tokens of a prompt."""
    osl: Tokens | None = None
    """Tokens of an answer."""
    pass_number: int | None = Field(default=None, ge=1)
    """Which of the `passes` of the load, from 1."""
    figures: dict[str, FiniteFloat]
    """By metric, statistic and unit: `ttft_p99_ms`, `output_tokens_per_s`, `requests_per_min`, `mfu_percent`;
    `prefix_hit_percent` covers the pass and those before it, because an engine counts from its start."""

    @model_validator(mode="after")
    def _figures_are_metrics(self) -> Self:
        for name in self.figures:
            if _FIGURE.fullmatch(name) is None:
                raise ValueError(f"{name}: not a figure that vramp measures, such as ttft_p99_ms or requests_per_min")
        return self


class ReferenceRatio(ProfileTable):
    """A published figure of one variant divided by that of another; a key of the load that is left out matches any.

    `vramp sweep` and `vramp compare` show it next to the measured ratio. It says the same on every box of its hardware.
    """

    variant: str = BASE
    """The variant whose figure is divided; `base` is the profile without any."""
    over: str
    """The variant by whose figure it is divided."""
    figure: str = Field(default="output_tokens_per_s", pattern=_RATIO_OF)
    """A rate such as `output_tokens_per_s`, or a latency such as `tpot_mean_ms`."""
    value: FiniteFloat = Field(gt=0)
    """The published ratio."""
    of: str = ""
    """The hardware or column of the publication, if it has several."""
    concurrency: Concurrency | None = None
    """The concurrency at which it was measured."""
    rate: Rate | None = None
    """The requests per second at which it was measured."""
    isl: Tokens | None = None
    """Tokens of a prompt."""
    osl: Tokens | None = None
    """Tokens of an answer."""


class ReferenceSystem(ProfileTable):
    """What a publication measured with; a run compares itself with each key that is given."""

    model: str = ""
    """The model, as `server.model`."""
    version: str = ""
    """The server's version, such as `0.6.2` of vLLM."""
    image: str = ""
    """The container's image with its tag or digest; `--image published` runs it."""
    gpu: str = ""
    """The part, such as `MI300X`."""
    gpus: int | None = Field(default=None, ge=1)
    """How many of them the server had."""
    requests: int | None = Field(default=None, ge=1)
    """Requests of each stage."""


class Reference(ProfileTable):
    """What a publication measured with this recipe; a run shows it next to its own figures."""

    source: str
    """Where it was published."""
    notes: list[str] = []
    """What it says without figures, such as the conditions of its runs."""
    data: str = ""
    """The file of prompts it was measured with, and where to get it; a run that sent another file says so."""
    data_sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """The checksum of that file."""
    system: ReferenceSystem = ReferenceSystem()
    """What it was measured with."""
    points: list[ReferencePoint] = []
    """Its figures, by load."""
    ratios: list[ReferenceRatio] = []
    """Its figures that compare two variants."""


class Recipe(ProfileTable):
    """Where an imported profile is from; `vramp import` writes it, and a result names it."""

    source: str
    """The file or URL that was read."""
    commit: str = ""
    """The commit of that file, if it is known."""
    sha256: str = ""
    """The checksum of what was read."""


class Telemetry(ProfileTable):
    """What measures the GPUs."""

    mode: TelemetryMode = "auto"
    """`auto` tries what this box has; `sim` simulates GPUs that follow the simulator's load."""
    exporters: list[PageUrl] = []
    """Pages of dcgm-exporter or AMD's device-metrics-exporter, `["http://host:9400/metrics"]`: the GPUs of other
    machines; with `auto`, in place of this one's."""

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, given: object) -> object:
        return {"mode": given} if isinstance(given, str) else given


class Profile(ProfileTable):
    """The keys at the top of the file, and its tables."""

    name: str = Field(default="unnamed", pattern=r"^[A-Za-z0-9._+-]+$")
    """The name of the run; default: the name of the file."""
    description: str = ""
    """A sentence for the list of profiles."""
    server: Server
    """Where the server is, or how to start it."""
    telemetry: Telemetry = Telemetry()
    """What measures the GPUs; `telemetry = "nvml"` is short for `telemetry.mode = "nvml"`."""
    load: Load = Load()
    """The load of every stage, unless the stage says otherwise."""
    stages: list[StageSettings] = []
    """Stages written out one by one, in place of those that `[load]` makes."""
    plan: PlanSettings = PlanSettings()
    """How the load changes from stage to stage."""
    slo: Slo = Slo()
    """`ttft_p99 = "2s"` for a stage, `ttft = "2s"` for each of its streams, `failed = "1%"` of its requests."""
    tiers: list[TierLimits] = Field(default=[], max_length=16)
    """`[{ tokens_per_s = 30, ttft_p95 = "10s" }, { tokens_per_s = 100 }]`: for each, the highest load that meets it."""
    cost: Cost = Cost()
    """`gpu_hour = 2.1` shows token cost in dollars."""
    canary: Canary = Canary()
    """Checks that the output is right."""
    cluster: Cluster = Cluster()
    """The machines that send the load; default: this one."""
    reference: Reference | None = None
    """What was published for this recipe."""
    recipe: Recipe | None = None
    """Where an imported profile is from."""
    accept: Accept | None = None
    """What `vramp accept` demands; default: the limits and the published figures, in every phase."""

    @property
    def first_wave(self) -> Literal["apart", "counted"]:
        """What becomes of the streams that fill a closed loop all at once."""
        return self.load.first_wave or ("apart" if self.reference is None else "counted")

    @property
    def has_limits(self) -> bool:
        return self.slo.has_limits or bool(self.tiers)

    @property
    def sends_canaries(self) -> bool:
        """Whether the run checks the server's output."""
        return self.reference is None if self.canary.enabled is None else self.canary.enabled

    @model_validator(mode="after")
    def _slo_names_are_metrics(self) -> Self:
        for problem in filter(None, map(slo_problem, self.slo.limits_ms)):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _without_a_server_there_is_no_load(self) -> Self:
        if self.server.engine != "none":
            return self
        if self.load.concurrency != [0] or self.load.rate or self.load.rate_points or self.stages or self.plan.kinds:
            raise ValueError('engine "none" is no server to load: give load.concurrency = 0 and no other load')
        if self.telemetry.mode == "sim":
            raise ValueError('telemetry "sim" needs the simulator, and engine "none" starts none')
        if self.cluster.remote:
            raise ValueError('engine "none" is no server to load, and [cluster] is for load: leave it out')
        return self

    @model_validator(mode="after")
    def _what_is_of_this_machine_is_not_of_the_hosts(self) -> Self:
        load = self.load
        of_here = {"source_addresses": load.source_addresses, "cpus": load.cpus, "data": load.data}
        if load.sessions is not None and load.sessions.data not in ("sample", "generated"):
            of_here["sessions.data"] = load.sessions.data
        named = next((key for key, value in of_here.items() if value), None)
        if self.cluster.remote and named is not None:
            raise ValueError(
                f"load.{named} is of the machine that vramp runs on, and [cluster] sends the load from others"
            )
        return self

    @model_validator(mode="after")
    def _plan_fits(self) -> Self:
        plan = self.plan
        if plan.search is not None and SEARCHES[plan.search].needs_limits and not self.has_limits:
            raise ValueError(
                f'plan.search = "{plan.search}" has no limit to search for: give one, such as slo.ttft_p99 = "2s"'
            )
        if plan.every is not None and (self.load.concurrency != [0] or self.load.rate or self.stages or plan.kinds):
            raise ValueError("plan.every is for load.concurrency = 0 alone: any other stage ends by its own load")
        named = next(iter(plan.kinds), None)
        if named is not None and self.stages:
            raise ValueError(f"plan.{named} and [[stages]] are two plans: give one of them")
        if named is not None and named != "ladder" and self.load.shapes:
            raise ValueError(f"plan.{named} goes by one shape: give load.isl and load.osl in place of load.shapes")
        return self


def tables(model: type[BaseModel] = Profile, path: str = "") -> dict[str, type[BaseModel]]:
    """The tables of a profile by their path, `load.prefix`; the head of the file has an empty one."""
    found = {path: model}
    for name, field in model.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found |= tables(part, f"{path}.{name}".removeprefix("."))
    return found
