"""The parameters of an engine: how long a step takes and what fits in it.

They are one frozen value, so that a live change replaces it as a whole. There are two kinds of clock: with
`step_ms` every step ends on an absolute grid whatever it did (for benchmarks); without it a step lasts as long as its
work, so that latency grows with concurrency.
"""

from dataclasses import dataclass, fields
from typing import Any

from loadgen.errors import ProfileError

SIZE_OF_POOL = frozenset({"kv_blocks", "block_size", "max_model_len", "prefix_caching", "startup_s"})
"""Fixed once the engine has started: a running pool cannot be resized."""
MAX_SECONDS = 86_400
_MAX_BY_UNIT = {"_ms": 3_600_000, "_s": MAX_SECONDS}
"""An hour for a part of a step, a day for a start: an engine that takes longer looks like one that hangs."""
_MAX_OF_OTHERS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Physics:
    """How one engine behaves; durations are in real time."""

    base_ms: float = 6.0  # what a step costs before it does anything (launches, weights read once)
    per_seq_ms: float = 0.08  # what each running sequence adds to a step
    per_prefill_token_ms: float = 0.025  # what each prompt token computed in the step adds to it
    jitter: float = 0.0  # standard deviation of a step's duration as a share of it, drawn from the seed
    step_ms: float = 0.0  # above zero: every step ends on a grid of this spacing and the three costs above are ignored
    first_token_ms: float = 0.0  # no first token earlier than this after the request was received
    max_num_seqs: int = 256  # sequences running at once; the rest wait
    max_num_batched_tokens: int = 8192  # tokens computed in one step; longer prompts are prefilled in chunks
    max_model_len: int = 32768  # prompt and answer together
    kv_blocks: int = 25_000  # blocks in the KV pool
    block_size: int = 16  # tokens in a block
    gflop_per_token: float = 16.0  # per computed token: twice its active parameters
    tensor_parallel_size: int = 1  # GPUs that share the operations
    mfu_metrics: bool = False  # whether the operations are counted for /metrics
    prefix_caching: bool = True  # whether prompts share blocks with earlier ones
    eos_mean_tokens: float = 0.0
    """Above zero: answers without `ignore_eos` end by themselves, after this many tokens on average."""
    score_noise: float = 0.01
    """Standard deviation, in nats, of each token's log probability while other requests run; without others, 0."""
    startup_s: float = 0.0  # how long the milestones of a start take

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int) and value % 1:
                raise ProfileError(f"{field.name}: expected a whole number, not {value}")
            most = next((most for ending, most in _MAX_BY_UNIT.items() if field.name.endswith(ending)), _MAX_OF_OTHERS)
            if not 0 <= value <= most:
                raise ProfileError(f"{field.name}: expected a number from 0 to {most:,}, not {value!s:.20}")
        sizes = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_blocks", "block_size")
        for name in (*sizes, "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ProfileError(f"{name}: must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ProfileError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) has to be greater than or equal to "
                f"max_num_seqs ({self.max_num_seqs}): every running sequence computes a token a step"
            )
        if self.max_model_len > self.kv_tokens:
            raise ProfileError(
                f"max_model_len ({self.max_model_len}) needs more KV cache than there is ({self.kv_tokens} tokens): "
                "raise --kv-blocks or lower --max-model-len"
            )

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_size

    def step_ns(self, running: int, prefill_tokens: int) -> int:
        """Duration of a step with this work, before jitter; never so short that the engine spins."""
        ms = self.base_ms + self.per_seq_ms * running + self.per_prefill_token_ms * prefill_tokens
        return max(100_000, int(ms * 1e6))


_ROOMY: dict[str, Any] = {
    "max_num_seqs": 8192,
    "max_num_batched_tokens": 1 << 24,
    "max_model_len": 131_072,
    "kv_blocks": 1 << 22,
    "prefix_caching": False,
}
PRESETS = {
    # Base cost and batch cost are equal at 75 streams, so throughput bends around there.
    "default": Physics(jitter=0.03, startup_s=3.0),
    # The server for comparing clients: one token per stream and step, nothing else in the way.
    "bench": Physics(step_ms=10.0, first_token_ms=50.0, **_ROOMY),
    # GPT-OSS 120B on one MI300X as published (8 streams of 4096/1024): fitted to its mean TTFT, TPOT and E2E. What one
    # concurrency does not determine is a guess: the cost per sequence, and a budget of one prompt per step.
    "published": Physics(
        base_ms=13.4,
        per_seq_ms=0.1,
        per_prefill_token_ms=0.0723,
        gflop_per_token=10.2,  # 5.1 billion active parameters, by the model card
        jitter=0.02,
        max_num_batched_tokens=4096,
        max_model_len=131_072,
        kv_blocks=1 << 17,
        prefix_caching=False,
    ),
    # For tests of a moving load: 5 ms x (1 + running / 16) and nothing else, so each load has its own step time.
    "bends": Physics(base_ms=5.0, per_seq_ms=5.0 / 16, per_prefill_token_ms=0.0, **_ROOMY),
    # For tests: as fast as the machine, with no cost that grows.
    "fast": Physics(
        base_ms=1.0, per_seq_ms=0.0, per_prefill_token_ms=0.0, max_num_seqs=1024, max_model_len=8192, kv_blocks=1 << 16
    ),
}
