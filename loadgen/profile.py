"""A profile: how the server starts (or where it is), what load to send, what to expect.

A TOML file becomes one frozen, validated `Profile`, or a `ProfileError` that names file, key and value. Invariants:
a profile never changes after loading; unknown keys are refused with the nearest known one; nothing here touches
the network or starts anything.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from loadgen.errors import ProfileError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h)\s*")
_SLO_NAME = re.compile(r"(ttft|ttft_from_intended|tpot|itl|e2e)_(mean|p50|p90|p95|p99|p999)")


def parse_duration_s(value: object) -> float:
    """Seconds of `30`, `2.5` or a text with a unit: `500ms`, `30s`, `2m`, `1h`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise ValueError("expected a duration such as 30s, 500ms or 2m")
    return float(match[1]) * _UNITS_S[match[2]]


def _parse_warmup(value: object) -> object:
    return value if isinstance(value, int) else f"{parse_duration_s(value)}s"


def _parse_slo_ms(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError("expected a time with its unit, such as 2s or 50ms")
    return parse_duration_s(value) * 1000.0


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Seconds = Annotated[float, BeforeValidator(parse_duration_s), Field(gt=0)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=100_000)]
Rate = Annotated[float, Field(gt=0, le=1_000_000)]
Warmup = Annotated[int | str, BeforeValidator(_parse_warmup)]
Scalar = str | int | float | bool


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Server(_Part):
    """Where the server is, or how to start it."""

    engine: Literal["vllm", "simulator", "attach"]
    """`vllm` and `simulator` are started and stopped by vramp; `attach` is only spoken to."""
    model: str | None = None
    """A path or hub name for `vllm`; the served name for `attach` and `simulator` (default: the only one served)."""
    served_model_name: str | None = None
    url: str | None = None
    """`attach` only: `http[s]://host[:port][/prefix]`, without `/v1`."""
    command: str = "vllm"
    """`vllm` only: the executable, a name on PATH or a path (`~` is expanded)."""
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    args: dict[str, Scalar | list[Any] | dict[str, Any]] = {}
    """Flags of the server: `max-model-len = 8192`; true is `--flag`, false `--no-flag`, a table is JSON."""
    env: dict[str, str] = {}
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; the key itself never stands in a profile."""
    startup_timeout_s: Seconds = 1800.0
    stop_timeout_s: Seconds = 20.0

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
        if self.engine == "vllm" and self.model is None:
            raise ValueError('engine "vllm" needs model = "path or name"')
        return self


class Load(_Part):
    """The load of every stage that does not say otherwise."""

    endpoint: Literal["completions", "chat"] = "completions"
    isl: Tokens = 256
    osl: Tokens = 128
    concurrency: Annotated[list[Concurrency], BeforeValidator(_as_list), Field(min_length=1)] = [8]
    rate: Annotated[list[Rate], BeforeValidator(_as_list)] = []
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


class Profile(_Part):
    """One TOML file, validated."""

    name: str = Field(default="unnamed", pattern=r"^[A-Za-z0-9._-]+$")
    description: str = ""
    server: Server
    load: Load = Load()
    stages: list[StageSettings] = []
    slo: dict[str, Annotated[float, BeforeValidator(_parse_slo_ms)]] = {}
    """`ttft_p99 = "2s"`: limits in milliseconds, by metric and statistic."""

    @model_validator(mode="after")
    def _slo_names_are_metrics(self) -> Self:
        for name in self.slo:
            if _SLO_NAME.fullmatch(name) is None:
                raise ValueError(f"slo.{name}: expected a metric and a statistic, such as ttft_p99 or tpot_p50")
        return self


def load_profile(path: Path, overrides: Iterable[str] = ()) -> Profile:
    """Read, override and validate a profile.

    `overrides` are `key.path=value` texts; a value is TOML, or else a plain string. Raises `ProfileError`.
    """
    return build_profile(load_document(path), where=str(path), overrides=overrides)


def load_document(path: Path) -> dict[str, Any]:
    """Read a profile's TOML without validating it; it gets a name from its file. Raises `ProfileError`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProfileError(_no_such_profile(path)) from None
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ProfileError(f"{path}: is not UTF-8 text; a profile is a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{path}: not valid TOML: {error}") from None
    document.setdefault("name", re.sub(r"[^A-Za-z0-9._-]", "-", path.stem))
    return document


def build_profile(document: Mapping[str, Any], *, where: str, overrides: Iterable[str] = ()) -> Profile:
    """Validate a document that did not come from a file; `where` names its origin in messages."""
    overridden: dict[str, Any] = _copy(document)
    for override in overrides:
        _apply_override(overridden, override)
    try:
        return Profile.model_validate(overridden)
    except ValidationError as error:
        lines = [_explain(where, details) for details in error.errors()]
        raise ProfileError("\n".join(lines)) from None


def _copy(value: Any) -> Any:  # noqa: ANN401 - a TOML document is any of TOML's types
    if isinstance(value, Mapping):
        return {key: _copy(entry) for key, entry in value.items()}
    return [_copy(entry) for entry in value] if isinstance(value, list) else value


def _apply_override(document: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise ProfileError(f"--set {override}: expected key.path=value, such as load.isl=4096")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    _assign(document, path, value, override)


def _assign(document: dict[str, Any], path: list[str], value: object, override: str) -> None:
    table: Any = document
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(table, list):
            if not part.isdigit() or int(part) >= len(table):
                known = ".".join(path[:depth])
                raise ProfileError(f"--set {override}: {known} has {len(table)} entries, counted from 0; no {part!r}")
            index: Any = int(part)
        elif isinstance(table, dict):
            index = part
            if not last:
                table.setdefault(part, {})
        else:
            raise ProfileError(f"--set {override}: {'.'.join(path[:depth])} is a value, not a table")
        if last:
            table[index] = value
        else:
            table = table[index]


def _no_such_profile(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    names = [entry.name for entry in folder.glob("*.toml")]
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"{path}: no such profile; did you mean {folder / near[0]}?"
    listed = ", ".join(sorted(Path(name).stem for name in names))
    return f"{path}: no such profile" + (f"; {folder} has: {listed}" if listed else "")


def _explain(where: str, details: ErrorDetails) -> str:
    location = [part for part in details["loc"] if part not in ("int", "float", "str", "bool")]
    key = ".".join(str(part) for part in location)
    if details["type"] == "extra_forbidden":
        return f"{where}: {key}: unknown key{_nearest(location)}"
    if details["type"] == "missing":
        return f"{where}: {key}: is missing"
    message = details["msg"].removeprefix("Value error, ")
    value = details["input"]
    shown = "" if isinstance(value, dict | BaseModel) else f" = {value!r}"
    return f"{where}: {key}{shown}: {message[:1].lower()}{message[1:]}" if key else f"{where}: {message}"


_KNOWN_KEYS: dict[str, type[BaseModel]] = {"": Profile, "server": Server, "load": Load, "stages": StageSettings}


def _nearest(location: list[int | str]) -> str:
    parents = [str(part) for part in location[:-1] if not isinstance(part, int)]
    model = _KNOWN_KEYS.get(parents[0] if parents else "")
    known = list(model.model_fields) if model is not None else []
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f"; did you mean {'.'.join([*parents, near[0]])}?" if near else f"; known keys: {', '.join(known)}"
