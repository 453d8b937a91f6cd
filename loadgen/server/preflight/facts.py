"""What the preflight examines: for checks, the box and the planned run; for rules, facts derived from both.

A check reads the machine only through `Box`, so that tests can present another machine. Checks only read; what they
cannot read raises `OSError` or a `VrampError`, and `check` reports that.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.format import GIB
from loadgen.places import expanded, home_folder
from loadgen.plan.stage import Stage
from loadgen.profile.schema import Docker, Profile, Server
from loadgen.schema.samples import GpuSample, GpuStatic
from loadgen.server.gpus.given import server_gpus
from loadgen.server.vllm.flags import integer, normal_args
from loadgen.vendors import Platform

MANY_STREAMS = 64  # from here on a plan aims at throughput: the concurrency that publications call scale
_MEC_BITS = 0x7FF  # of the whole version


def _open_files() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _locked_memory() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _clock_synchronised() -> bool | None:
    """None if the kernel does not say."""
    timex = (ctypes.c_long * 64)()  # larger than `struct timex` everywhere; its first word, `modes`, is 0: only read
    status, unsynchronised = 5, 0x40
    if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
        return None
    return timex[status] & unsynchronised == 0


class Box(msgspec.Struct, frozen=True):
    root: Path = Path("/")
    environ: Mapping[str, str] = msgspec.field(default_factory=lambda: dict(os.environ))
    home: Path = msgspec.field(default_factory=home_folder)
    open_files: int = msgspec.field(default_factory=_open_files)  # the hard limit of a process
    locked_memory: int | None = msgspec.field(default_factory=_locked_memory)
    """Bytes that a process may lock; None: unlimited."""
    clock_synchronised: bool | None = msgspec.field(default_factory=_clock_synchronised)
    """Whether an NTP or PTP daemon keeps it so, according to the kernel; None is unknown."""

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def dev(self) -> Path:
        return self.root / "dev"


class Setup(msgspec.Struct, frozen=True):
    profile: Profile
    plan: Sequence[Stage]
    box: Box
    platform: Platform | None
    gpus: Sequence[GpuStatic] = ()  # the platform's GPUs; empty if unknown, or if no GPU is used
    samples: Mapping[int, GpuSample] = {}  # of the GPUs, by index, at the time of the check
    vllm: str | None = None  # version of the queried installation, or of the record used instead
    image: Mapping[str, str] | None = None  # the variables that the container's image sets; None is unknown
    elsewhere: bool = False  # whether the server will run on another box, of which only the GPUs may be known
    no_gpus: str = "the GPUs are unknown"  # why there are none in `gpus`

    @property
    def server(self) -> Server:
        return self.profile.server

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the server will see; a container gets those of its image and profile, none of vramp's."""
        here = {} if self.elsewhere else self.box.environ
        around = here if self.server.docker is None else self.image
        return {**(around or {}), **self.server.env}

    @property
    def taken_gpus(self) -> Sequence[GpuStatic]:
        """The GPUs that the server will use; all of the box if unknown. Raises `ProfileError`."""
        taken = server_gpus(self.server, self.environment, self.gpus)
        return self.gpus if taken is None else taken

    def sample_of(self, gpu: GpuStatic) -> GpuSample:
        return self.samples.get(gpu.index) or GpuSample(gpu.index, 0.0)


