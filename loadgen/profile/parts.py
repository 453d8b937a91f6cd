"""The parts of a profile, frozen and validated: each names its keys, their defaults and what they mean."""

from __future__ import annotations

import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from loadgen.profile.values import (
    Concurrencies,
    Concurrency,
    Milliseconds,
    Rate,
    Rates,
    Scalar,
    Seconds,
    Tokens,
    Warmup,
)

_SLO_NAME = re.compile(r"(ttft|ttft_from_intended|tpot|itl|e2e)_(mean|p50|p90|p95|p99|p999)")
_FIGURE = re.compile(
    r"(ttft|tpot|itl|e2e)_(mean|p[0-9]{1,3})_ms|normalized_mean_ms"
    r"|requests_per_(s|min)|(input|output|total)_tokens_per_s|duration_s|completed|(input|output)_tokens"
)


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
    platform: Literal["rocm", "cuda", "cpu"] | None = None
    """What the flags were chosen for; None takes what the box has."""
    model: str | None = None
    """A path or hub name for `vllm` and `docker`; the served name for `attach` and `simulator` (default: the first)."""
    served_model_name: str | None = None
    url: str | None = None
    """`attach` only: `http[s]://host[:port][/prefix]`, without `/v1`."""
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
            if self.url is None:
                raise ValueError('engine "attach" needs url = "http://host:port"')
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"url must look like http://host:port, not {self.url!r}")
        elif self.url is not None:
            raise ValueError(f'url is for engine "attach"; engine "{self.engine}" takes host and port')
        if self.engine in ("vllm", "docker") and self.model is None:
            raise ValueError(f'engine "{self.engine}" needs model = "path or name"')
        return self

    @model_validator(mode="after")
    def _engine_has_nothing_of_another(self) -> Self:
        if (self.engine == "docker") != (self.docker is not None):
            wanted = "needs" if self.engine == "docker" else "has no use for"
            raise ValueError(f'engine "{self.engine}" {wanted} a table [server.docker] with the image')
        if self.engine == "attach" and self.instances > 1:
            raise ValueError('instances are servers that vramp starts; engine "attach" starts none')
        return self


class Load(_Part):
    """The load of every stage that does not say otherwise."""

    endpoint: Literal["completions", "chat"] = "completions"
    isl: Tokens = 256
    osl: Tokens = 128
    shapes: list[tuple[Tokens, Tokens]] = []
    """`[[1024, 8192], ...]`: ISL and OSL in pairs, each with every concurrency or rate, in place of `isl` and `osl`."""
    concurrency: Concurrencies = [8]
    rate: Rates = []
    """Requests a second, open loop; when set, `concurrency` is not used."""
    arrival: Literal["poisson", "constant"] = "poisson"
    requests: int | None = Field(default=None, ge=1)
    duration: Seconds | None = None
    """One of `requests` and `duration` bounds a stage; `requests` wins, neither means 10 requests a stream."""
    warmup: Warmup = 0
    """Requests (`16`) or time (`"5s"`) at the start of a stage that its statistics leave out."""
    temperature: float = Field(default=0.0, ge=0)
    ignore_eos: bool = True
    timeout_s: Seconds = 600.0
    stall_timeout_s: Seconds = 300.0
    """A stream without an event for this long has failed; it must exceed the longest TTFT that is to be measured."""
    connect_timeout_s: Seconds = 10.0
    workers: int | None = Field(default=None, ge=1, le=64)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """None draws one, so that two runs do not share prompts; the result records it."""


class StageSettings(_Part):
    """One `[[stages]]` entry: what differs from `[load]`."""

    label: str | None = None
    concurrency: Concurrency | None = None
    rate: Rate | None = None
    arrival: Literal["poisson", "constant"] | None = None
    isl: Tokens | None = None
    osl: Tokens | None = None
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
    telemetry: Literal["auto", "amdsmi", "amd-sysfs", "nvml", "sim", "off"] = "auto"
    """What measures the GPUs; `sim` invents some for the simulator's load."""
    load: Load = Load()
    stages: list[StageSettings] = []
    slo: dict[str, Milliseconds] = {}
    """`ttft_p99 = "2s"`: limits in milliseconds, by metric and statistic."""
    reference: Reference | None = None

    @model_validator(mode="after")
    def _slo_names_are_metrics(self) -> Self:
        for name in self.slo:
            if _SLO_NAME.fullmatch(name) is None:
                raise ValueError(f"slo.{name}: expected a metric and a statistic, such as ttft_p99 or tpot_p50")
        return self
