"""What a vLLM server says of its start: the figures by which two starts of one recipe are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]  # a damaged history must not spoil a start


class StartDifference(msgspec.Struct, frozen=True):
    """One figure in which a start differs from the last one with the same flags on the same box."""

    what: str
    before: str
    now: str

    @property
    def words(self) -> str:
        return f"{self.what} {self.before} before, {self.now} now"


class ServerStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures of one start, from the log and from `vllm:cache_config_info`; null is what neither says.

    Workers print some figures each: of the KV cache's memory it is the least, of weights and graphs the most.
    """

    version: str | None = None
    kv_cache_tokens: int | None = None
    kv_cache_blocks: int | None = None
    kv_block_tokens: int | None = None
    kv_cache_gib: float | None = None  # on each GPU
    kv_cache_dtype: str | None = None
    full_length_streams: float | None = None  # how many streams of `max_length_tokens` fit
    max_length_tokens: int | None = None
    weights_gib: float | None = None  # on each GPU
    weights_s: float | None = None
    graphs_gib: float | None = None  # on each GPU
    graphs_s: float | None = None
    compile_s: float | None = None
    compile_cache_hit: bool | None = None
    engine_s: float | None = None  # profiling, KV cache and warm-up, as the engine adds them up
    attention: tuple[str, ...] = ()  # backends: the target's first, then a drafter's
    moe: tuple[str, ...] = ()
    gemm: tuple[str, ...] = ()
    emulated: tuple[str, ...] = ()  # formats that the GPU has no instructions for
    slow: tuple[str, ...] = ()  # what vLLM itself calls sub-optimal
    quantization: str | None = None
    unix_s: float | None = None  # when it was ready
    total_s: _Seconds | None = None
    milestones_s: dict[str, _Seconds] = {}  # by milestone id, without those that were skipped

    @property
    def words(self) -> list[str]:
        """What is known, one sentence a subject: KV cache, memory, backends, time."""
        subjects = (self._cache(), self._memory(), self._backends(), self._time())
        return [words for words in map(", ".join, subjects) if words]

    def _cache(self) -> Iterator[str]:
        if self.kv_cache_tokens is not None:
            size = "" if self.kv_cache_gib is None else f" ({self.kv_cache_gib:g} GiB on each GPU)"
            yield f"KV cache {self.kv_cache_tokens:,} tokens{size}"
        if self.full_length_streams is not None and self.max_length_tokens is not None:
            yield f"{self.full_length_streams:g} streams of {self.max_length_tokens:,} tokens"
        if self.kv_cache_dtype not in (None, "auto"):
            yield f"type {self.kv_cache_dtype}"

    def _memory(self) -> Iterator[str]:
        if self.weights_gib is not None:
            yield f"weights {self.weights_gib:g} GiB on each GPU"
        if self.graphs_gib is not None:
            yield f"graphs {self.graphs_gib:g} GiB"
        if self.quantization is not None:
            yield f"quantization {self.quantization}"

    def _backends(self) -> Iterator[str]:
        target, *drafters = self.attention or ("",)
        if target:
            yield f"attention {target}"
        if drafters:
            yield f"and {' and '.join(drafters)} for the drafter"
        if self.moe:
            yield f"MoE {' and '.join(self.moe)}"
        if self.gemm:
            yield f"GEMM {' and '.join(self.gemm)}"
        if self.emulated:
            yield f"emulated: {' and '.join(self.emulated)}"
        yield from self.slow

    def _time(self) -> Iterator[str]:
        if self.total_s is not None:
            yield f"started in {self.total_s:.0f} s"
        if self.compile_s is not None:
            yield f"compiled in {self.compile_s:.0f} s"
        if self.compile_cache_hit:
            yield "from the compile cache"


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """What exactly a server was started with; null is unknown, with its reason in `missing`."""

    image: str | None = None  # as the profile names it
    image_digest: str | None = None  # `sha256:...`, by which a registry has it
    weights_revision: str | None = None  # the commit of the weights on the hub
    missing: dict[str, str] = {}


class ServerResult(msgspec.Struct, frozen=True):
    """How the server of a run started; of several, the first, with the times of the slowest."""

    start: ServerStart
    differences: tuple[StartDifference, ...] = ()  # from the last start with the same flags on the same box