def read_setting(path: Path) -> str | None:
    """A kernel setting; None if this kernel does not have it. Raises `OSError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a rule may use; None is unknown, and rules that need it are not judged."""

    args: Mapping[str, Any] = {}  # flags by long name, see `flags.normal_args`
    env: Mapping[str, str] = {}  # the environment of the server
    env_whole: bool = True  # false: a container's image may set more variables than are known
    platform: Platform | None = None
    model: ModelFacts | None = None
    gpus: tuple[GpuStatic, ...] = ()  # of the box; empty is unknown
    no_gpus: str = "the GPUs are unknown"  # why
    archs: frozenset[str] = frozenset()  # of the GPUs that the server will use; empty is unknown
    vllm: str | None = None  # version of the installation, or of the record used instead
    instances: int = 1
    peak_streams: int | None = None  # the highest concurrency of the plan; None if it is all open loop
    longest_prompt: int = 0
    longest_stream: int = 0  # tokens of prompt and answer together
    random_prompts: bool = True  # no prompt has a prefix in common with an earlier one
    sessions: bool = False  # the load is live sessions, whose requests repeat the ones before them
    published: bool = False  # the profile reproduces a publication, whose figures are compared with the run's

    def number(self, flag: str, default: int | None = None) -> int | None:
        """A flag's integer value (`8192`, `"8k"`); the default if it is unset or a word such as auto."""
        value = integer(self.args.get(flag))
        return default if value is None else value

    def on(self, variable: str, *, default: bool = False) -> bool:
        return self.env.get(variable, str(default)).lower() in ("1", "true")

    def knows(self, variable: str) -> bool:
        """Whether it is known if and how this variable is set."""
        return self.env_whole or variable in self.env

    def runs(self, versions: str) -> bool:
        """Whether vLLM's version is in a range such as `>=0.19`; false if unknown."""
        return _is_version(self.vllm, versions)

    @property
    def devices(self) -> int | None:
        """How many devices the box has, as runtimes count: each partition of a GPU is one."""
        return sum(gpu.engine_devices for gpu in self.gpus) or None

    @property
    def hbm_bytes(self) -> int | None:
        """The memory of the smallest device."""
        known = (gpu.hbm_total_bytes // gpu.engine_devices for gpu in self.gpus if gpu.hbm_total_bytes is not None)
        return min(known, default=None)

    @property
    def mec_version(self) -> int | None:
        """The oldest firmware of the GPUs' compute engines (MEC), numbered as RCCL does; None if unknown."""
        texts = [(gpu.firmware or {}).get("mec", "") for gpu in self.gpus]
        known = [int(text, 16) for text in texts if re.fullmatch(r"0x[0-9a-f]{1,8}", text)]
        return min((version & _MEC_BITS for version in known), default=None)

    @property
    def aiter(self) -> bool:
        """Whether AITER's kernels are switched on; they may still not exist for these GPUs."""
        return self.on("VLLM_ROCM_USE_AITER")

    @property
    def memory_share(self) -> float:
        """The share of a GPU's memory that the server uses."""
        return memory_share(self.args, self.vllm)

    @property
    def tensor_parallel(self) -> int:
        return self.number("tensor-parallel-size") or 1

    @property
    def engines(self) -> int:
        """How many schedulers share the streams."""
        return self.instances * (self.number("data-parallel-size") or 1)

    @property
    def streams_each(self) -> int | None:
        """The most streams of the plan that one engine gets at once."""
        return None if self.peak_streams is None else -(-self.peak_streams // self.engines)

    @property
    def max_num_seqs(self) -> int | None:
        """As set, or vLLM's default for this device (`get_batch_defaults` in its `arg_utils.py`)."""
        if "max-num-seqs" in self.args or not self.runs(">=0.9"):
            return self.number("max-num-seqs")
        if self.platform == "cpu":
            seqs = 128 * self.tensor_parallel * (self.number("pipeline-parallel-size") or 1)
        elif self.hbm_bytes is None:
            return None
        else:
            large = self.hbm_bytes >= 70 * GIB and not any("a100" in gpu.name.lower() for gpu in self.gpus)
            seqs = 1024 if large else 256
        seqs *= 2 if self.args.get("performance-mode") == "throughput" else 1
        return min(seqs, self.number("max-num-batched-tokens", seqs) or seqs)

    @property
    def max_model_len(self) -> int | None:
        """As set, or the model's own."""
        return self.number("max-model-len", self.model.max_model_len if self.model is not None else None)

    @property
    def goal(self) -> Literal["throughput", "latency"] | None:
        """What the plan aims at: throughput if there are many streams, latency if there is one."""
        if self.peak_streams is None:
            return None
        if self.peak_streams >= MANY_STREAMS:
            return "throughput"
        return "latency" if self.peak_streams == 1 else None


def _is_version(vllm: str | None, versions: str) -> bool:
    from packaging.specifiers import SpecifierSet  # not before the first frame
    from packaging.version import InvalidVersion, Version

    try:
        return vllm is not None and SpecifierSet(versions).contains(Version(vllm), prereleases=True)
    except InvalidVersion:
        return False


def memory_share(args: Mapping[str, Any], vllm: str | None) -> float:
    """The share of a GPU's memory that a server uses; vLLM's default rose with 0.20."""
    default = 0.9 if _is_version(vllm, "<0.20") else 0.92
    value = str(args.get("gpu-memory-utilization", default))
    return float(value) if re.fullmatch(r"\d*\.?\d+", value) else default


def facts_of(setup: Setup) -> Facts:
    server, plan, environment = setup.server, setup.plan, setup.environment
    files_of = setup.box.environ if setup.elsewhere else environment  # whatever this machine has of the model
    taken = setup.gpus
    with contextlib.suppress(ProfileError):  # the check of GPU memory reports it
        taken = setup.taken_gpus
    return Facts(
        args=normal_args(server.args),
        env=environment,
        env_whole=server.docker is None or setup.image is not None,
        platform=setup.platform,
        model=model_facts(server.model, files_of) if server.model is not None else None,
        gpus=tuple(setup.gpus),
        no_gpus=setup.no_gpus,
        archs=frozenset(gpu.arch for gpu in taken if gpu.arch is not None),
        vllm=setup.vllm,
        instances=server.instances,
        peak_streams=max((stage.concurrency for stage in plan if stage.concurrency is not None), default=None),
        longest_prompt=max((stage.work.longest_prompt(stage.isl, stage.osl) for stage in plan), default=0),
        longest_stream=max((stage.work.longest(stage.isl, stage.osl) for stage in plan), default=0),
        random_prompts=not any(stage.work.repeats for stage in plan),
        sessions=any(stage.work.sessions is not None for stage in plan),
        published=setup.profile.reference is not None,
    )


_MAX_COUNT = 1 << 53


class ModelFacts(msgspec.Struct, frozen=True):
    attention_heads: int | None = None
    kv_heads: int | None = None
    weight_bytes: int | None = None
    max_model_len: int | None = None  # the most tokens of a sequence
    latent_attention: bool = False  # MLA
    attention_sinks: bool = False  # as gpt-oss has them

    @property
    def grouped_queries(self) -> bool:
        """Whether several attention heads share one of keys and values (GQA)."""
        return self.kv_heads is not None and self.attention_heads is not None and self.kv_heads < self.attention_heads


# Heads and lengths: num_attention_heads, num_key_value_heads and max_position_embeddings of each model's config.json.
# Bytes: parameters times the bytes of one, as the model cards give them (FP8: one, BF16 and FP16: two); gpt-oss-120b:
# the 60.8 GiB of its model card, gpt-oss-20b: 12.8 GiB.
_PUBLISHED: dict[str, ModelFacts] = {
    r"gpt-oss-120b": ModelFacts(64, 8, 65_300_000_000, 131_072, attention_sinks=True),
    r"gpt-oss-20b": ModelFacts(64, 8, 13_700_000_000, 131_072, attention_sinks=True),
    r"deepseek-r1(-0528)?": ModelFacts(128, 128, 685_000_000_000, 163_840, latent_attention=True),
    r"qwen3-235b-a22b": ModelFacts(64, 4, 470_000_000_000, 40_960),
    r"qwen3-235b-a22b-(instruct|thinking)-2507": ModelFacts(64, 4, 470_000_000_000, 262_144),
    r"qwen3-235b-a22b-(instruct|thinking)-2507-fp8": ModelFacts(64, 4, 235_000_000_000, 262_144),
    r"(meta-)?llama-3\.[13]-70b(-instruct)?": ModelFacts(64, 8, 141_107_000_000, 131_072),
    r"(meta-)?llama-3\.[13]-70b(-instruct)?-fp8.*": ModelFacts(64, 8, 72_000_000_000, 131_072),
    r"(meta-)?llama-3\.1-405b(-instruct)?": ModelFacts(128, 8, 811_707_000_000, 131_072),
    r"(meta-)?llama-3\.1-405b(-instruct)?-fp8.*": ModelFacts(128, 8, 410_000_000_000, 131_072),
    r"llama-2-7b(-chat)?(-hf)?": ModelFacts(32, 32, 13_477_000_000, 4096),
    r"llama-2-13b(-chat)?(-hf)?": ModelFacts(40, 40, 26_032_000_000, 4096),
    r"llama-2-70b(-chat)?(-hf)?": ModelFacts(64, 8, 137_953_000_000, 4096),
}
"""By the last part of the model's name, in lower case."""

_NOT_STRETCHED = ("llama3", "longrope", "su", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds of rope scaling whose max_position_embeddings already is the scaled length, as vLLM interprets them."""


def model_facts(model: str, environment: Mapping[str, str]) -> ModelFacts | None:
    """What is known of a model, by path or name; None if nothing is.

    `environment` is the server's: it says where the hub cache is.
    """
    local: ModelFacts | None = None
    with contextlib.suppress(OSError):  # what cannot be read is unknown
        folder = _folder(model, environment)
        local = _facts_of(folder) if folder is not None else None
    name = model.rstrip("/").rpartition("/")[2].lower()
    published = next((facts for pattern, facts in _PUBLISHED.items() if re.fullmatch(pattern, name)), None)
    if local is None or published is None:
        return local or published
    given = {name: value for name, value in msgspec.structs.asdict(local).items() if value is not None}
    return msgspec.structs.replace(published, **given)


def _folder(model: str, environment: Mapping[str, str]) -> Path | None:
    """Where the model's files are: the path itself, or its newest snapshot in the hub cache."""
    path = Path(expanded(model))
    if path.is_dir():
        return path
    configs = (snapshots / "config.json" for snapshots in hub_snapshots(model, hub_cache(environment, home_folder())))
    known = [config for config in configs if config.exists()]
    return max(known, key=lambda config: config.stat().st_mtime).parent if known else None


def hub_cache(environment: Mapping[str, str], home: Path) -> Path:
    """Where the hub's library keeps its files, according to the variables that it reads."""
    named = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return _in_home(named, home) if named else _huggingface(environment, home) / "hub"


def hub_token(environment: Mapping[str, str], home: Path) -> Path:
    """Where a login to the hub leaves its token; the cache may be elsewhere."""
    named = environment.get("HF_TOKEN_PATH")
    return _in_home(named, home) if named else _huggingface(environment, home) / "token"


def _huggingface(environment: Mapping[str, str], home: Path) -> Path:
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return _in_home(environment.get("HF_HOME") or f"{cache}/huggingface", home)


def _in_home(path: str, home: Path) -> Path:
    return home / path[2:].lstrip("/") if path == "~" or path.startswith("~/") else Path(expanded(path))


def mounted(docker: Docker, inner: Path) -> Path | None:
    """The host's path for a path in the container; None if it belongs to the image."""
    for mount in docker.mounts:
        outer, _, rest = mount.partition(":")
        target = Path(rest.partition(":")[0])
        if rest and inner.is_relative_to(target):
            return Path(expanded(outer)) / inner.relative_to(target)
    return None


def local_cache(server: Server, environment: Mapping[str, str], home: Path) -> Path | None:
    """The hub cache of a server on this machine; None if it stays inside a container."""
    if server.docker is not None:
        return mounted(server.docker, hub_cache(environment, home=Path("/root")))
    return hub_cache(environment, home)


def hub_snapshots(model: str, cache: Path) -> list[Path]:
    return list((cache / f"models--{model.replace('/', '--')}" / "snapshots").glob("*"))


def _facts_of(folder: Path) -> ModelFacts | None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, *UNDECODABLE):
        return None  # vLLM will report what is wrong with it
    text = config.get("text_config", config) if isinstance(config, dict) else None  # multimodal models nest it
    if not config or not isinstance(text, dict):
        return None
    heads = _count(text, "num_attention_heads")
    # Some repositories hold the weights twice: files named consolidated are in the maker's own format.
    files = [file for file in folder.glob("*.safetensors") if not file.name.startswith("consolidated")]
    # In the hub's cache each is a link, whose blob may be gone.
    weight_bytes = sum(file.stat().st_size for file in files if file.exists()) or None
    kv_heads = _count(text, "num_key_value_heads") or heads
    latent = _count(text, "kv_lora_rank") is not None
    sinks = text.get("model_type") == "gpt_oss"
    return ModelFacts(heads, kv_heads, weight_bytes, _longest(text), latent, sinks)


def _longest(config: dict[str, Any]) -> int | None:
    """None if vLLM scales the configured length by rules of its own."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else None
    stretched = isinstance(scaling, dict) and "factor" in scaling and kind not in _NOT_STRETCHED
    return None if stretched else _count(config, "max_position_embeddings")


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and 0 < value < _MAX_COUNT else None
